"""Every alert fires and clears under a real Prometheus, each by the cause that deploy/alerts/drill.toml names.

Minutes long: `make prove STAGE=alerts`. At the end it prints how long each alert took. The rules are the shipped ones
with a `for` of one second, ranges of 20 seconds, and the thresholds of drill.toml.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.joined_agent import joined_agent
from tests.e2e.prometheus_server import RULES, Prometheus, running_prometheus, shortened_rules
from tests.e2e.test_access import person
from tests.e2e.test_full_disk import fill, small_disk
from tests.platforms import ROOT, TENANCY, V1, RunningPlatform, holdfast, running_platform, wait_until
from tests.proxy.haproxy_program import haproxy_program

from holdfast.client.sync_api import CellApi
from holdfast.drills import outage
from holdfast.drills.external_scheduler import PLACEMENT_PATH, proposal_item
from holdfast.drills.platform_observer import PlatformObserver
from holdfast.identity.certificates import issue
from holdfast.identity.node_certificates import validity_period
from holdfast.model.principal import REGIONS as REGION_GROUP
from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import Layout
from holdfast.platform.processes import identify, wait_exited
from holdfast.proxy.haproxy_process import CANDIDATE, CONFIG

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.waits,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="20 minutes long; make prove STAGE=alerts"),
]
DRILL: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "deploy/alerts/drill.toml").read_text())
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
RANGE_S = 20
GONE_FOR_S = 3.0
"""How long an alert must be gone to count as cleared. Rules are evaluated every second."""
EAST, WEST = "east", "west"
SMALL = {"cpu": "100m", "memory": "32Mi"}


class Drill:
    """One platform with its Prometheus, and how long each alert took."""

    def __init__(self, platform: RunningPlatform, prometheus: Prometheus) -> None:
        self.platform = platform
        self.prometheus = prometheus
        self.layout = Layout(platform.state)
        self.credentials = Credentials(self.layout)
        self.rows: dict[str, tuple[float, float]] = {}
        self._fired: dict[str, float] = {}

    def fires(
        self, began: float, *alerts: str, within_s: float = 120.0, meanwhile: Callable[[], Any] = lambda: None
    ) -> None:
        """Waits until each of the alerts was seen, counted from `began`. `meanwhile` keeps the cause up."""
        seen: dict[str, float] = {}

        def all_seen() -> bool:
            meanwhile()
            now = time.monotonic()
            for alert in self.prometheus.firing():
                if alert in alerts:
                    seen.setdefault(alert, now - began)
            return len(seen) == len(alerts)

        wait_until(all_seen, f"{', '.join(alerts)} fire: {DRILL[alerts[0]]['cause']}", within_s)
        self._fired.update(seen)

    def clears(self, began: float, *alerts: str, within_s: float = 180.0, in_outage: bool = False) -> None:
        """Waits until none of the alerts has fired for some evaluations. An alert also vanishes with the series of a
        cell that is down, which does not count, except during an outage that the test made."""
        done: dict[str, float] = {}

        def all_gone() -> bool:
            now, firing = time.monotonic(), self.prometheus.firing()
            watched = in_outage or self._all_cells_answer()
            for alert in alerts:
                if alert in firing or not watched:
                    done.pop(alert, None)
                else:
                    done.setdefault(alert, now - began)
            return len(done) == len(alerts) and now - began - max(done.values()) > GONE_FOR_S

        wait_until(all_gone, f"{', '.join(alerts)} clear: {DRILL[alerts[0]]['cleared']}", within_s)
        for alert in alerts:
            self.rows[alert] = (self._fired[alert], done[alert])

    def _all_cells_answer(self) -> bool:
        return [value for _, value in self.prometheus.values('up{job="holdfast"}')] == [1.0] * 3

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.platform.kubectl("--context", "global", *arguments, check=check)

    def workload(self, name: str, *, resources: dict[str, str] | None = None, **spec: Any) -> None:
        template: dict[str, Any] = {
            "command": spec.pop("command", ["sleep", "3600"]),
            "resources": resources or SMALL,
            "terminationGraceSeconds": spec.pop("grace", 1),
        }
        template |= {name: spec.pop(name) for name in ("probes", "ports") if name in spec}
        meta = {"name": name, "namespace": spec.pop("tenant", "acme")}
        whole = {"replicas": 1, "template": template, **spec}
        self.platform.apply({"apiVersion": V1, "kind": "Workload", "metadata": meta, "spec": whole})

    def object(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> None:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        self.platform.apply({"apiVersion": V1, "kind": kind, "metadata": meta, "spec": spec})

    def delete(self, name: str, tenant: str = "acme", *, wait: bool = True) -> None:
        self.kubectl("-n", tenant, "delete", "workload", name, f"--wait={str(wait).lower()}")

    def serves(self, name: str, tenant: str = "acme") -> None:
        self.kubectl("-n", tenant, "wait", f"workload/{name}", "--for=condition=Serving", "--timeout=100s")

    def restart(self, cell: str, between: Callable[[], Any]) -> None:
        """Stops the cell, does something to its files, and lets it start again."""
        name = f"cell-{cell}"
        outage.hold_down(self.layout, [name])
        process = identify(self.platform.pid(name))
        assert process is not None
        os.kill(process.pid, signal.SIGTERM)
        assert wait_exited(process, 60)
        between()
        outage.allow_restart(self.layout, [name])

        def is_ready() -> bool:
            cells = {each["name"]: each["ready"] for each in self.platform.status()["cells"]}
            return bool(cells[cell])

        wait_until(is_ready, f"{name} is ready")


@contextlib.contextmanager
def platform_with_haproxy(state: Path, patched: pytest.MonkeyPatch, *options: str) -> Iterator[RunningPlatform]:
    patched.setenv("PATH", f"{os.path.dirname(haproxy_program())}{os.pathsep}{os.environ['PATH']}")
    with running_platform(state, *options) as platform:
        yield platform


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    state = tmp_path_factory.mktemp("alerts") / "state"
    thresholds = {name: tuple(row["shortened"]) for name, row in DRILL.items() if "shortened" in row}
    rules = shortened_rules(thresholds, range_s=RANGE_S)
    options = ("--regions", f"{EAST},{WEST}", "--agents", "2", "--no-samples", "--proxy", EAST)
    with (
        pytest.MonkeyPatch.context() as patched,
        small_disk(Layout(state).cell("global"), size="256m"),
        platform_with_haproxy(state, patched, *options) as platform,
        running_prometheus(platform, tmp_path_factory.mktemp("prometheus"), rules) as prometheus,
    ):
        platform.apply(*TENANCY)
        made = Drill(platform, prometheus)
        endless = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
        made.workload("stubborn", command=endless, grace=3600, placement={"regions": [WEST]})
        made.serves("stubborn")
        made.delete("stubborn", wait=False)
        yield made


BACKGROUND_BEGAN = time.monotonic()


def test_backup_alerts(drill: Drill, tmp_path: Path) -> None:
    began = time.monotonic()
    drill.fires(began, "HoldfastBackupTooOld")
    cells = [(name, ("--cell", name, "--state", str(drill.layout.cell(name)))) for name in ("global", EAST, WEST)]
    acted = time.monotonic()
    for name, options in cells:
        holdfast("backup", *options, "--to", str(tmp_path / f"{name}.backup"))
    drill.clears(acted, "HoldfastBackupTooOld")
    began = time.monotonic()
    holdfast("backup", *cells[1][1], "--to-dir", "/proc/no-such-directory", check=False)
    drill.fires(began, "HoldfastBackupFailed")
    acted = time.monotonic()
    holdfast("backup", *cells[1][1], "--to-dir", str(tmp_path))
    drill.clears(acted, "HoldfastBackupFailed")


def test_break_glass_alerts(drill: Drill) -> None:
    own = ("--state", str(drill.platform.state))
    greta = person(drill.platform, "greta", "--role", "break-glass")
    session = ("--tenant", "acme", "--reason", "a drill of the alerts", "-o", "json", "--state", str(greta))

    def opened() -> str:
        done = holdfast("break-glass", "open", *session, check=False)
        return str(json.loads(done.stdout)["metadata"]["name"]) if done.returncode == 0 else ""

    began = time.monotonic()
    name = wait_until(opened, "greta's role is known and she opens a session")
    drill.fires(began, "HoldfastBreakGlassOpen")
    acted = time.monotonic()
    holdfast("break-glass", "close", name, *own)
    drill.fires(acted, "HoldfastBreakGlassUnreviewed")
    drill.clears(acted, "HoldfastBreakGlassOpen")
    acted = time.monotonic()
    holdfast("break-glass", "review", name, "--note", "a drill", *own)
    drill.clears(acted, "HoldfastBreakGlassUnreviewed")


def test_queue_and_policy_alerts(drill: Drill) -> None:
    began = time.monotonic()
    drill.workload("homeless", placement={"nodeSelector": {"disk": "none-has-it"}})
    drill.fires(began, "HoldfastPendingTooLong", "HoldfastQueueTooOld")
    guard = {"maxPendingSeconds": 1, "minDecisions": 1, "windowSeconds": 60, "action": "Pause"}
    rules = {"scores": [{"name": "Balance", "weight": 3}]}
    policy = {"stage": "Active", "rules": rules, "guard": guard}
    began = time.monotonic()
    drill.object("SchedulerPolicy", "default", policy)
    drill.workload("homeless-too", placement={"nodeSelector": {"disk": "none-has-it"}})  # pending since the change
    drill.fires(began, "HoldfastPolicyStopped", within_s=240)
    acted = time.monotonic()
    drill.kubectl("patch", "schedulerpolicy", "default", "--type=merge", "-p", '{"spec": {"guard": null}}')
    drill.clears(acted, "HoldfastPolicyStopped")
    acted = time.monotonic()
    for name in ("homeless", "homeless-too"):
        drill.delete(name)
    drill.clears(acted, "HoldfastQueueTooOld", "HoldfastPendingTooLong")


def test_slow_stage_alert(drill: Drill) -> None:
    began = time.monotonic()
    drill.workload(
        "slow",
        command=["sh", "-c", "sleep 5; touch ready; sleep 3600"],
        probes={"readiness": {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1}},
    )
    drill.fires(began, "HoldfastStageSlow")
    acted = time.monotonic()
    drill.clears(acted, "HoldfastStageSlow")
    drill.delete("slow")


def test_emergency_quota_alerts(drill: Drill) -> None:
    own = ("--state", str(drill.platform.state))
    drill.object("Tenant", "over", {})
    drill.object("Quota", "quota", {"hard": {"cpu": "100m", "memory": "1Gi"}}, "over")
    holdfast(
        "override",
        "create",
        "EmergencyQuota",
        "--name",
        "more",
        "--tenant",
        "over",
        "--quota",
        "cpu=1",
        "--reason",
        "drill",
        "--yes",
        *own,
    )
    second = holdfast("token", "create", "approver", "--operator", *own).stdout.strip()
    holdfast("override", "approve", "more", "--token", second, *own)
    # One replica may be unavailable at a time, and the second never becomes evictable before the drain deadline.
    drill.workload("greedy", tenant="over", replicas=3, disruption={"maxUnavailable": 0})
    drill.serves("greedy", "over")
    began = time.monotonic()
    holdfast("override", "revoke", "more", *own)
    drill.fires(began, "HoldfastTenantOverQuota", "HoldfastOverrideNotReverted")
    acted = time.monotonic()
    drill.kubectl("-n", "over", "scale", "workload", "greedy", "--replicas=1")
    drill.clears(acted, "HoldfastTenantOverQuota", "HoldfastOverrideNotReverted")
    drill.delete("greedy", "over")


def test_recovery_and_region_loss_alerts(drill: Drill) -> None:
    drill.object("Tenant", "shop", {})
    hard = {"hard": {"cpu": "1", "memory": "1Gi"}, "recoveryAllowance": {"cpu": "1", "memory": "1Gi"}}
    drill.object("Quota", "quota", hard, "shop")
    began = time.monotonic()
    objective = {"minServing": 1, "deadlineSeconds": 120}
    slow_start = ["sh", "-c", "sleep 12; touch ready; sleep 3600"]
    probes = {"readiness": {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1}}

    def critical(**placement: Any) -> None:
        drill.workload(
            "critical",
            tenant="shop",
            command=slow_start,
            probes=probes,
            placement={"spreadRegions": 1, **placement},
            recovery=objective,
        )

    critical(regions=[EAST])  # from there it is lost below
    drill.serves("critical", "shop")
    critical(regions=[EAST, WEST])
    drill.fires(began, "HoldfastObjectiveUnbacked")
    acted = time.monotonic()

    def budget(region: str, resources: dict[str, str]) -> None:
        shapes = [{"resources": resources, "count": 1}]
        drill.object("RecoveryBudget", f"shop-{region}", {"region": region, "slotShapes": shapes, "tenants": ["shop"]})

    for region in (EAST, WEST):
        budget(region, SMALL)
    drill.clears(acted, "HoldfastObjectiveUnbacked")
    began = time.monotonic()
    drill.object(
        "RecoveryBudget",
        "impossible",
        {"region": WEST, "slotShapes": [{"resources": {"cpu": "500"}, "count": 1}], "tenants": ["shop"]},
    )
    drill.fires(began, "HoldfastRecoverySlotsMissing")
    acted = time.monotonic()
    drill.kubectl("delete", "recoverybudget", "impossible")
    drill.clears(acted, "HoldfastRecoverySlotsMissing")

    names = outage.process_names(outage.region_plan(drill.layout.load(), EAST))
    outage.hold_down(drill.layout, names)
    began = time.monotonic()
    outage.kill_processes(drill.layout, names)
    first = ("HoldfastCellDown", "HoldfastLinkLag", "HoldfastRegionNotHealthy")
    recovery = ("HoldfastRecoverySlow", "HoldfastRecoveryBudgetExhausted")
    late = ("HoldfastGrantLeaseEndsSoon", "HoldfastGrantLeasesExpired")
    drill.fires(began, *first, *recovery, within_s=150)
    drill.clears(began, "HoldfastRecoverySlow", in_outage=True)
    drill.fires(began, *late, within_s=200)
    acted = time.monotonic()
    outage.allow_restart(drill.layout, names)
    drill.clears(acted, *first, *late, "HoldfastRecoveryBudgetExhausted", within_s=240)


def test_certificate_alerts(drill: Drill) -> None:
    pki, now = drill.layout.pki, time.time()
    began = time.monotonic()
    issue(pki, f"link-{EAST}", f"holdfast:region:{EAST}", (REGION_GROUP,), now_s=now, days=1, anew=True)
    drill.fires(began, "HoldfastCertificateExpires")
    acted = time.monotonic()
    holdfast("credentials", "rotate", "region", EAST, "--state", str(drill.platform.state))
    drill.clears(acted, "HoldfastCertificateExpires")

    files = drill.credentials.cell(EAST)
    kept = files.cert.read_bytes(), files.key.read_bytes()
    began = time.monotonic()
    issue(
        pki,
        f"cell-{EAST}",
        f"holdfast-cell-{EAST}",
        now_s=now,
        dns=("localhost",),
        ips=("127.0.0.1", "::1"),
        server=True,
        client=False,
        days=1,
        anew=True,
    )
    assert validity_period(files.cert.read_bytes())[1] < now + 2 * 86400
    drill.fires(began, "HoldfastServerCertificateExpires")
    acted = time.monotonic()
    files.cert.write_bytes(kept[0])
    files.key.write_bytes(kept[1])
    drill.clears(acted, "HoldfastServerCertificateExpires")


def test_node_certificate_and_fencing_alerts(drill: Drill) -> None:
    began = time.monotonic()
    with joined_agent(drill.platform, EAST, "brief", "--certificate", "1h") as agent:
        drill.fires(began, "HoldfastNodeCertificateExpires")
        acted = time.monotonic()
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait(30)
    drill.clears(acted, "HoldfastNodeCertificateExpires")
    observer = PlatformObserver(drill.layout, drill.layout.load())

    def is_fenced() -> bool:
        node = next(n for n in observer.list("nodes", EAST) if n["metadata"]["name"] == "brief")
        return bool(node.get("status", {}).get("fence"))

    wait_until(is_fenced, "the node is fenced", 120)
    drill.workload("waits", placement={"regions": [EAST], "nodeSelector": {"disk": "none-has-it"}})

    def waiting() -> list[Any]:
        return [r for r in observer.list("replicas", EAST) if r["spec"]["workload"] == "waits"]

    (replica,) = wait_until(waiting, "the replica is queued", 60)
    files = drill.credentials.issue_drill_scheduler()
    url = dict(drill.layout.load().cells)[EAST]
    api = CellApi(url, name=EAST, ca=files.ca, cert=files.cert, key=files.key, timeout_s=10.0)
    began = time.monotonic()
    refusals: set[str] = set()

    def propose() -> None:
        body = {"items": [proposal_item(replica, "brief")], "bind": True}
        for _ in range(10):
            answer: Any = api.request("POST", f"{PLACEMENT_PATH}/reserve", body)
            refusals.update(row.get("reason", "") for row in answer["results"])

    drill.fires(began, "HoldfastFencingRefusals", meanwhile=propose)
    assert refusals & {"NodeFenced", "NodeUnreachable"}
    acted = time.monotonic()
    drill.clears(acted, "HoldfastFencingRefusals")
    api.close()
    observer.close()
    drill.credentials.remove(files)
    drill.delete("waits")


def test_slow_store_alert(drill: Drill) -> None:
    program = shutil.which("strace")
    if program is None:
        pytest.fail("strace is missing; next: apt-get install strace")
    began = time.monotonic()
    inject = "inject=fdatasync,fsync:delay_enter=1000000"
    process = str(drill.platform.pid(f"cell-{WEST}"))
    tracer = subprocess.Popen(
        [program, "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject, "-p", process]
    )
    try:
        drill.fires(began, "HoldfastStoreSlow")
    finally:
        tracer.terminate()
        tracer.wait(30)
    drill.clears(time.monotonic(), "HoldfastStoreSlow")


def test_damaged_store_alert(drill: Drill) -> None:
    """A value of several pages that a later one has replaced: the cell starts without reading it."""
    file = drill.layout.cell("global") / "store.sqlite"
    places: list[int] = []
    for text in ("replaced " * 3000, "present"):
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large", "namespace": "acme"}}
        drill.platform.apply({**made, "data": {"text": text}})

    def flip_bit() -> None:
        if not places:
            places.append(file.read_bytes().rindex(b"replaced " * 100))
        with file.open("r+b") as store:
            store.seek(places[0])
            (byte,) = store.read(1)
            store.seek(places[0])
            store.write(bytes([byte ^ 1]))

    began = time.monotonic()
    drill.restart("global", flip_bit)
    try:
        drill.fires(began, "HoldfastStoreDamaged")
    finally:
        acted, acted_s = time.monotonic(), time.time()
        drill.restart("global", flip_bit)
    scrubbed = 'holdfast_store_scrubbed_timestamp_seconds{cell="global"}'
    # Before the first scrub, the metric of the restarted cell says nothing about the file.
    wait_until(lambda: any(at > acted_s for _, at in drill.prometheus.values(scrubbed)), "the store is scrubbed again")
    drill.clears(acted, "HoldfastStoreDamaged")


def test_lost_global_store_alert(drill: Drill, tmp_path: Path) -> None:
    folder = drill.layout.cell("global")
    options = ("--cell", "global", "--state", str(folder))
    drill.workload("kept")
    drill.serves("kept")
    holdfast("backup", *options, "--to", str(tmp_path / "global.backup"))

    def lose() -> None:
        for file in folder.glob("store.sqlite*"):
            file.unlink()
        holdfast("init-cell", *options, "--new-identity")

    began = time.monotonic()
    drill.restart("global", lose)
    drill.fires(began, "HoldfastRegionHoldsWork")
    acted = time.monotonic()
    backup = str(tmp_path / "global.backup")
    again = ("restore", *options, "--from", backup, "--replace", "--other-identity")
    drill.restart("global", lambda: holdfast(*again))
    drill.clears(acted, "HoldfastRegionHoldsWork")


def tasks_of(workload: str, state: Path) -> list[int]:
    """Processes of the workload's tasks on this platform, without their shims."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(state) in os.readlink(entry / "cwd"):
                environment = (entry / "environ").read_bytes().split(b"\0")
                if f"HOLDFAST_WORKLOAD={workload}".encode() in environment:
                    found.append(int(entry.name))
    return found


def test_stuck_deletion_alerts(drill: Drill) -> None:
    drill.fires(BACKGROUND_BEGAN, "HoldfastRepairBacklog", within_s=900)
    drill.fires(BACKGROUND_BEGAN, "HoldfastDeletionStuck", within_s=1200)
    acted = time.monotonic()
    for process in tasks_of("stubborn", drill.platform.state):
        os.kill(process, signal.SIGKILL)
    drill.clears(acted, "HoldfastDeletionStuck", "HoldfastRepairBacklog")


def test_entry_proxy_alerts(drill: Drill) -> None:
    name = f"proxy-{EAST}"
    began = time.monotonic()
    outage.hold_down(drill.layout, [name])
    assert outage.kill_processes(drill.layout, [name]) == 1
    drill.fires(began, "HoldfastProxyDown")
    acted = time.monotonic()
    outage.allow_restart(drill.layout, [name])
    drill.clears(acted, "HoldfastProxyDown")

    # A directory in the place of the next configuration: the proxy can write none.
    (in_the_way,) = [path.parent / CANDIDATE for path in drill.layout.root.rglob(CONFIG)]
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    began = time.monotonic()
    web = ["python3", "-m", "holdfast.samples.risk_api"]
    drill.workload("fronted", command=web, ports=[{"name": "http"}], placement={"regions": [EAST]})
    drill.fires(began, "HoldfastProxyReloadFails")
    acted = time.monotonic()
    in_the_way.rmdir()
    drill.clears(acted, "HoldfastProxyReloadFails")
    drill.delete("fronted")

    cells = ["cell-global", f"cell-{EAST}"]
    began = time.monotonic()
    outage.hold_down(drill.layout, cells)
    assert outage.kill_processes(drill.layout, cells) == 2
    drill.fires(began, "HoldfastProxyOutOfStep")
    acted = time.monotonic()
    outage.allow_restart(drill.layout, cells)
    drill.clears(acted, "HoldfastProxyOutOfStep")


def test_full_disk_alerts(drill: Drill) -> None:
    disk = drill.layout.cell("global")
    began = time.monotonic()
    alerts = ("HoldfastDiskFillsUp", "HoldfastStoreFull", "HoldfastNoLeader")
    drill.fires(began, *alerts, within_s=180, meanwhile=lambda: fill(disk))
    acted = time.monotonic()
    (disk / "ballast").unlink()
    drill.clears(acted, *alerts)


def test_every_alert_was_seen(drill: Drill, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{'ALERT':34} {'FIRED':>7} {'CLEARED':>7}  CAUSE")
        for alert in ALERTS:
            fired, cleared = drill.rows.get(alert, (-1.0, -1.0))
            times = [f"{seconds:.0f} s" if seconds >= 0 else "-" for seconds in (fired, cleared)]
            print(f"{alert:34} {times[0]:>7} {times[1]:>7}  {DRILL[alert]['cause']}")
    assert set(drill.rows) == set(ALERTS) == set(DRILL)
