"""Node join: a token is exchanged for a certificate. Real TLS server, gate and files; only the wall clock is moved."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.expected import of_type, present

from holdfast.agent.config import AgentConfig
from holdfast.agent.identity import AgentIdentity
from holdfast.agent.reports import ReportQueue
from holdfast.client.http import HttpClient
from holdfast.foundation.ports import SystemClock, SystemPorts
from holdfast.gate import audit
from holdfast.gate.gate import Gate
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.certificates import RevokedSerials, issue, make_ca
from holdfast.identity.joining import EXPIRED_JOIN_TOKEN_RETENTION_S, JoinService
from holdfast.identity.node_certificates import NodeCertificateAuthority, make_csr, new_key
from holdfast.install.join_string import JoinString
from holdfast.install.nodes import is_certificate_rejected
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Forbidden, Invalid, Unauthorized, Unavailable
from holdfast.model.join import (
    JoinRequest,
    JoinResponse,
    JoinToken,
    JoinTokenSpec,
    NodeIdentity,
    RenewalRequest,
    token_text,
)
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.node import Node, NodeExecution, NodeSpec
from holdfast.model.principal import NODES, OPERATORS, Principal, from_identity
from holdfast.model.writes import Create, Delete, SetStatus, Update
from holdfast.server.app import Application
from holdfast.server.listener import listen
from holdfast.server.tls import TlsFiles
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

REGION = "west"
ADA = from_identity("ada", (OPERATORS,), credential="test")


class MovedClock(SystemClock):
    moved_s = 0.0

    def now(self) -> float:
        return super().now() + self.moved_s


class Region:
    """One region's cell behind TLS, with two CAs: the platform's and the node CA."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = SystemPorts()
        self.clock = MovedClock()
        self.ports.clock = self.clock
        self.store = MemoryStore()
        self.objects = Objects(self.store, MemoryStore())
        self.gate = Gate(REGION, self.objects, self.ports)
        now_s = self.clock.now()
        self.ca = make_ca(folder / "pki", now_s=now_s)
        nodes = make_ca(folder / "nodes", now_s=now_s, common_name="holdfast nodes of west")
        self.nodes = nodes
        self.signing = NodeCertificateAuthority(REGION, nodes.certificate, nodes.key)
        joining = JoinService(self.gate, self.signing)
        revoked = RevokedSerials(folder / "pki" / "revoked.json")
        self.authenticator = Authenticator(
            REGION, self.ports, revoked=revoked, node_issuer=self.signing.name, identities=joining.identity
        )
        self.app = Application(REGION, self.objects, self.gate, self.authenticator, self.ports, joining=joining)

    async def start(self) -> Region:
        await self.objects.start()
        here = issue(self.folder / "pki", "cell", "cell", now_s=self.clock.now(), ips=("127.0.0.1",), server=True)
        tls = TlsFiles(here.certificate, here.key, self.ca.certificate, self.nodes.certificate)
        self.listener = await listen(self.app, "127.0.0.1", 0, tls)
        self.url = f"https://127.0.0.1:{self.listener.port}"
        return self

    async def stop(self) -> None:
        await self.listener.stop()
        await self.gate.close()
        await self.objects.close()

    async def token(self, name: str = "rack", **spec: Any) -> str:
        text = token_text(REGION, f"secret-of-{name}")
        made = JoinTokenSpec(sha256=hashlib.sha256(text.encode()).hexdigest(), **spec)
        await self.gate.commit(ADA, [Create(JoinToken(metadata=ObjectMeta(name=name), spec=made))])
        return text

    def identity(self, node: str) -> NodeIdentity:
        found = self.objects.get(BY_NAME["NodeIdentity"], "", node)
        assert isinstance(found, NodeIdentity)
        return found

    async def revoke(self, node: str) -> None:
        held = self.identity(node)
        spec = msgspec.structs.replace(held.spec, revoked_generation=held.spec.generation)
        await self.gate.commit(ADA, [Update(msgspec.structs.replace(held, spec=spec))])

    def client(self, certificate: Path | str = "") -> HttpClient:
        return HttpClient(self.url, self.ports, cell=REGION, ca=str(self.ca.certificate), cert=str(certificate))

    async def join(self, token: str, node: str, key: bytes = b"") -> JoinResponse:
        client = self.client()
        try:
            return await client.join(JoinRequest(token=token, node=node, csr=make_csr(key or new_key(), node)))
        finally:
            await client.close()

    async def audited(self, reason: str) -> list[dict[str, Any]]:
        await self.gate.audit.flush()
        return [r for _, r in await audit.read_records(self.store) if r.get("reason") == reason]


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    made = await Region(tmp_path).start()
    yield made
    await made.stop()


def settings(region: Region, node: str = "n1") -> AgentConfig:
    return AgentConfig(
        name=node,
        region=REGION,
        zone="west-a",
        state_dir=str(region.folder / node),
        url=region.url,
        ca=str(region.ca.certificate),
        join_token_file=str(region.folder / f"{node}.token"),
    )


async def joined(region: Region, token: str, node: str = "n1") -> AgentIdentity:
    (region.folder / f"{node}.token").write_text(token + "\n")
    identity = AgentIdentity(settings(region, node), region.ports)
    await asyncio.wait_for(identity.obtain(), 10)
    return identity


def a_node(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(zone="west-a", capacity={"cpu": "1"}))


async def test_join_issues_certificate_valid_for_own_node_only(region: Region) -> None:
    identity = await joined(region, await region.token())
    assert stat.S_IMODE(identity.path.stat().st_mode) == 0o600, "only the owner can read the key"
    assert sorted(p.name for p in identity.path.parent.iterdir()) == ["node.pem", "token"]
    assert b"secret" not in (identity.path.parent / "token").read_bytes(), "tokens are stored as hashes"
    client = region.client(identity.path)
    try:
        await client.commit([Create(a_node("n1"))])
        with pytest.raises(Forbidden, match="n2"):
            await client.commit([Create(a_node("n2"))])
    finally:
        await client.close()
    stored = await region.store.range("/jointokens/")
    assert all(b"secret" not in entry.value for entry in stored.entries)
    records = [r for _, r in await audit.read_records(region.store) if r["principal"] == "holdfast:join:rack"]
    assert {e["kind"] for r in records for e in r["entries"]} == {"JoinToken", "NodeIdentity"}, "one commit, audited"


async def test_single_use_token_retried_by_same_node_counts_once(region: Region) -> None:
    token = await region.token()
    key = new_key()
    first = await region.join(token, "n1", key)
    again = await region.join(token, "n1", key)
    assert first.generation == again.generation, "a retry after a lost response"
    for node, other in (("n2", new_key()), ("n1", new_key())):
        with pytest.raises(Forbidden, match="no uses left \\(limit 1, used by n1"):
            await region.join(token, node, other)
    assert sum(r["count"] for r in await region.audited("JoinTokenUsed")) == 2


async def test_single_use_token_used_concurrently_admits_one_node(region: Region) -> None:
    token = await region.token()
    answers = await asyncio.gather(*(region.join(token, f"n{i}") for i in range(8)), return_exceptions=True)
    assert sum(isinstance(a, JoinResponse) for a in answers) == 1


async def test_token_with_two_uses_refuses_third_node(region: Region) -> None:
    token = await region.token(uses=2)
    for node in ("n1", "n2"):
        await region.join(token, node)
    with pytest.raises(Forbidden, match="no uses left"):
        await region.join(token, "n3")


async def test_join_with_expired_wrong_or_unknown_token_is_refused_and_audited(region: Region) -> None:
    token = await region.token("soon", ttl_seconds=60)
    bound = await region.token("bound", node="n5")
    with pytest.raises(Forbidden, match="expected n5, found n6"):
        await region.join(bound, "n6")
    region.clock.moved_s = 61
    with pytest.raises(Forbidden, match="join token soon expired"):
        await region.join(token, "n1")
    with pytest.raises(Unauthorized, match="join token: wrong region"):
        await region.join(token_text("east", "secret-of-rack"), "n1")
    with pytest.raises(Unauthorized, match=r"^Unauthorized$"):
        await region.join(token_text(REGION, "guessed"), "n1")
    for reason in ("WrongNode", "JoinTokenExpired", "WrongRegion", "JoinTokenUnknown"):
        assert await region.audited(reason), reason


async def test_unbound_token_for_existing_node_name_is_refused(region: Region) -> None:
    first = await region.join(await region.token("first"), "n1")
    with pytest.raises(Forbidden, match="has an identity"):
        await region.join(await region.token("second"), "n1")
    again = await region.join(await region.token("mine", node="n1"), "n1")
    assert again.generation > first.generation


async def test_unbound_token_takes_the_name_of_a_revoked_identity(region: Region) -> None:
    """docs/agent.md. Revoking refuses the old machine for good, so its name is free."""
    old = await joined(region, await region.token("first"))
    await region.revoke("n1")
    again = await region.join(await region.token("second"), "n1")
    held = region.identity("n1")
    assert held.accepts(again.generation) and held.spec.revoked_generation < again.generation
    client = region.client(old.path)
    try:
        with pytest.raises(Unauthorized):
            await client.get(Node, "n1")
    finally:
        await client.close()


async def test_join_with_invalid_request_is_refused_without_using_token(region: Region) -> None:
    token = await region.token()
    client = region.client()
    good = make_csr(new_key(), "n1")
    try:
        for csr in ("", "rubbish", good.replace("A", "B"), "x" * 100_000):
            with pytest.raises(BadRequest):
                await client.join(JoinRequest(token=token, node="n1", csr=csr))
        with pytest.raises(BadRequest):
            await client.join(JoinRequest(token=token, node="../n1", csr=good))
    finally:
        await client.close()
    assert (await region.join(token, "n1")).generation >= 1, "none of these used the token"


@pytest.mark.parametrize(
    "spec", [{"uses": 0}, {"uses": 1000}, {"ttl_seconds": 30 * 86400.0}, {"certificate_seconds": 1.0}]
)
async def test_join_token_outside_limits_is_invalid(region: Region, spec: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await region.token(**spec)


async def test_join_deletes_long_expired_tokens(region: Region) -> None:
    await region.token("old")
    region.clock.moved_s = limits.JOIN_TOKEN_TTL_S + EXPIRED_JOIN_TOKEN_RETENTION_S + 1
    await region.join(await region.token("new"), "n1")
    assert [t.metadata.name for t in region.objects.list(BY_NAME["JoinToken"])[0]] == ["new"]


async def test_revoked_node_is_refused_and_can_join_again_with_new_token(region: Region) -> None:
    identity = await joined(region, await region.token())
    client = region.client(identity.path)
    try:
        await client.get(Node, "n1")
        await region.revoke("n1")
        with pytest.raises(
            Unauthorized, match="node n1: its certificate was revoked; next: join again: holdfast token"
        ):
            await client.get(Node, "n1")
        with pytest.raises(Unauthorized):
            await client.renew_certificate(RenewalRequest(csr=make_csr(new_key(), "n1")))
        records = await region.audited("CertificateRevoked")
        assert {record["principal"] for record in records} == {"holdfast:node:west:n1"}
        assert sum(record["count"] for record in records) == 2
        keeping = asyncio.create_task(identity.keep_valid(client))
        (region.folder / "n1.token").write_text(await region.token("back", node="n1"))
        await _until(lambda: not region.identity("n1").revoked)
        await _until_async(lambda: _reads(client))
        keeping.cancel()
    finally:
        await client.close()


async def test_expired_node_is_refused_and_can_join_again_with_new_token(region: Region) -> None:
    """`holdfast node join` learns it from the answer of the region, and waited in vain while TLS refused the node."""
    region.clock.moved_s = -60 * 86_400.0
    identity = await joined(region, await region.token())
    region.clock.moved_s = 0.0
    client = region.client(identity.path)
    try:
        with pytest.raises(Unauthorized, match="node n1: its certificate has expired; next: join again"):
            await client.get(Node, "n1")
        (record,) = await region.audited("CertificateExpired")
        assert (record["principal"], record["count"]) == ("holdfast:node:west:n1", 1)
        joining = JoinString(joins="node", name=REGION, url=region.url, ca="", token="")
        ca = region.ca.certificate
        assert await asyncio.to_thread(is_certificate_rejected, joining, "n1", ca, identity.path)
        keeping = asyncio.create_task(identity.keep_valid(client))
        (region.folder / "n1.token").write_text(await region.token("back", node="n1"))
        await _until_async(lambda: _reads(client))
        keeping.cancel()
        assert not await asyncio.to_thread(is_certificate_rejected, joining, "n1", ca, identity.path)
    finally:
        await client.close()


async def test_reports_of_revoked_agent_are_kept_until_it_joins_again(region: Region) -> None:
    identity = await joined(region, await region.token())
    client = region.client(identity.path)
    reports = ReportQueue(client, region.ports)
    try:
        await client.commit([Create(a_node("n1"))])
        uid = present(region.objects.get(BY_NAME["Node"], "", "n1")).uid
        await region.revoke("n1")
        block = NodeExecution(epoch=1, running=3)
        reports.put(SetStatus("Node", Key("", "n1"), uid, blocks={"execution": block}))
        assert not await reports.flush(), "the response does not say why"
        (region.folder / "n1.token").write_text(await region.token("back", node="n1"))
        keeping = asyncio.create_task(identity.keep_valid(client))
        await _until_async(reports.flush)
        stored = of_type(region.objects.get(BY_NAME["Node"], "", "n1"), Node).status.execution
        assert (stored.epoch, stored.running) == (1, 3)
        keeping.cancel()
    finally:
        await client.close()


async def test_certificate_after_second_join_is_rejected(region: Region) -> None:
    old = await joined(region, await region.token())
    await region.join(await region.token("again", node="n1"), "n1")
    client = region.client(old.path)
    try:
        with pytest.raises(Unauthorized):
            await client.get(Node, "n1")
    finally:
        await client.close()


async def test_join_after_identity_removal_uses_higher_generation(region: Region) -> None:
    """Otherwise an old certificate would be valid again as soon as the node joins again."""
    old = await joined(region, await region.token())
    held = region.identity("n1")
    await region.gate.commit(ADA, [Delete("NodeIdentity", held.key, held.uid)])
    client = region.client(old.path)
    try:
        with pytest.raises(Unauthorized):
            await client.get(Node, "n1")
        again = await region.join(await region.token("again"), "n1")
        assert again.generation > held.spec.generation
        with pytest.raises(Unauthorized):
            await client.get(Node, "n1")
    finally:
        await client.close()


async def test_stream_of_revoked_certificate_is_ended(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.open_streams.STREAM_CREDENTIALS_CHECK_EVERY_S", 0.1)
    identity = await joined(region, await region.token())
    client = region.client(identity.path)
    try:
        asks = client.agent_calls("n1")
        reading = asyncio.ensure_future(anext(asks, None))
        await _until(lambda: "n1" in region.app.agent_rpc.agents)
        await region.revoke("n1")
        assert await asyncio.wait_for(reading, 5) is None
    finally:
        await client.close()


@pytest.mark.slow
async def test_certificate_renewal_interrupts_no_request(region: Region) -> None:
    """A continuous reader sees no refusal during two renewals."""
    identity = await joined(region, await region.token(certificate_seconds=10.0))
    client = region.client(identity.path)
    serials, generation = {region.identity("n1").spec.serial}, region.identity("n1").spec.generation
    keeping = asyncio.create_task(identity.keep_valid(client))
    try:
        ends = asyncio.get_running_loop().time() + 40
        while len(serials) < 3 and asyncio.get_running_loop().time() < ends:
            await client.get(Node, "n1")
            serials.add(region.identity("n1").spec.serial)
            await asyncio.sleep(0.02)
        assert len(serials) == 3 and region.identity("n1").spec.generation == generation
        assert not keeping.done()
    finally:
        keeping.cancel()
        await client.close()


async def test_certificate_of_node_ca_for_other_identity_is_rejected(region: Region) -> None:
    """A stolen node CA key cannot create an operator, a region, or a node of another region."""
    now_s = region.clock.now()
    for name, groups in (
        ("ada", (OPERATORS,)),
        ("holdfast:region:west", ("holdfast:regions",)),
        ("holdfast:node:east:n1", (NODES,)),
        ("holdfast:node:west:n1", (NODES,)),
    ):
        made = issue(region.folder / "nodes", "forged", name, groups, now_s=now_s)
        client = HttpClient(
            region.url,
            region.ports,
            cell=REGION,
            ca=str(region.ca.certificate),
            cert=str(made.certificate),
            key=str(made.key),
        )
        try:
            with pytest.raises(Unauthorized):
                await client.get(Node, "n1")
        finally:
            await client.close()


async def test_join_without_node_ca_is_unavailable(region: Region) -> None:
    region.app.join_service = JoinService(region.gate, None)
    with pytest.raises(Unavailable, match="--node-ca"):
        await region.join(await region.token(), "n1")


async def test_renewal_of_certificate_not_issued_by_join_is_refused(region: Region) -> None:
    who = Principal(name="holdfast:node:west:n1", groups=(NODES,), node="n1", region=REGION)
    with pytest.raises(Forbidden, match="join with a token"):
        await region.app.join_service.renew(who, RenewalRequest(csr=make_csr(new_key(), "n1")))


async def _reads(client: HttpClient) -> bool:
    try:
        await client.get(Node, "n1")
    except Unauthorized:
        return False
    return True


async def _until(true: Any, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.02)


async def _until_async(true: Any, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not await true():
            await asyncio.sleep(0.02)
