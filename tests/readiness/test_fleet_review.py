"""The review of a running fleet: what is a problem, what is unknown, and how alerts are read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.foundation.exit_codes import CommandError
from holdfast.model.region import HealthState
from holdfast.model.times import seconds_text
from holdfast.readiness.fleet_facts import firing_alerts, silences
from holdfast.readiness.fleet_review import (
    AlertFact,
    BackupFact,
    DrillFact,
    FleetFacts,
    Level,
    OverrideFact,
    PromiseFact,
    RegionFact,
    review_fleet,
)

NOW = 2_000_000_000.0
HOUR_S, DAY_S = 3600.0, 86_400.0


def ago(seconds: float) -> str:
    return seconds_text(NOW - seconds)


def problems(**facts: Any) -> list[str]:
    found = review_fleet(FleetFacts(**facts), NOW)
    return [f"{f.check}: {f.text}" for f in found if f.level is Level.PROBLEM]


def promise(*, backed: bool = True, proven_at: str = "") -> PromiseFact:
    return PromiseFact("workload payments/risk-api", "4 serve elsewhere", backed, proven_at, "recovery loss-1")


def test_healthy_fleet_has_no_problem() -> None:
    assert not problems(
        promises=(promise(proven_at=ago(DAY_S)),),
        regions=(RegionFact("us-east", HealthState.HEALTHY, ago(1), ""),),
        overrides=(OverrideFact("avoid", "global", "Active", ago(-60), reverted=False),),
        drills=(DrillFact("region-loss", "us-east", True, ago(DAY_S), "r1"),),
        backups=(BackupFact("global", ago(HOUR_S), ago(DAY_S)),),
        alerts=(),
    )


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"promises": (promise(),)}, "drills: workload payments/risk-api: never proven"),
        (
            {"promises": (promise(proven_at=ago(31 * DAY_S)),)},
            "drills: workload payments/risk-api: last proven 31.0 days",
        ),
        ({"promises": (promise(backed=False, proven_at=ago(1)),)}, "backing: workload payments/risk-api: not backed"),
        (
            {"drills": (DrillFact("zone-loss", "eu-west", False, ago(DAY_S), "r2"),)},
            "drills: drill zone-loss in eu-west: its last run failed",
        ),
        (
            {"overrides": (OverrideFact("avoid", "us-east", "Active", ago(61), reverted=False),)},
            "overrides: override avoid in us-east: active after its end",
        ),
        (
            {"overrides": (OverrideFact("avoid", "global", "Expired", ago(61), reverted=False),)},
            "overrides: override avoid in global: ended at",
        ),
        (
            {"regions": (RegionFact("us-east", HealthState.LOST, ago(90), "no report"),)},
            "links: region us-east: Lost, last contact",
        ),
        ({"stuck": ("FinalizerStuck replica/a/b in us-east: x",)}, "stuck objects: FinalizerStuck replica/a/b"),
        ({"backups": (BackupFact("global", "", ""),)}, "backups: cell global: never backed up"),
        (
            {"backups": (BackupFact("global", ago(25 * HOUR_S), ago(1)),)},
            "backups: cell global: last backup 25.0 hours",
        ),
        ({"backups": (BackupFact("global", ago(1), ""),)}, "backups: cell global: no backup was ever restored"),
        ({"backups": (BackupFact("global", ago(1), ago(91 * DAY_S)),)}, "backups: cell global: last restore 91 days"),
        (
            {"backups": (BackupFact("global", ago(1), "", ago(92 * DAY_S)),)},
            "backups: cell global: last restore 92 days",
        ),
        (
            {"backups": (BackupFact("global", ago(1), "", ago(1), "disk full"),)},
            "backups: cell global: the last attempt to back up failed (disk full)",
        ),
        ({"alerts": (AlertFact("HoldfastRegionLost", "us-east"),)}, "alerts: alert HoldfastRegionLost: firing"),
        ({"alerts": (AlertFact("HoldfastRegionLost", "x", ago(-9)),)}, "alerts: alert HoldfastRegionLost: silenced"),
    ],
)
def test_problem_is_found_and_named(facts: dict[str, Any], found: str) -> None:
    (text,) = problems(**facts)
    assert text.startswith(found)


def test_facts_that_cannot_be_read_are_unknown_and_never_passed() -> None:
    found = review_fleet(FleetFacts(unread={"backups": "the platform is remote"}), NOW)
    unknown = {f.check: f.text for f in found if f.level is Level.UNKNOWN}
    assert set(unknown) == {"promises", "drills", "backups", "alerts"}
    assert unknown["backups"] == "the backups cannot be read (the platform is remote)"


@contextmanager
def monitoring(answers: dict[str, bytes]) -> Iterator[str]:
    """Serves recorded answers of Prometheus and Alertmanager."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def alert(name: str, state: str) -> dict[str, Any]:
    return {"state": state, "labels": {"alertname": name}, "annotations": {"summary": f"{name} says"}, "value": "1"}


def test_firing_alerts_and_active_silences_of_holdfast_are_read() -> None:
    alerts = [
        alert("HoldfastRegionLost", "firing"),
        alert("HoldfastPendingTooLong", "pending"),
        alert("Disk", "firing"),
    ]
    silence = {
        "id": "1",
        "status": {"state": "active"},
        "matchers": [{"name": "alertname", "value": "HoldfastUnbacked", "isRegex": False, "isEqual": True}],
        "endsAt": "2026-12-01T00:00:00Z",
        "comment": "known",
    }
    ended = {**silence, "status": {"state": "expired"}}
    answers = {
        "/api/v1/alerts": json.dumps({"status": "success", "data": {"alerts": alerts}}).encode(),
        "/api/v2/silences": json.dumps([silence, ended]).encode(),
    }
    with monitoring(answers) as url:
        assert firing_alerts(url) == (AlertFact("HoldfastRegionLost", "HoldfastRegionLost says"),)
        assert silences(f"{url}/") == (AlertFact("HoldfastUnbacked", "known", "2026-12-01T00:00:00Z"),)


def test_monitoring_that_does_not_answer_is_an_error_not_an_empty_list() -> None:
    with monitoring({"/api/v1/alerts": b"<html>"}) as url:
        with pytest.raises(CommandError, match="unexpected answer"):
            firing_alerts(url)
        with pytest.raises(CommandError, match="no answer"):
            silences(url)
    with pytest.raises(CommandError, match="no answer"):
        firing_alerts(url)
    with pytest.raises(CommandError, match="not a URL"):
        firing_alerts("file:///etc/passwd")
