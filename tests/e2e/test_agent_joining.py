"""A joined node with a real agent: join tokens, few ports, certificate renewal, revocation."""

from __future__ import annotations

import json
import socket
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from tests.e2e.joined_agent import command, join_token, joined_agent
from tests.e2e.test_agent_kills import (
    exclusive_on,
    exclusive_overlaps,
    has_moved,
    running_replicas,
    witness_folder,
    workload,
)
from tests.platforms import TENANCY, V1, RunningPlatform, get_json, holdfast, running_platform, wait_until
from tests.witness_intervals import intervals

from holdfast.drills import outage
from holdfast.foundation.exit_codes import ExitCode
from holdfast.platform.layout import Layout
from holdfast.samples import witness

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(400)]

NODE = "us-east-9"
FEW_PORTS_NODE, FIRST_PORT, PORTS, EXCESS = "us-east-6", 29890, 3, 2
"""A node with three ports, and the number of replicas in excess of them."""
TAKEN_PORT_NODE = "us-east-7"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("joining") / "state"
    with running_platform(state, "--regions", "us-east", "--agents", "1", "--no-samples") as running:
        witness_folder(running).mkdir()
        witness_folder(running).chmod(0o1777)
        running.apply(*TENANCY)
        yield running


def is_live(running: RunningPlatform, name: str) -> bool:
    return any(n["name"] == name and n["schedulable"] for n in running.status()["nodes"])


def node_identity(running: RunningPlatform, name: str) -> dict[str, Any]:
    output = running.kubectl("--context", "us-east", "get", "nodeidentity", name, "-o", "json")
    spec: dict[str, Any] = json.loads(output)["spec"]
    return spec


def audited(running: RunningPlatform, reason: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{running.state}/cells/us-east/store.sqlite?mode=ro", uri=True) as store:
        rows = store.execute("SELECT value FROM log WHERE name = 'audit'").fetchall()
    return [record for (value,) in rows if (record := json.loads(value)).get("reason") == reason]


def test_agents_of_the_platform_joined_with_tokens(platform: RunningPlatform) -> None:
    assert node_identity(platform, "us-east-1")["generation"] >= 1
    assert not list((platform.state / "pki").glob("agent-*")), "the platform has no private key of an agent"
    (key,) = platform.state.glob("agents/us-east-1/identity/node.pem")
    assert key.stat().st_mode & 0o777 == 0o600
    assert not list((platform.state / "joining").iterdir()), "used token files are deleted"
    rows = json.loads(
        holdfast("token", "list", "--join", "us-east", "--state", str(platform.state), "-o", "json").stdout
    )
    assert [(r["name"], r["used"]) for r in rows] == [("up-us-east-1", ["us-east-1"])]


def test_node_has_no_private_key_but_its_own_and_tasks_cannot_read_any(platform: RunningPlatform) -> None:
    """Scans the data directory of a node, then lets a task with a tenant's rights look for keys on the machine."""
    folder = platform.state / "agents" / "us-east-1"
    held = [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert held == [folder / "identity" / "node.pem"]
    own = serialization.load_pem_private_key(held[0].read_bytes(), None).public_key()
    certificate = held[0].read_bytes()
    named = x509.load_pem_x509_certificate(certificate[certificate.index(b"-----BEGIN CERTIFICATE") :])
    assert named.public_key() == own, "it is the key of the node's certificate"
    assert "holdfast:node:us-east:us-east-1" in named.subject.rfc4514_string()
    keys = [*platform.state.rglob("*.key"), *platform.state.rglob("*.pem")]
    assert len(keys) >= 3 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys), keys
    tried = " ".join(str(path) for path in (*keys, platform.state / "pki", platform.state / "kubeconfig"))
    template = {
        "command": ["sh", "-c", f"id -u; for f in {tried}; do cat $f || ls $f; done 2>/dev/null; echo end; sleep 600"],
        "resources": {"cpu": "10m", "memory": "32Mi"},
    }
    spec = {"replicas": 1, "template": template}
    meta = {"name": "spy", "namespace": "acme"}
    platform.apply(*TENANCY, {"apiVersion": V1, "kind": "Workload", "metadata": meta, "spec": spec})

    def printed() -> list[str]:
        found = [log for log in platform.state.glob("agents/*/tasks/acme_spy-*/output.log") if "end" in log.read_text()]
        return [line.split(" ", 2)[2] for line in found[0].read_text().splitlines()] if found else []

    uid, *read = wait_until(printed, "the task has looked")
    assert int(uid) > 0 and read == ["end"], "a task reads no key of the platform"


def test_used_join_token_is_refused_with_reason(platform: RunningPlatform) -> None:
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
        "command": ["python3", "-m", "holdfast.samples.risk_api"],
        "env": {"WARM_UP_SECONDS": "0.1"},
        "resources": {"cpu": "10m", "memory": "64Mi"},
        "ports": [{"name": "http"}],
        "probes": {"readiness": {"http": {"path": "/readyz"}, "periodSeconds": 0.2}},
        "terminationGraceSeconds": 2,
        "drainDelaySeconds": 0,
    }
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"replicas": replicas, "template": template},
    }


def serving_ports(running: RunningPlatform, name: str) -> list[int]:
    output = json.loads(holdfast("endpoints", f"acme/{name}", "--state", str(running.state), "-o", "json").stdout)
    return sorted(a["ports"]["http"] for a in output["addresses"])


def pending_reasons(running: RunningPlatform, name: str) -> dict[str, list[str]]:
    """Reason → example nodes, from the scheduling requests of a workload."""
    output = json.loads(
        running.kubectl("--context", "us-east", "get", "schedulingrequests", "-n", "acme", "-o", "json")
    )
    own = [item for item in output["items"] if item["metadata"]["name"].startswith(f"{name}-")]
    reasons = [refusal for item in own for refusal in item["status"].get("reasons", ())]
    evaluated = all("examples" in refusal for refusal in reasons)  # otherwise the request is still queued
    return {refusal["reason"]: refusal["examples"] for refusal in reasons} if evaluated else {}


def test_replica_without_free_port_waits_and_gets_the_next_free_port(platform: RunningPlatform) -> None:
    ports = list(range(FIRST_PORT, FIRST_PORT + PORTS))
    with joined_agent(platform, "us-east", FEW_PORTS_NODE, ports=f"{ports[0]}-{ports[-1]}") as agent:
        wait_until(lambda: is_live(platform, FEW_PORTS_NODE), within_s=60, what="the agent joins")
        holdfast("node", "cordon", "us-east-1", "--state", str(platform.state))
        platform.apply(service("first", PORTS))
        wait_until(lambda: serving_ports(platform, "first") == ports, within_s=60, what="every port is taken")
        platform.apply(service("second", EXCESS))
        reasons = wait_until(
            lambda: pending_reasons(platform, "second"), within_s=30, what="the other replicas have pending reasons"
        )
        assert reasons == {"NodeCordoned": ["us-east-1"], "PortsExhausted": [FEW_PORTS_NODE]}
        assert not serving_ports(platform, "second")
        assert agent.poll() is None and is_live(platform, FEW_PORTS_NODE), "the agent runs"
        assert len({get_json(f"http://127.0.0.1:{port}/")["replica"] for port in ports}) == PORTS, "its tasks answer"

        platform.apply(service("first", PORTS - EXCESS))
        wait_until(
            lambda: len(serving_ports(platform, "second")) == EXCESS, within_s=20, what="the freed ports are used"
        )
        answers = [get_json(f"http://127.0.0.1:{port}/")["workload"] for port in ports]
        assert sorted(answers) == ["first"] * (PORTS - EXCESS) + ["second"] * EXCESS
        for name in ("first", "second"):
            platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", name, "--timeout=60s")
        # The agent exits: place nothing there before its lease expires.
        holdfast("node", "cordon", FEW_PORTS_NODE, "--state", str(platform.state))
        holdfast("node", "uncordon", "us-east-1", "--state", str(platform.state))


def test_replica_whose_chosen_port_another_process_has_gets_another_port(platform: RunningPlatform) -> None:
    ports = (FIRST_PORT + 10, FIRST_PORT + 11)
    with (
        socket.create_server(("127.0.0.1", ports[0])),
        joined_agent(platform, "us-east", TAKEN_PORT_NODE, ports=f"{ports[0]}-{ports[1]}"),
    ):
        wait_until(lambda: is_live(platform, TAKEN_PORT_NODE), within_s=60, what="the agent joins")
        holdfast("node", "cordon", "us-east-1", "--state", str(platform.state))
        platform.apply(service("third", 1))
        wait_until(lambda: serving_ports(platform, "third") == [ports[1]], within_s=60, what="it serves on the other")
        platform.kubectl("--context", "global", "delete", "workload", "-n", "acme", "third", "--timeout=60s")
        holdfast("node", "cordon", TAKEN_PORT_NODE, "--state", str(platform.state))
        holdfast("node", "uncordon", "us-east-1", "--state", str(platform.state))


def test_certificate_renewal_interrupts_nothing_and_revoked_node_is_refused(platform: RunningPlatform) -> None:
    """An exclusive replica runs on the joined node, whose certificates last twelve seconds."""
    with joined_agent(platform, "us-east", NODE, "--certificate", "12s") as agent:
        wait_until(lambda: is_live(platform, NODE), within_s=60, what="the agent joins")
        holdfast("node", "cordon", "us-east-1", "--state", str(platform.state))
        platform.apply(workload("only", platform, 1, exclusive={"scope": "Region"}))
        replica, pid = wait_until(
            lambda: found if (found := exclusive_on(platform, NODE))[0] else None,
            within_s=60,
            what="exclusive work runs there",
        )
        holdfast("node", "uncordon", "us-east-1", "--state", str(platform.state))
        first, generation = (node_identity(platform, NODE)[name] for name in ("serial", "generation"))
        second = wait_until(
            lambda: found if (found := node_identity(platform, NODE)["serial"]) != first else None,
            within_s=30,
            what="the certificate is renewed",
        )
        wait_until(
            lambda: node_identity(platform, NODE)["serial"] not in (first, second), within_s=40, what="and again"
        )
        assert is_live(platform, NODE) and running_replicas(platform)[replica] == [pid], "nothing was interrupted"

        revoked_at = witness.boottime_s()
        holdfast("node", "revoke", NODE, "--state", str(platform.state))
        wait_until(lambda: has_moved(platform, replica, (pid,)), within_s=60, what="its work runs elsewhere")
        ends = [end for _, end in intervals(str(witness_folder(platform)))[replica]]
        assert any(revoked_at < end < revoked_at + 15 for end in ends), "it ended before the lease expired"
        assert not exclusive_overlaps(platform)
        assert agent.poll() is None, "the agent keeps retrying"
        (record, *_) = wait_until(lambda: audited(platform, "CertificateRevoked"), within_s=10, what="audited")
        assert record["principal"] == f"holdfast:node:us-east:{NODE}"
        assert not is_live(platform, NODE)
        said = (platform.state / f"{NODE}.log").read_text()
        assert f"node {NODE}: its certificate was revoked; next: join again: holdfast token create" in said

        (platform.state / f"{NODE}.token").write_text(join_token(platform, "us-east", "back", "--node", NODE))
        wait_until(lambda: is_live(platform, NODE), within_s=60, what="it rejoins without a restart")
        assert node_identity(platform, NODE)["generation"] > generation
        assert not exclusive_overlaps(platform)


def restore_cell(running: RunningPlatform, saved: Path) -> None:
    """Restores the region's cell from a backup, as an operator does, while agents run."""
    layout, cell = Layout(str(running.state)), "cell-us-east"
    outage.hold_down(layout, [cell])
    assert outage.kill_processes(layout, [cell]) == 1
    state = str(layout.cell("us-east"))
    holdfast("restore", "--cell", "us-east", "--state", state, "--from", str(saved), "--replace")
    outage.allow_restart(layout, [cell])


def test_revocation_survives_restore_of_an_older_backup(platform: RunningPlatform, tmp_path: Path) -> None:
    stolen, later, saved = "us-east-5", "us-east-4", tmp_path / "saved"
    state = str(platform.state)
    with joined_agent(platform, "us-east", stolen):
        wait_until(lambda: is_live(platform, stolen), within_s=60, what="the agent joins")
        early = platform.state / "early.token"
        early.write_text(join_token(platform, "us-east", "early"))
        cell = str(Layout(state).cell("us-east"))
        holdfast("backup", "--cell", "us-east", "--state", cell, "--to", str(saved))
        # After the backup: a node is revoked, a token is revoked, and another node joins.
        holdfast("node", "revoke", stolen, "--state", state)
        holdfast("token", "revoke", "early", "--join", "us-east", "--state", state)
        with joined_agent(platform, "us-east", later):
            wait_until(lambda: is_live(platform, later), within_s=60, what="another one joins")
            restore_cell(platform, saved)
            wait_until(
                lambda: is_live(platform, later) and is_live(platform, "us-east-1"),
                within_s=90,
                what="the trusted nodes register again, including the new one",
            )

            def refused_nodes() -> set[str]:
                """Nodes refused after the restore. The restored audit log has no earlier entries of these nodes."""
                names = (record["principal"].rpartition(":")[2] for record in audited(platform, "CertificateRevoked"))
                return {stolen, later, "us-east-1"} & set(names)

            assert wait_until(refused_nodes, within_s=30, what="the other is refused") == {stolen}
            assert not is_live(platform, stolen)
            refused = subprocess.run(
                command(platform, "us-east", "us-east-3", early), capture_output=True, text=True, timeout=60
            )
            assert refused.returncode == ExitCode.DENIED, refused.stderr
