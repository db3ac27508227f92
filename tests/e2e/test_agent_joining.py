"""One more node of a region, with a real agent and the work it runs: joining, few ports, renewing, being revoked."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joined_agent import command, join_token, joined_agent
from test_agent_kills import alive, breaches, moved, one_of, seen, workload
from tests.platforms import TENANCY, RunningPlatform, get_json, holdfast, running_platform, wait_until

from holdfast.drills import outage
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.layout import Layout
from holdfast.samples import witness
from witness_intervals import intervals

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(400)]

NODE = "us-east-9"
NARROW, FIRST_PORT, PORTS, WAITING = "us-east-6", 29890, 3, 2
"""A node with three ports, and how many replicas too many are asked for."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("joining") / "state"
    with running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as up:
        up.apply(*TENANCY)
        yield up


def live(up: RunningPlatform, name: str) -> bool:
    return any(n["name"] == name and n["schedulable"] for n in up.status()["nodes"])


def identity(up: RunningPlatform, name: str) -> dict[str, Any]:
    told = up.kubectl("--context", "us-east", "get", "nodeidentity", name, "-o", "json")
    spec: dict[str, Any] = json.loads(told)["spec"]
    return spec


def audited(up: RunningPlatform, reason: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{up.state}/cells/us-east/store.sqlite?mode=ro", uri=True) as store:
        rows = store.execute("SELECT value FROM log WHERE name = 'audit'").fetchall()
    return [record for (value,) in rows if (record := json.loads(value)).get("reason") == reason]


def test_the_platforms_own_agents_joined_with_tokens(platform: RunningPlatform) -> None:
    assert identity(platform, "us-east-1")["generation"] >= 1
    assert not list((platform.state / "pki").glob("agent-*")), "nobody else made a key for them"
    (key,) = platform.state.glob("agents/us-east-1/identity/node.pem")
    assert key.stat().st_mode & 0o777 == 0o600
    assert not list((platform.state / "joining").iterdir()), "spent tokens do not lie about"
    rows = json.loads(
        holdfast("token", "list", "--join", "us-east", "--state", str(platform.state), "-o", "json").stdout
    )
    assert [(r["name"], r["used"]) for r in rows] == [("up-us-east-1", ["us-east-1"])]


def test_a_spent_token_is_refused_with_the_reason(platform: RunningPlatform) -> None:
    token = platform.state / "spent.token"
    token.write_text(join_token(platform, "us-east", "spent", "--node", "us-east-8"))
    refused = subprocess.run(
        command(platform, "us-east", "us-east-7", token), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == ExitCode.DENIED
    assert "join token spent is for another node (expected us-east-8, found us-east-7)" in refused.stderr
    assert "next: holdfast token create NAME --join us-east --node us-east-7" in refused.stderr
    holdfast("token", "revoke", "spent", "--join", "us-east", "--state", str(platform.state))
    refused = subprocess.run(
        command(platform, "us-east", "us-east-8", token), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == ExitCode.DENIED
    wait_until(
        lambda: audited(platform, "WrongNode") and audited(platform, "JoinTokenUnknown"), within_s=10, what="audited"
    )


def service(name: str, replicas: int) -> dict[str, Any]:
    template = {
        "command": ["python3", "-m", "holdfast.samples.risk_api"], "env": {"WARM_UP_SECONDS": "0.1"},
        "resources": {"cpu": "10m", "memory": "64Mi"}, "ports": [{"name": "http"}],
        "probes": {"readiness": {"http": {"path": "/readyz"}, "periodSeconds": 0.2}},
        "terminationGraceSeconds": 2, "drainDelaySeconds": 0,
    }  # fmt: skip
    return {
        "apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": replicas, "template": template},
    }  # fmt: skip


def served(up: RunningPlatform, name: str) -> list[int]:
    told = json.loads(holdfast("endpoints", f"acme/{name}", "--state", str(up.state), "-o", "json").stdout)
    return sorted(a["ports"]["http"] for a in told["addresses"])


def why_waiting(up: RunningPlatform, name: str) -> dict[str, list[str]]:
    """Reason → the nodes that have it, of what the region says to the requests of a workload."""
    told = json.loads(up.kubectl("--context", "us-east", "get", "schedulingrequests", "-n", "acme", "-o", "json"))
    mine = [item for item in told["items"] if item["metadata"]["name"].startswith(f"{name}-")]
    reasons = [said for item in mine for said in item["status"].get("reasons", ())]
    judged = all("examples" in said for said in reasons)  # before that it waits for its turn, whatever the nodes
    return {said["reason"]: said["examples"] for said in reasons} if judged else {}


def test_without_a_free_port_work_waits_by_that_name_and_has_the_next_one(platform: RunningPlatform) -> None:
    ports = list(range(FIRST_PORT, FIRST_PORT + PORTS))
    with joined_agent(platform, "us-east", NARROW, ports=f"{ports[0]}-{ports[-1]}") as agent:
        wait_until(lambda: live(platform, NARROW), within_s=60, what="the agent joins")
        holdfast("node", "cordon", "us-east-1", "--state", str(platform.state))
        platform.apply(service("first", PORTS))
        wait_until(lambda: served(platform, "first") == ports, within_s=60, what="every port is taken")
        platform.apply(service("second", WAITING))
        reasons = wait_until(
            lambda: why_waiting(platform, "second"), within_s=30, what="it is said why the others wait"
        )
        assert reasons == {"NodeCordoned": ["us-east-1"], "PortsExhausted": [NARROW]}
        assert not served(platform, "second")
        assert agent.poll() is None and live(platform, NARROW), "the agent is well"
        assert len({get_json(f"http://127.0.0.1:{port}/")["replica"] for port in ports}) == PORTS, (
            "and so is what it runs"
        )

        platform.apply(service("first", PORTS - WAITING))
        wait_until(lambda: len(served(platform, "second")) == WAITING, within_s=20, what="the freed ports are given on")
        answers = [get_json(f"http://127.0.0.1:{port}/")["workload"] for port in ports]
        assert sorted(answers) == ["first"] * (PORTS - WAITING) + ["second"] * WAITING
        for name in ("first", "second"):
            platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", name, "--timeout=60s")
        # It leaves: nothing is to be placed there until it is missed.
        holdfast("node", "cordon", NARROW, "--state", str(platform.state))
        holdfast("node", "uncordon", "us-east-1", "--state", str(platform.state))


def test_certificates_change_under_running_work_and_a_revoked_node_is_cut_off(platform: RunningPlatform) -> None:
    """Exclusive work runs on our own node, with certificates of twelve seconds."""
    with joined_agent(platform, "us-east", NODE, "--certificate", "12s") as agent:
        wait_until(lambda: live(platform, NODE), within_s=60, what="the agent joins")
        holdfast("node", "cordon", "us-east-1", "--state", str(platform.state))
        platform.apply(workload("only", platform, 1, exclusive={"scope": "Region"}))
        replica, pid = wait_until(lambda: found if (found := one_of(platform, NODE))[0] else None, within_s=60,
                             what="exclusive work runs there")  # fmt: skip
        holdfast("node", "uncordon", "us-east-1", "--state", str(platform.state))
        first, generation = (identity(platform, NODE)[name] for name in ("serial", "generation"))
        second = wait_until(lambda: found if (found := identity(platform, NODE)["serial"]) != first else None, within_s=30,
                       what="the certificate is renewed")  # fmt: skip
        wait_until(lambda: identity(platform, NODE)["serial"] not in (first, second), within_s=40, what="and again")
        assert live(platform, NODE) and alive(platform)[replica] == [pid], "nothing was interrupted"

        revoked_at = witness.boottime_s()
        holdfast("node", "revoke", NODE, "--state", str(platform.state))
        wait_until(lambda: moved(platform, replica, (pid,)), within_s=60, what="its work runs elsewhere")
        ends = [end for _, end in intervals(str(seen(platform)))[replica]]
        assert any(revoked_at < end < revoked_at + 15 for end in ends), "it ended before the lease could"
        assert not breaches(platform)
        assert agent.poll() is None, "the agent itself goes on asking"
        (record, *_) = wait_until(lambda: audited(platform, "CertificateRevoked"), within_s=10, what="audited")
        assert record["principal"] == f"holdfast:node:us-east:{NODE}"
        assert not live(platform, NODE)

        (platform.state / f"{NODE}.token").write_text(join_token(platform, "us-east", "back", "--node", NODE))
        wait_until(lambda: live(platform, NODE), within_s=60, what="it joins again, without being started anew")
        assert identity(platform, NODE)["generation"] > generation
        assert not breaches(platform)


def restored(up: RunningPlatform, saved: Path) -> None:
    """The region's cell put back to a backup, as an operator does it, while agents go on."""
    layout, cell = Layout(str(up.state)), "cell-us-east"
    outage.hold_down(layout, [cell])
    assert outage.kill_processes(layout, [cell]) == 1
    state = str(layout.cell("us-east"))
    holdfast("restore", "--cell", "us-east", "--state", state, "--from", str(saved), "--replace")
    outage.allow_restart(layout, [cell])


def test_what_was_revoked_stays_revoked_when_an_older_backup_is_restored(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    stolen, later, saved = "us-east-5", "us-east-4", tmp_path / "saved"
    state = str(platform.state)
    with joined_agent(platform, "us-east", stolen):
        wait_until(lambda: live(platform, stolen), within_s=60, what="the agent joins")
        early = platform.state / "early.token"
        early.write_text(join_token(platform, "us-east", "early"))
        cell = str(Layout(state).cell("us-east"))
        holdfast("backup", "--cell", "us-east", "--state", cell, "--to", str(saved))
        # Since the backup: a node is revoked, a token taken back, and another node joins.
        holdfast("node", "revoke", stolen, "--state", state)
        holdfast("token", "revoke", "early", "--join", "us-east", "--state", state)
        with joined_agent(platform, "us-east", later):
            wait_until(lambda: live(platform, later), within_s=60, what="another one joins")
            restored(platform, saved)
            wait_until(lambda: live(platform, later) and live(platform, "us-east-1"), within_s=90,
                  what="those that are trusted register anew, also who joined since")  # fmt: skip

            def refused_nodes() -> set[str]:
                """The audit log is the backup's, and what was added since: that has nothing of these nodes."""
                names = (record["principal"].rpartition(":")[2] for record in audited(platform, "CertificateRevoked"))
                return {stolen, later, "us-east-1"} & set(names)

            assert wait_until(refused_nodes, within_s=30, what="the other is refused") == {stolen}
            assert not live(platform, stolen)
            refused = subprocess.run(
                command(platform, "us-east", "us-east-3", early), capture_output=True, text=True, timeout=60
            )
            assert refused.returncode == ExitCode.DENIED, refused.stderr
