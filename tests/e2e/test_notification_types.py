"""Each type of notification that the other tests of notifications do not cause, sent by its cause.

Minutes long: `make prove STAGE=alerts`. Weeks pass by a step of the wall clock of every process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_notifications import KEY, Receiver, receiving
from tests.e2e.test_overdue_finalizer import STEP_OF_THE_WALL_CLOCK
from tests.platforms import TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.identity.certificates import issue
from holdfast.model.notification import NotificationType
from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import Layout

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="takes minutes; make prove STAGE=alerts runs it"),
]
EAST, WEST = "east", "west"
SMALL = {"cpu": "100m", "memory": "32Mi"}
DAY_S = 86_400
SEEN_ELSEWHERE = {
    "Test": "test_notifications.py",
    "RegionLost": "test_notifications.py",
    "BackupFailed": "test_notifications.py",
    "BreakGlassUsed": "test_notifications.py",
    "RecoveryStarted": "test_scheduled_drills.py",
    "Recovered": "test_scheduled_drills.py",
    "DrillFailed": "test_scheduled_drills.py",
}


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clock") / "offset"
    path.write_text("0")
    return path


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, clock: Path) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("step")
    (folder / "sitecustomize.py").write_text(STEP_OF_THE_WALL_CLOCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("TEST_CLOCK_OFFSET", str(clock))
        state = tmp_path_factory.mktemp("types") / "state"
        with running_platform(state, "--regions", f"{EAST},{WEST}", "--agents", "1", "--no-samples") as running:
            running.apply(*TENANCY)
            meta = {"name": "hook", "namespace": "acme"}
            value = {"signingKey": KEY.decode()}
            running.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": value})
            yield running


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory, platform: RunningPlatform) -> Iterator[Receiver]:
    with receiving(tmp_path_factory.mktemp("receiver"), "everything") as found:
        platform.apply(found.spec())
        yield found


def apply(platform: RunningPlatform, kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> None:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    platform.apply({"apiVersion": V1, "kind": kind, "metadata": meta, "spec": spec})


def workload(platform: RunningPlatform, name: str, tenant: str, **spec: Any) -> None:
    template = {"command": spec.pop("command", ["sleep", "3600"]), "resources": SMALL, "terminationGraceSeconds": 1}
    if "probes" in spec:
        template["probes"] = spec.pop("probes")
    apply(platform, "Workload", name, {"replicas": 1, "template": template, **spec}, tenant)


def serves(platform: RunningPlatform, name: str, tenant: str) -> None:
    platform.kubectl("-n", tenant, "wait", f"workload/{name}", "--for=condition=Serving", "--timeout=100s")


def states(receiver: Receiver, kind: str) -> set[str]:
    return {body["data"]["state"] for body in receiver.bodies(kind)}


def wait_for(receiver: Receiver, kind: str, *wanted: str, within_s: float = 240.0) -> None:
    wait_until(lambda: set(wanted) <= states(receiver, kind), f"{kind} is sent as {', '.join(wanted)}", within_s)


def test_unbacked_promise_and_missed_recovery_are_sent(platform: RunningPlatform, receiver: Receiver) -> None:
    apply(platform, "Tenant", "shop", {})
    hard = {"hard": {"cpu": "1", "memory": "1Gi"}, "recoveryAllowance": {"cpu": "1", "memory": "1Gi"}}
    apply(platform, "Quota", "quota", hard, "shop")

    def critical(regions: list[str]) -> None:
        workload(
            platform,
            "critical",
            "shop",
            command=["sh", "-c", "sleep 40; touch ready; sleep 3600"],
            probes={"readiness": {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1}},
            placement={"spreadRegions": 1, "regions": regions},
            recovery={"minServing": 1, "deadlineSeconds": 30},
        )

    critical([EAST])
    serves(platform, "critical", "shop")
    critical([EAST, WEST])
    wait_for(receiver, "PromiseUnbacked", "Raised")
    for region in (EAST, WEST):
        shapes = [{"resources": SMALL, "count": 1}]
        apply(
            platform, "RecoveryBudget", f"shop-{region}", {"region": region, "slotShapes": shapes, "tenants": ["shop"]}
        )
    wait_for(receiver, "PromiseUnbacked", "Raised", "Resolved")

    layout = Layout(platform.state)
    names = outage.process_names(outage.region_plan(layout.load(), EAST))
    outage.hold_down(layout, names)
    outage.kill_processes(layout, names)
    try:
        wait_for(receiver, "RecoveryMissed", "Occurred", within_s=180)  # the replica needs 40 s, the promise is 30 s
        wait_for(receiver, "Recovered", "Occurred")
    finally:
        outage.allow_restart(layout, names)
    wait_for(receiver, "RegionLost", "Raised", "Resolved", within_s=180)


def test_override_that_ends_soon_and_override_without_revert_are_sent(
    platform: RunningPlatform, receiver: Receiver
) -> None:
    own = ("--state", str(platform.state))
    apply(platform, "Tenant", "over", {})
    apply(platform, "Quota", "quota", {"hard": {"cpu": "100m", "memory": "1Gi"}}, "over")
    words = ("EmergencyQuota", "--name", "more", "--tenant", "over", "--quota", "cpu=1", "--reason", "test", "--yes")
    holdfast("override", "create", *words, *own)
    second = holdfast("token", "create", "approver", "--operator", *own).stdout.strip()
    holdfast("override", "approve", "more", "--token", second, *own)
    workload(platform, "greedy", "over", replicas=3, disruption={"maxUnavailable": 0})
    serves(platform, "greedy", "over")
    spec = {"kind": "PauseAutoscaler", "reason": "ends soon", "scope": {"tenant": "over"}, "ttlSeconds": 60}
    apply(platform, "Override", "brief", spec)
    holdfast("override", "revoke", "more", *own)
    wait_for(receiver, "OverrideOverdue", "Raised")
    platform.kubectl("-n", "over", "scale", "workload", "greedy", "--replicas=1")
    wait_for(receiver, "OverrideOverdue", "Raised", "Resolved")
    wait_for(receiver, "OverrideExpires", "Occurred")
    (body,) = receiver.bodies("OverrideExpires")
    assert body["data"]["subject"]["name"] == "brief"


def test_certificate_that_was_not_renewed_is_sent(platform: RunningPlatform, receiver: Receiver) -> None:
    layout = Layout(platform.state)
    files = Credentials(layout).cell(EAST)
    kept = files.cert.read_bytes(), files.key.read_bytes()
    issue(
        layout.pki,
        f"cell-{EAST}",
        f"holdfast-cell-{EAST}",
        now_s=time.time(),
        dns=("localhost",),
        ips=("127.0.0.1", "::1"),
        server=True,
        client=False,
        days=1,
        anew=True,
    )
    wait_for(receiver, "CertificateExpires", "Raised")
    files.cert.write_bytes(kept[0])
    files.key.write_bytes(kept[1])
    wait_for(receiver, "CertificateExpires", "Raised", "Resolved")


def test_region_that_holds_work_after_a_restore_is_sent(
    platform: RunningPlatform, receiver: Receiver, tmp_path: Path
) -> None:
    """The restored cell knows the receiver, and not the workload that was created after the backup."""
    layout, name = Layout(platform.state), "cell-global"
    options = ("--cell", "global", "--state", str(layout.cell("global")))
    holdfast("backup", *options, "--to", str(tmp_path / "global.backup"))
    workload(platform, "later", "acme", placement={"regions": [WEST]})
    serves(platform, "later", "acme")
    outage.hold_down(layout, [name])
    outage.kill_processes(layout, [name])
    holdfast("restore", *options, "--from", str(tmp_path / "global.backup"), "--replace")
    outage.allow_restart(layout, [name])
    wait_for(receiver, "RegionHoldsWork", "Raised", within_s=180)


def test_old_backup_and_old_proof_are_sent(platform: RunningPlatform, receiver: Receiver, clock: Path) -> None:
    clock.write_text(str(DAY_S + 3600))
    wait_for(receiver, "BackupTooOld", "Raised")
    clock.write_text(str(31 * DAY_S))
    wait_for(receiver, "PromiseNotProven", "Raised")
    subjects = {body["data"]["subject"]["name"] for body in receiver.bodies("PromiseNotProven")}
    assert subjects <= {f"shop-{EAST}", f"shop-{WEST}"}


def test_every_type_was_sent(receiver: Receiver) -> None:
    wanted = {kind.value for kind in NotificationType} - set(SEEN_ELSEWHERE)
    assert {kind for kind in wanted if receiver.bodies(kind)} == wanted
