"""On real processes: a dedicated tenant's work and nodes stay apart, its disruption budget holds through a drain;
credentials of regions and nodes are replaced and revoked; a region that is cut off takes break-glass overrides."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from drilled import holdfast
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
        self.watcher = PlatformObserver(self.layout, self.plan)

    def apply(self, kind: str, plural: str, name: str, spec: dict, namespace: str = "") -> None:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": V1, "kind": kind, "metadata": meta, "spec": spec}
        self.watcher.api().apply(body, plural, manager="test")

    def workload(self, tenant: str, name: str, replicas: int, **spec: Any) -> None:
        probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
        template = {
            "command": ["sleep", "10000"], "resources": {"cpu": "100m", "memory": "32Mi"},
            "probes": {"readiness": probe}, "terminationGraceSeconds": 1,
        }  # fmt: skip
        given = {"replicas": replicas, "template": template, "placement": {"regions": ["eu-west"]}, **spec}
        self.apply("Workload", "workloads", name, given, tenant)

    def serving(self, tenant: str, name: str) -> dict[str, str]:
        """Serving replicas and their nodes."""
        found = self.watcher.list("replicas", "eu-west")
        mine = [r for r in found if (r["metadata"]["namespace"], r["spec"]["workload"]) == (tenant, name)]
        return {r["metadata"]["name"]: r["status"]["placement"]["node"] for r in mine if serves(r)}

    def live_nodes(self) -> set[str]:
        found = self.watcher.list("nodes", "eu-west")
        return {n["metadata"]["name"] for n in found if not unschedulable_reason(msgspec.convert(n, Node))}

    def health(self, region: str) -> str:
        return self.watcher.get("regions", region)["status"].get("health", {}).get("state", "")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    state = tmp_path_factory.mktemp("isolation") / "platform"
    with running_platform(state, "--no-samples", "--regions", "us-east,eu-west"):
        agents: list[subprocess.Popen[bytes]] = []
        try:
            made = Platform(state)
            for number in (1, 2):
                agents.append(start_agent(made, f"vault-{number}", 41000 + 100 * number))
            wait_until(lambda: made.live_nodes() >= {"vault-1", "vault-2"}, "the machines of the tenant are there")
            yield made
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait(30)


def start_agent(platform: Platform, name: str, port: int) -> subprocess.Popen[bytes]:
    """A machine of the dedicated tenant, as its owner would start it."""
    region = next(r for r in platform.plan.regions if r.name == "eu-west")
    files = Credentials(platform.layout).issue_drill_node("eu-west", name)
    words = [
        "agent", "--name", name, "--region", "eu-west", "--zone", region.zones[0], "--url", region.url,
        "--ca", str(files.ca), "--cert", str(files.cert), "--key", str(files.key), "--tenant", "vault",
        "--state", str(platform.layout.agent(name)), "--ports", f"{port}-{port + 49}", "--stop-work-on-exit",
        "--capacity", "cpu=4", "--capacity", "memory=8Gi",
    ]  # fmt: skip
    with platform.layout.log(f"agent-{name}").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "holdfast.cli", *words], stdout=log, stderr=log)


def test_a_dedicated_tenant_and_the_others_never_share_a_node_and_a_drain_keeps_to_the_budget(platform):
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

    api = platform.watcher.api("eu-west")
    api.request("PATCH", f"/apis/{V1}/nodes/vault-1", {"spec": {"drain": True}}, content_type=MERGE)
    fewest = 4

    def moved() -> bool:
        nonlocal fewest
        now = platform.serving("vault", "billing-api")
        fewest = min(fewest, len(now))
        return len(now) == 4 and set(now.values()) == {"vault-2"}

    wait_until(moved, "billing-api has left the drained node", within_s=90)
    assert fewest >= 3, f"{fewest} of 4 served during the drain; the budget allows one away"
    assert not set(platform.serving("crowd", "noise").values()) & {"vault-1", "vault-2"}
    api.request("PATCH", f"/apis/{V1}/nodes/vault-1", {"spec": {"drain": False}}, content_type=MERGE)


def ask(platform: Platform, *words: str, ok: bool = True) -> Any:
    ran = holdfast(*words, "--state", str(platform.layout.root), timeout_s=90)
    assert (ran.returncode == 0) is ok, ran.stdout + ran.stderr
    return json.loads(ran.stdout) if ok and "json" in words else ran.stderr


def credentials(platform: Platform) -> dict[tuple[str, str], dict]:
    return {(row["holder"], row["name"]): row for row in ask(platform, "credentials", "list", "-o", "json")}


def test_credentials_are_replaced_while_everything_runs(platform):
    wait_until(lambda: platform.health("us-east") == "Healthy", "the region is healthy")
    record = platform.layout.record("cell-us-east").read_text()
    before = credentials(platform)
    for holder, name in (("region", "us-east"), ("node", "us-east-1")):
        ask(platform, "credentials", "rotate", holder, name, "-o", "json")
        after = credentials(platform)
        assert after[holder, name]["serial"] != before[holder, name]["serial"] and not after[holder, name]["revoked"]
    assert platform.layout.record("cell-us-east").read_text() == record, "the cell was not started anew"
    assert platform.health("us-east") == "Healthy"
    told = ask(platform, "credentials", "rotate", "region", "atlantis", ok=False)
    assert "region atlantis: not found" in told and "eu-west" in told


def test_a_revoked_node_is_fenced_and_comes_back_only_with_a_token_of_its_own(platform):
    ask(platform, "credentials", "revoke", "node", "us-east-2", "-o", "json")
    assert credentials(platform)["node", "us-east-2"]["revoked"]

    def contact() -> str:
        return platform.watcher.get("nodes", "us-east-2", cell="us-east")["status"].get("contact", {}).get("state", "")

    wait_until(lambda: contact() != "Live", "the region hears nothing from the node any more", 60)
    ask(platform, "credentials", "rotate", "node", "us-east-2", "-o", "json")
    wait_until(lambda: contact() == "Live", "the node is heard again", 60)


def test_a_revoked_region_is_cut_off_takes_break_glass_overrides_and_reports_them_when_it_is_back(platform):
    words = ("override", "create", "PauseRepair", "--break-glass", "--region", "us-east", "--yes", "-o", "json")
    heard = ask(platform, *words, "--reason", "too early", ok=False)
    assert "is connected to the global cell since" in heard
    ask(platform, "credentials", "revoke", "region", "us-east", "-o", "json")
    wait_until(lambda: platform.health("us-east") != "Healthy", "the global cell no longer hears the region")
    assert platform.health("eu-west") == "Healthy", "another region's credentials are its own"
    wait_until(lambda: holdfast(*words, "--reason", "cut off", "--name", "break-glass-us-east-1", "--ttl", "900", "--state",
                           str(platform.layout.root), timeout_s=30).returncode == 0, "the region takes it")  # fmt: skip
    refused = ask(platform, *words, "--reason", "x", "--ttl", "7200", ok=False)
    assert "must be at most 1800 for break-glass" in refused
    ask(platform, "credentials", "rotate", "region", "us-east", "-o", "json")
    wait_until(lambda: platform.health("us-east") == "Healthy", "the region is heard with its new credentials")

    def record() -> dict | None:
        listed = platform.watcher.list("overrides")
        return next((o for o in listed if o["metadata"]["name"] == "break-glass-us-east-1"), None)

    told = wait_until(record, "the global cell knows of it")
    assert told["spec"]["requester"] == "operator" and told["spec"]["reason"] == "cut off"
    assert (
        told["spec"]["breakGlass"]["region"] == "us-east" and told["spec"]["breakGlass"]["requestedTtlSeconds"] == 900
    )
    assert told["spec"]["ttlSeconds"] < 900
    ask(platform, "override", "revoke", "break-glass-us-east-1", "-o", "json")
    wait_until(
        lambda: platform.watcher.get("overrides", "break-glass-us-east-1", cell="us-east")["status"]["phase"]
        == "Revoked",
        "revoking it at the global cell ends it in the region",
    )  # fmt: skip
