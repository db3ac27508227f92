"""Two restores of one backup in a row, with a real platform: every region follows the newest era."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.platforms import RunningPlatform, holdfast, processes_of, running_platform, wait_until

from holdfast.drills import outage
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(400)]

WITHIN_S = 120.0


def manifest(kind: str, name: str, spec: dict[str, object], namespace: str = "") -> dict[str, object]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}


def sleeper(replicas: int) -> dict[str, object]:
    template = {"command": ["sleep", "1000"], "resources": {"cpu": "1", "memory": "64Mi"}}
    spec = {"replicas": replicas, "priorityClassName": "plain", "template": template}
    return manifest("Workload", "sleeper", spec, "acme")


def follows(running: RunningPlatform) -> str:
    """Empty if every region has acknowledged the newest restore and the quota is granted; otherwise what is missing."""
    text = running.kubectl("get", "regions,quotas", "-A", "-o", "json", check=False)
    try:
        items = json.loads(text)["items"]
    except ValueError:
        return f"no answer: {text[-200:]}"
    missing = []
    for item in items:
        status = item.get("status", {})
        if item["kind"] == "Region":
            wanted, found = status.get("restoreIncarnation", 0), status.get("report", {}).get("restoreAcknowledged", 0)
            if found < wanted or not status.get("report"):
                missing.append(f"{item['metadata']['name']} acknowledged {found} of {wanted}")
        elif [c["status"] for c in status.get("conditions", ()) if c["type"] == "Granted"] != ["True"]:
            missing.append(f"quota: {status.get('conditions')}")
    return ", ".join(missing)


def wait_until_followed(running: RunningPlatform, what: str) -> None:
    try:
        wait_until(lambda: not follows(running), within_s=WITHIN_S, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}: {follows(running)}") from error


def test_second_restore_of_the_same_backup_is_followed_by_regions(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_platform(state, "--regions", "us-east,eu-west", "--agents", "1", "--no-samples") as running:
        layout, saved = Layout(state), tmp_path / "saved"
        running.apply(
            manifest("Tenant", "acme", {}),
            manifest("PriorityClass", "plain", {"priority": 0}),
            manifest("Quota", "quota", {"hard": {"cpu": "8", "memory": "8Gi"}}, "acme"),
            sleeper(2),
        )
        wait_until_followed(running, "the quota is granted")
        place = ("--cell", "global", "--state", str(layout.cell("global")))
        holdfast("backup", *place, "--to", str(saved))
        for number in (1, 2, 3):
            outage.hold_down(layout, ["cell-global"])
            assert outage.kill_processes(layout, ["cell-global"]) == 1
            holdfast("restore", *place, "--from", str(saved), "--replace")
            outage.allow_restart(layout, ["cell-global"])
            wait_until_followed(running, f"every region follows restore {number}")
            # Writes of this era, so that its revisions pass those at the start of the next one.
            running.apply(sleeper(2 + number))
            wait_until_followed(running, f"the quota is granted after restore {number}")
    assert processes_of(state) == []
