"""Nodes join a region with several servers on etcd: every server knows every join and revocation."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.etcd.fleet import REGION, Fleet

from holdfast.client.http import HttpClient
from holdfast.foundation.ports import SystemPorts
from holdfast.identity.node_certificates import make_csr, new_key
from holdfast.identity.revocation_journal import JOURNAL_FILE, RevocationJournal
from holdfast.model.errors import Fault, Forbidden, Unauthorized
from holdfast.model.join import JoinRequest, JoinResponse, RenewalRequest, token_text
from holdfast.model.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(180)]

SERVERS = ("api-1", "api-2")
TOKENS, IDENTITIES = "/apis/holdfast.dev/v1/jointokens", "/apis/holdfast.dev/v1/nodeidentities"
RACES = 8


class JoinClient:
    """A region's servers, as nodes and operators reach them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._clients: list[HttpClient] = []

    def client(self, server: str, certificate: Path | str = "") -> HttpClient:
        made = HttpClient(
            f"https://127.0.0.1:{self.fleet.ports[server]}",
            SystemPorts(),
            cell=REGION,
            ca=str(self.fleet.folder / "pki" / "ca.crt"),
            cert=str(certificate),
        )
        self._clients.append(made)
        return made

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def token(self, server: str, name: str, **spec: Any) -> str:
        text = token_text(REGION, f"secret-of-{name}")
        body = {
            "apiVersion": "holdfast.dev/v1",
            "kind": "JoinToken",
            "metadata": {"name": name},
            "spec": {"sha256": hashlib.sha256(text.encode()).hexdigest(), **spec},
        }
        await self.fleet.ask(server, TOKENS, body)
        return text

    async def revoke(self, server: str, node: str) -> None:
        held = await self.fleet.ask(server, f"{IDENTITIES}/{node}")
        held["spec"]["revokedGeneration"] = held["spec"]["generation"]
        await self.fleet.ask(server, f"{IDENTITIES}/{node}", held, "PUT")

    async def join(self, server: str, token: str, node: str) -> JoinResponse | Fault:
        try:
            return await self.client(server).join(JoinRequest(token, node, make_csr(new_key(), node)))
        except Fault as refused:
            return refused

    def agent(self, server: str, node: str, token: str) -> subprocess.Popen[bytes]:
        folder = self.fleet.folder
        (folder / f"{node}.token").write_text(token)
        arguments = [
            "agent",
            "--name",
            node,
            "--region",
            REGION,
            "--zone",
            f"{REGION}-a",
            "--state",
            str(folder / node),
            "--url",
            f"https://127.0.0.1:{self.fleet.ports[server]}",
            "--ca",
            str(folder / "pki" / "ca.crt"),
            "--join-token-file",
            str(folder / f"{node}.token"),
            "--capacity",
            "cpu=1",
        ]
        with (folder / f"{node}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "holdfast.cli", *arguments], stdout=log, stderr=log)


async def lease_epoch(fleet: Fleet, server: str, node: str) -> int:
    node_object = await fleet.ask(server, f"/apis/holdfast.dev/v1/nodes/{node}")
    execution = node_object["status"].get("execution", {})
    return int(execution.get("epoch", 0)) if execution.get("reconciled") else 0


async def is_refused(client: HttpClient) -> bool:
    try:
        await client.get(Node, "n1")
    except Unauthorized:
        return True
    return False


async def test_join_and_revocation_at_one_server_hold_at_the_other(shared_cluster: Any, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, shared_cluster)
    clients = JoinClient(fleet)
    agent: subprocess.Popen[bytes] | None = None
    try:
        await fleet.start(0, SERVERS)
        for server in SERVERS:
            await fleet.until(server, partial(fleet.ask, server, TOKENS), 60)

        # A token created at one server is used at the other a moment later, by a real agent.
        agent = clients.agent("api-1", "n1", await clients.token("api-2", "first"))
        await fleet.until("the agent to register", partial(lease_epoch, fleet, "api-2", "n1"), 60)

        # Its certificate is accepted and renewed at the other server; the new one is accepted at both.
        pem = tmp_path / "n1" / "identity" / "node.pem"
        key = new_key()
        given = await clients.client("api-2", pem).renew_certificate(RenewalRequest(make_csr(key, "n1")))
        (tmp_path / "renewed.pem").write_bytes(key + given.certificate.encode())
        shown = [clients.client(server, tmp_path / "renewed.pem") for server in SERVERS]
        for client in shown:
            assert (await client.get(Node, "n1")) is not None

        # A single-use token used at both servers at once: one node joins.
        for race in range(RACES):
            token = await clients.token(SERVERS[race % 2], f"race-{race}")
            answers = await asyncio.gather(
                clients.join("api-1", token, f"x-{race}"), clients.join("api-2", token, f"y-{race}")
            )
            won = [a for a in answers if isinstance(a, JoinResponse)]
            assert len(won) == 1, answers
            assert all(isinstance(a, JoinResponse | Forbidden) or getattr(a, "code", 0) == 409 for a in answers), (
                answers
            )

        # Revoked at one server, refused at both.
        await clients.revoke("api-1", "n1")
        assert await is_refused(shown[0])
        await fleet.until("the other server to refuse it", partial(is_refused, shown[1]), 20)
        assert agent.poll() is None

        def known(server: str) -> bool:
            written = RevocationJournal(tmp_path / server / JOURNAL_FILE).read() or {}
            return "n1" in written and written["n1"].revoked and len(written) == RACES + 1

        for server in SERVERS:
            await fleet.until(f"{server} to have it on paper", partial(asyncio.to_thread, known, server), 10)
    finally:
        if agent is not None:
            agent.kill()
            agent.wait()
        await clients.close()
        await fleet.end()
