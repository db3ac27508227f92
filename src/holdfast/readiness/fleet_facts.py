"""Reads the facts of a fleet review: from the cells, from the platform's directory, and from Prometheus if asked.

Reads only. A source that is not available makes its facts unknown, with the reason; it never makes them good.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.drills.platform_observer import Item, PlatformObserver
from holdfast.drills.promises import recovery_promises
from holdfast.drills.report_archive import kept_reports
from holdfast.drills.stuck_objects import find_stuck_objects
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.region import HealthState
from holdfast.platform.layout import Layout, Platform
from holdfast.readiness.fleet_review import (
    AlertFact,
    BackupFact,
    DrillFact,
    FleetFacts,
    OverrideFact,
    PromiseFact,
    RegionFact,
)
from holdfast.store.backup_record import read_backup_record

T = TypeVar("T")

ALERTS_S = 10.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
ALERT_PREFIX = "Holdfast"
REMOTE = "the platform is remote; run the review beside its directory"


def fleet_facts(layout: Layout, *, prometheus: str = "", alertmanager: str = "") -> FleetFacts:
    """The facts of a platform: local by its directory, or remote by a kubeconfig."""
    platform = layout.load()
    unread = {"drills": REMOTE, "backups": REMOTE} if layout.remote else {}
    alerts: tuple[AlertFact, ...] | None = None
    if prometheus or alertmanager:
        firing = firing_alerts(prometheus) if prometheus else ()
        alerts = (*firing, *(silences(alertmanager) if alertmanager else ()))
    else:
        unread["alerts"] = "no --prometheus or --alertmanager was given"
    observer = PlatformObserver(layout, platform)
    try:
        return FleetFacts(
            promises=tuple(_promise(row) for row in recovery_promises(layout)),
            regions=tuple(_region(item) for item in observer.list("regions")),
            overrides=_overrides(observer),
            stuck=tuple(_stuck(row) for row in find_stuck_objects(observer)),
            drills=None if layout.remote else _drills(layout),
            backups=None if layout.remote else _backups(layout, platform),
            alerts=alerts,
            unread=unread,
        )
    finally:
        observer.close()


def _promise(row: dict[str, Any]) -> PromiseFact:
    proof = row["lastProven"] or {}
    by = f"{proof['recovery']} in {proof['seconds']:.1f} s" if proof else ""
    return PromiseFact(row["promise"], row["text"], row["backed"], proof.get("at", ""), by)


def _region(item: Item) -> RegionFact:
    health = item.get("status", {}).get("health", {})
    state = HealthState(health.get("state", HealthState.UNKNOWN))
    return RegionFact(item["metadata"]["name"], state, health.get("lastContactAt", ""), health.get("message", ""))


def _overrides(observer: PlatformObserver) -> tuple[OverrideFact, ...]:
    found = []
    for cell in ("global", *observer.regions):
        for item in observer.try_list("overrides", cell) or ():
            status = item.get("status", {})
            pending = any(c["type"] == "Reverted" and c["status"] != "True" for c in status.get("conditions", ()))
            phase, expires_at = status.get("phase", ""), status.get("expiresAt", "")
            found.append(OverrideFact(item["metadata"]["name"], cell, phase, expires_at, reverted=not pending))
    return tuple(found)


def _stuck(row: dict[str, Any]) -> str:
    return f"{row['what']} {row['object']} in {row['cell']}: {row.get('message', '')}"


def _drills(layout: Layout) -> tuple[DrillFact, ...]:
    newest: dict[tuple[str, str], DrillFact] = {}
    for kept in kept_reports(layout):
        key = (kept.report.drill, kept.region)
        if key not in newest and kept.report.started_at:
            newest[key] = DrillFact(*key, kept.report.passed, kept.report.started_at, kept.id)
    return tuple(newest.values())


def _backups(layout: Layout, platform: Platform) -> tuple[BackupFact, ...]:
    records = ((name, read_backup_record(layout.cell(name))) for name, _ in platform.cells)
    return tuple(
        BackupFact(name, record.made_at, record.restored_at, record.verified_at, record.failure)
        for name, record in records
    )


# Alerts


class _FiringAlert(msgspec.Struct):
    state: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Alerts(msgspec.Struct):
    alerts: list[_FiringAlert] = []


class _AlertsAnswer(msgspec.Struct):
    data: _Alerts


class _Matcher(msgspec.Struct, rename="camel"):
    name: str
    value: str


class _SilenceStatus(msgspec.Struct):
    state: str = ""


class _Silence(msgspec.Struct, rename="camel"):
    status: _SilenceStatus
    matchers: list[_Matcher] = []
    ends_at: str = ""
    comment: str = ""


def firing_alerts(url: str) -> tuple[AlertFact, ...]:
    """The alerts of Holdfast that fire now, by Prometheus (`/api/v1/alerts`)."""
    answer = _fetch(url, "/api/v1/alerts", _AlertsAnswer)
    found = {
        alert.labels["alertname"]: alert.annotations.get("summary", "")
        for alert in answer.data.alerts
        if alert.state == "firing" and alert.labels.get("alertname", "").startswith(ALERT_PREFIX)
    }
    return tuple(AlertFact(name, summary) for name, summary in sorted(found.items()))


def silences(url: str) -> tuple[AlertFact, ...]:
    """The active silences that name an alert of Holdfast, by Alertmanager (`/api/v2/silences`)."""
    answer = _fetch(url, "/api/v2/silences", list[_Silence])
    return tuple(
        AlertFact(matcher.value, silence.comment or "no comment", silence.ends_at or "it is ended by hand")
        for silence in answer
        if silence.status.state == "active"
        for matcher in silence.matchers
        if matcher.name == "alertname" and ALERT_PREFIX in matcher.value
    )


def _fetch(url: str, path: str, type_: type[T]) -> T:
    if urlsplit(url).scheme not in ("http", "https"):
        raise CommandError(f"{url}: not a URL (expected http:// or https://)", code=ExitCode.USAGE)
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=ALERTS_S) as answer:
            content: bytes = answer.read(ANSWER_BYTES_MAX + 1)
    except (urllib.error.URLError, OSError) as error:
        why = str(getattr(error, "reason", error)) or type(error).__name__
        text = f"{url}: no answer ({why})"
        raise CommandError(
            text, next_step="correct the URL, or leave the option out", code=ExitCode.UNREACHABLE
        ) from None
    if len(content) > ANSWER_BYTES_MAX:
        raise CommandError(f"{url}: answer too large (limit {ANSWER_BYTES_MAX} bytes)")
    try:
        return msgspec.json.decode(content, type=type_)
    except msgspec.DecodeError as error:
        raise CommandError(f"{url}: unexpected answer of {path} ({error})", next_step="correct the URL") from None
