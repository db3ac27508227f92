"""Joining, renewing and being revoked, with real agents and the work they run."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from joined_agent import command, join_token, joined_agent
from test_agent_kills import TENANCY, alive, apply, breaches, moved, one_of, seen, workload
from test_up import Up, free_port_base, holdfast, until

from holdfast.cli.exits import Exit
from holdfast.samples import witness

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), pytest.mark.xdist_group("platform")]

NODE = "us-east-9"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    state = tmp_path_factory.mktemp("joining") / "state"
    try:
        done = holdfast(
            "up", "--detach", "--state", str(state), "--port-base", str(free_port_base()), "--regions", "us-east",
            "--agents", "1", "--no-samples", "-o", "json", timeout_s=200,
        )  # fmt: skip
        up = Up(state, 0, json.loads(done.stdout), 0.0)
        apply(up, *TENANCY)
        yield up
    finally:
        holdfast("down", "--state", str(state), check=False)


def live(up: Up, name: str) -> bool:
    return any(n["name"] == name and n["schedulable"] for n in up.status()["nodes"])


def identity(up: Up, name: str) -> dict[str, Any]:
    told = up.kubectl("--context", "us-east", "get", "nodeidentity", name, "-o", "json")
    spec: dict[str, Any] = json.loads(told)["spec"]
    return spec


def audited(up: Up, reason: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{up.state}/cells/us-east/store.sqlite?mode=ro", uri=True) as store:
        rows = store.execute("SELECT value FROM log WHERE name = 'audit'").fetchall()
    return [record for (value,) in rows if (record := json.loads(value)).get("reason") == reason]


def test_the_platforms_own_agents_joined_with_tokens(platform: Up) -> None:
    assert identity(platform, "us-east-1")["generation"] == 1
    assert not list((platform.state / "pki").glob("agent-*")), "nobody else made a key for them"
    (key,) = platform.state.glob("agents/us-east-1/identity/node.pem")
    assert key.stat().st_mode & 0o777 == 0o600
    assert not list((platform.state / "joining").iterdir()), "spent tokens do not lie about"
    rows = json.loads(
        holdfast("token", "list", "--join", "us-east", "--state", str(platform.state), "-o", "json").stdout
    )
    assert [(r["name"], r["used"]) for r in rows] == [("up-us-east-1", ["us-east-1"])]


def test_a_spent_token_is_refused_with_the_reason(platform: Up) -> None:
    token = platform.state / "spent.token"
    token.write_text(join_token(platform, "us-east", "spent", "--node", "us-east-8"))
    refused = subprocess.run(
        command(platform, "us-east", "us-east-7", token), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == Exit.DENIED
    assert "join token spent is for node us-east-8, and us-east-7 asked" in refused.stderr
    assert "next: holdfast token create NAME --join us-east --node us-east-7" in refused.stderr
    holdfast("token", "revoke", "spent", "--join", "us-east", "--state", str(platform.state))
    refused = subprocess.run(
        command(platform, "us-east", "us-east-8", token), capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == Exit.DENIED
    until(lambda: audited(platform, "WrongNode") and audited(platform, "JoinTokenUnknown"), within_s=10, what="audited")


def test_certificates_change_under_running_work_and_a_revoked_node_is_cut_off(platform: Up) -> None:
    """Exclusive work runs on our own node, with certificates of fifteen seconds."""
    with joined_agent(platform, "us-east", NODE, "--certificate", "15s") as agent:
        until(lambda: live(platform, NODE), within_s=60, what="the agent joins")
        holdfast("node", "cordon", "us-east-1", "--state", str(platform.state))
        apply(platform, workload("only", platform, 1, exclusive={"scope": "Region"}))
        replica, pid = until(lambda: found if (found := one_of(platform, NODE))[0] else None, within_s=60,
                             what="exclusive work runs there")  # fmt: skip
        holdfast("node", "uncordon", "us-east-1", "--state", str(platform.state))
        first = identity(platform, NODE)["serial"]
        second = until(lambda: found if (found := identity(platform, NODE)["serial"]) != first else None, within_s=30,
                       what="the certificate is renewed")  # fmt: skip
        until(lambda: identity(platform, NODE)["serial"] not in (first, second), within_s=40, what="and again")
        assert live(platform, NODE) and alive(platform)[replica] == [pid], "nothing was interrupted"

        revoked_at = witness.boottime()
        holdfast("node", "revoke", NODE, "--state", str(platform.state))
        until(lambda: moved(platform, replica, (pid,)), within_s=60, what="its work runs elsewhere")
        ends = [end for _, end in witness.intervals(str(seen(platform)))[replica]]
        assert any(revoked_at < end < revoked_at + 15 for end in ends), "it ended before the lease could"
        assert not breaches(platform)
        assert agent.poll() is None, "the agent itself goes on asking"
        (record, *_) = until(lambda: audited(platform, "CertificateRevoked"), within_s=10, what="audited")
        assert record["principal"] == f"holdfast:node:us-east:{NODE}"
        assert not live(platform, NODE)

        (platform.state / f"{NODE}.token").write_text(join_token(platform, "us-east", "back", "--node", NODE))
        until(lambda: live(platform, NODE), within_s=60, what="it joins again, without being started anew")
        assert identity(platform, NODE)["generation"] == 2
        assert not breaches(platform)
