"""Processes that hang (SIGSTOP) rather than die: connections stay open and nothing is answered. Each is noticed soon.

Reports are sent every 5 s, so the last contact may be up to 5 s before the hang.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import RunningPlatform, holdfast, running_platform, wait_until

from holdfast.drills.platform_observer import PlatformObserver
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
NOTICED_WITHIN_S = 10.0
POLLING_S = 2.0
"""The requests of the test itself, on a busy machine."""
CONTACT = "/apis/coordination.k8s.io/v1/namespaces/holdfast-system/leases/global-cell"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("hung") / "platform"
    with running_platform(state, "--regions", "a,b", "--agents", "1", "--no-samples") as running:
        yield running


@pytest.fixture
def observer(platform: RunningPlatform) -> Iterator[PlatformObserver]:
    layout = Layout(str(platform.state))
    found = PlatformObserver(layout, layout.load())
    yield found
    found.close()


@contextmanager
def stopped(pid: int) -> Iterator[float]:
    """The process hangs inside the block. Yields the time at which it was stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        os.kill(pid, signal.SIGCONT)


def seconds_until(condition: Callable[[], Any], began_s: float, what: str) -> float:
    wait_until(condition, what, within_s=60)
    return time.monotonic() - began_s


def has_contact(observer: PlatformObserver, region: str) -> bool:
    return bool(observer.api(region).get(CONTACT)["spec"].get("holderIdentity"))


def apply_web(observer: PlatformObserver, command: list[str]) -> None:
    """A service of two replicas, with a quota. A rollout that does not progress for 5 s is rolled back."""
    template = {
        "command": command,
        "resources": {"cpu": "100m", "memory": "32Mi"},
        "terminationGraceSeconds": 1,
        "probes": {"readiness": {"exec": {"command": ["true"]}, "periodSeconds": 1}},
    }
    rollout = {"progressDeadlineSeconds": 5, "maxSurge": 1}
    web = {"replicas": 2, "template": template, "rollout": rollout}
    for plural, kind, namespace, name, spec in (
        ("tenants", "Tenant", "", "shop", {}),
        ("priorityclasses", "PriorityClass", "", "standard", {"tenants": ["*"]}),
        ("quotas", "Quota", "shop", "quota", {"hard": {"cpu": "4", "memory": "4Gi"}}),
        ("workloads", "Workload", "shop", "web", web),
    ):
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}
        observer.api().apply(body, plural, manager="test")


def web_serves(observer: PlatformObserver) -> bool:
    (found,) = [w for w in observer.list("workloads") if w["metadata"]["name"] == "web"]
    return bool(found.get("status", {}).get("summary", {}).get("serving", 0) >= 2)


def lacks_contact(observer: PlatformObserver, region: str) -> bool:
    return not has_contact(observer, region)


def give(state: Path, *more: str) -> str:
    arguments = ("PauseRepair", "--break-glass", "--region", "a", "--ttl", "300", "--reason", "the global cell hangs")
    made = holdfast("override", "create", *arguments, "--yes", *more, "--state", str(state), check=False)
    return made.stderr if made.returncode else ""


def test_hung_global_cell_is_noticed_and_break_glass_needs_no_wait(
    platform: RunningPlatform, observer: PlatformObserver
) -> None:
    wait_until(lambda: has_contact(observer, "a") and has_contact(observer, "b"), "both regions have contact")
    with stopped(platform.pid("cell-global")) as began_s:
        refused = give(platform.state, "--name", "break-glass-a-1")
        assert "GlobalCellReachable" in refused or "is connected to the global cell" in refused
        assert "--insist" in refused, "the refusal names what a person can do at once"
        assert not give(platform.state, "--name", "break-glass-a-2", "--insist")
        for region in ("a", "b"):
            took_s = seconds_until(partial(lacks_contact, observer, region), began_s, f"{region} notices")
            print(f"region {region}: the hung global cell was noticed after {took_s:.1f} s")
            assert took_s < NOTICED_WITHIN_S + POLLING_S
        assert not give(platform.state, "--name", "break-glass-a-3")
    wait_until(lambda: has_contact(observer, "a"), "contact again", within_s=30)

    def records() -> dict[str, dict[str, Any]]:
        return {o["metadata"]["name"]: o["spec"].get("breakGlass", {}) for o in observer.list("overrides")}

    wait_until(lambda: {"break-glass-a-2", "break-glass-a-3"} <= set(records()), "both are recorded", within_s=60)
    assert records()["break-glass-a-2"]["insisted"] is True
    assert not records()["break-glass-a-3"].get("insisted")


def test_hung_region_is_suspect_within_ten_seconds(platform: RunningPlatform, observer: PlatformObserver) -> None:
    def state() -> str:
        found = {r["metadata"]["name"]: r for r in observer.list("regions")}
        return str(found["b"]["status"]["health"]["state"])

    wait_until(lambda: state() == "Healthy", "b is healthy", within_s=60)
    with stopped(platform.pid("cell-b")) as began_s:
        took_s = seconds_until(lambda: state() != "Healthy", began_s, "b is not healthy")
        print(f"the hung region was noticed after {took_s:.1f} s")
        assert took_s < NOTICED_WITHIN_S + POLLING_S
    wait_until(lambda: state() == "Healthy", "b is healthy again", within_s=60)


def test_hung_agent_is_told_before_its_lease_ends(platform: RunningPlatform, observer: PlatformObserver) -> None:
    (node,) = (n["metadata"]["name"] for n in observer.list("nodes", "a"))

    def contact() -> dict[str, Any]:
        (found,) = observer.list("nodes", "a")
        block: dict[str, Any] = found["status"]["contact"]
        return block

    wait_until(lambda: contact()["reason"] == "LeaseRenewed", "the agent renews", within_s=60)
    with stopped(platform.pid(f"agent-{node}")) as began_s:
        took_s = seconds_until(lambda: contact()["reason"] == "RenewalLate", began_s, "the renewal is late")
        print(f"the hung agent was told after {took_s:.1f} s")
        assert took_s < NOTICED_WITHIN_S + POLLING_S and contact()["state"] == "Live"
    wait_until(lambda: contact()["reason"] == "LeaseRenewed", "the agent renews again", within_s=60)


def test_explain_works_without_the_global_cell(platform: RunningPlatform, observer: PlatformObserver) -> None:
    apply_web(observer, ["sleep", "10000"])
    wait_until(lambda: web_serves(observer), "web serves", within_s=90)
    found = [(region, replica) for region in ("a", "b") for replica in observer.list("replicas", region)]
    name = found[0][1]["metadata"]["name"]
    with stopped(platform.pid("cell-global")):
        for subject, says in ((f"shop/{name}", "Serving"), ("shop/web", "the global cell does not answer")):
            told = holdfast("explain", subject, "--state", str(platform.state), check=False)
            assert told.returncode == 0, told.stderr
            assert says in told.stdout
        missing = holdfast("explain", "shop/nothing", "--state", str(platform.state), check=False)
        assert missing.returncode != 0 and "not found in any region" in missing.stderr


def test_status_of_a_rolled_back_rollout_fails_without_waiting(
    platform: RunningPlatform, observer: PlatformObserver
) -> None:
    apply_web(observer, ["sleep", "10000"])
    wait_until(lambda: web_serves(observer), "web serves", within_s=90)
    apply_web(observer, ["false"])

    def status() -> tuple[int, str]:
        told = holdfast("rollout", "status", "shop/web", "--no-wait", "--state", str(platform.state), check=False)
        return told.returncode, told.stdout + told.stderr

    wait_until(lambda: "RolledBack" in status()[1], "the rollout is rolled back", within_s=90)
    code, text = status()
    assert code == 1 and "ended in phase RolledBack" in text
