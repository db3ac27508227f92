"""On real processes: isolation of a dedicated tenant, its disruption budget during a drain, rotation and revocation of
credentials, and break-glass overrides in a partitioned region."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.drilled import holdfast
from tests.platforms import V1, running_platform, wait_until

from holdfast.drills.platform_observer import PlatformObserver, serves
from holdfast.model.node import Node, unschedulable_reason
from holdfast.platform.credentials import Credentials
from holdfast.platform.layout import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]
MERGE = "application/merge-patch+json"


class Platform:
    def __init__(self, state: Path) -> None:
        self.layout = Layout(state)
        self.plan = self.layout.load()
        self.observer = PlatformObserver(self.layout, self.plan)

    def apply(self, kind: str, plural: str, name: str, spec: dict[str, Any], namespace: str = "") -> None:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": V1, "kind": kind, "metadata": meta, "spec": spec}
        self.observer.api().apply(body, plural, manager="test")

    def workload(self, tenant: str, name: str, replicas: int, **spec: Any) -> None:
        probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
        template = {
            "command": ["sleep", "10000"],
            "resources": {"cpu": "100m", "memory": "32Mi"},
            "probes": {"readiness": probe},
            "terminationGraceSeconds": 1,
        }
        workload_spec = {"replicas": replicas, "template": template, "placement": {"regions": ["eu-west"]}, **spec}
        self.apply("Workload", "workloads", name, workload_spec, tenant)

    def serving(self, tenant: str, name: str) -> dict[str, str]:
        """Serving replicas and their nodes."""
        found = self.observer.list("replicas", "eu-west")
        own = [r for r in found if (r["metadata"]["namespace"], r["spec"]["workload"]) == (tenant, name)]
        return {r["metadata"]["name"]: r["status"]["placement"]["node"] for r in own if serves(r)}

    def live_nodes(self) -> set[str]:
        found = self.observer.list("nodes", "eu-west")
        return {n["metadata"]["name"] for n in found if not unschedulable_reason(msgspec.convert(n, Node))}

    def health(self, region: str) -> str:
        return str(self.observer.get("regions", region)["status"].get("health", {}).get("state", ""))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    state = tmp_path_factory.mktemp("isolation") / "platform"
    with running_platform(state, "--no-samples", "--regions", "us-east,eu-west"):
        agents: list[subprocess.Popen[bytes]] = []
        try:
            opened = Platform(state)
            for number in (1, 2):
                agents.append(start_agent(opened, f"vault-{number}", 41000 + 100 * number))
            wait_until(
                lambda: opened.live_nodes() >= {"vault-1", "vault-2"}, "the machines of the tenant are registered"
            )
            yield opened
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait(30)


def start_agent(platform: Platform, name: str, port: int) -> subprocess.Popen[bytes]:
    """Starts the agent of a machine of the dedicated tenant."""
    region = next(r for r in platform.plan.regions if r.name == "eu-west")
    files = Credentials(platform.layout).issue_drill_node("eu-west", name)
    arguments = [
        "agent",
        "--name",
        name,
        "--region",
        "eu-west",
        "--zone",
        region.zones[0],
        "--url",
        region.url,
        "--ca",
        str(files.ca),
        "--cert",
        str(files.cert),
        "--key",
        str(files.key),
        "--tenant",
        "vault",
        "--state",
        str(platform.layout.agent(name)),
        "--ports",
        f"{port}-{port + 49}",
        "--stop-work-on-exit",
        "--capacity",
        "cpu=4",
        "--capacity",
        "memory=8Gi",
    ]
    with platform.layout.log(f"agent-{name}").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "holdfast.cli", *arguments], stdout=log, stderr=log)


def test_dedicated_tenant_shares_no_node_and_drain_respects_budget(platform: Platform) -> None:
    platform.apply("PriorityClass", "priorityclasses", "standard", {"priority": 100})
    for tenant, isolation in (("vault", "Dedicated"), ("crowd", "Shared")):
        platform.apply("Tenant", "tenants", tenant, {"isolation": isolation})
        platform.apply("Quota", "quotas", "quota", {"hard": {"cpu": "16", "memory": "32Gi"}}, tenant)
    platform.workload("vault", "billing-api", 4, disruption={"maxUnavailable": 1})
    platform.workload("crowd", "noise", 8)
    wait_until(lambda: len(platform.serving("vault", "billing-api")) == 4, "billing-api serves")
    wait_until(lambda: len(platform.serving("crowd", "noise")) == 8, "the others serve")
    assert set(platform.serving("vault", "billing-api").values()) == {"vault-1", "vault-2"}
    assert not set(platform.serving("crowd", "noise").values()) & {"vault-1", "vault-2"}

    api = platform.observer.api("eu-west")
    api.request("PATCH", f"/apis/{V1}/nodes/vault-1", {"spec": {"drain": True}}, content_type=MERGE)
    fewest = 4

    def moved() -> bool:
        nonlocal fewest
        now = platform.serving("vault", "billing-api")
        fewest = min(fewest, len(now))
        return len(now) == 4 and set(now.values()) == {"vault-2"}

    wait_until(moved, "billing-api has left the drained node", within_s=90)
    assert fewest >= 3, f"{fewest} of 4 served during the drain; the budget allows one unavailable"
    assert not set(platform.serving("crowd", "noise").values()) & {"vault-1", "vault-2"}
    api.request("PATCH", f"/apis/{V1}/nodes/vault-1", {"spec": {"drain": False}}, content_type=MERGE)


def run_command(platform: Platform, *arguments: str, ok: bool = True) -> Any:
    ran = holdfast(*arguments, "--state", str(platform.layout.root), timeout_s=90)
    assert (ran.returncode == 0) is ok, ran.stdout + ran.stderr
    return json.loads(ran.stdout) if ok and "json" in arguments else ran.stderr


def credentials(platform: Platform) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["holder"], row["name"]): row for row in run_command(platform, "credentials", "list", "-o", "json")}


def test_rotated_credentials_interrupt_nothing(platform: Platform) -> None:
    wait_until(lambda: platform.health("us-east") == "Healthy", "the region is healthy")
    record = platform.layout.record("cell-us-east").read_text()
    before = credentials(platform)
    for holder, name in (("region", "us-east"), ("node", "us-east-1")):
        run_command(platform, "credentials", "rotate", holder, name, "-o", "json")
        after = credentials(platform)
        assert after[holder, name]["serial"] != before[holder, name]["serial"] and not after[holder, name]["revoked"]
    assert platform.layout.record("cell-us-east").read_text() == record, "the cell was not restarted"
    assert platform.health("us-east") == "Healthy"
    override_object = run_command(platform, "credentials", "rotate", "region", "atlantis", ok=False)
    assert "region atlantis: not found" in override_object and "eu-west" in override_object


def test_revoked_node_is_fenced_and_rejoins_only_with_its_token(platform: Platform) -> None:
    run_command(platform, "credentials", "revoke", "node", "us-east-2", "-o", "json")
    assert credentials(platform)["node", "us-east-2"]["revoked"]

    def contact() -> str:
        node = platform.observer.get("nodes", "us-east-2", cell="us-east")
        return str(node["status"].get("contact", {}).get("state", ""))

    wait_until(lambda: contact() != "Live", "the region lost contact with the node", 60)
    run_command(platform, "credentials", "rotate", "node", "us-east-2", "-o", "json")
    wait_until(lambda: contact() == "Live", "the node is in contact again", 60)


def test_revoked_region_accepts_break_glass_and_reports_it_on_return(platform: Platform) -> None:
    arguments = ("override", "create", "PauseRepair", "--break-glass", "--region", "us-east", "--yes", "-o", "json")
    error = run_command(platform, *arguments, "--reason", "too early", ok=False)
    assert "is connected to the global cell since" in error
    run_command(platform, "credentials", "revoke", "region", "us-east", "-o", "json")
    wait_until(lambda: platform.health("us-east") != "Healthy", "the global cell lost contact with the region")
    assert platform.health("eu-west") == "Healthy", "another region is not affected"
    options = ("--reason", "cut off", "--name", "break-glass-us-east-1", "--ttl", "900")
    wait_until(
        lambda: holdfast(*arguments, *options, "--state", str(platform.layout.root), timeout_s=30).returncode == 0,
        "the region accepts the override",
    )
    refused = run_command(platform, *arguments, "--reason", "x", "--ttl", "7200", ok=False)
    assert "must be at most 1800 for break-glass" in refused
    run_command(platform, "credentials", "rotate", "region", "us-east", "-o", "json")
    wait_until(lambda: platform.health("us-east") == "Healthy", "the region is in contact with its new credentials")

    def record() -> dict[str, Any] | None:
        listed = platform.observer.list("overrides")
        return next((o for o in listed if o["metadata"]["name"] == "break-glass-us-east-1"), None)

    override_object = wait_until(record, "the global cell has the override")
    assert override_object["spec"]["requester"] == "operator" and override_object["spec"]["reason"] == "cut off"
    assert (
        override_object["spec"]["breakGlass"]["region"] == "us-east"
        and override_object["spec"]["breakGlass"]["requestedTtlSeconds"] == 900
    )
    assert override_object["spec"]["ttlSeconds"] < 900
    run_command(platform, "override", "revoke", "break-glass-us-east-1", "-o", "json")
    wait_until(
        lambda: (
            platform.observer.get("overrides", "break-glass-us-east-1", cell="us-east")["status"]["phase"] == "Revoked"
        ),
        "a revocation at the global cell ends it in the region",
    )
