"""A denied request is answered after its audit record is durable: once each, in groups, without delay for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.gate import audit_rows
from holdfast.gate.audit import AUDIT_LOG, read_records
from holdfast.gate.gate import Gate
from holdfast.identity.authenticate import Authenticator
from holdfast.model.errors import Ambiguous, Forbidden, Unavailable
from holdfast.server.app import Application
from holdfast.server.request import Request
from holdfast.store.contract import Append, Committed, LogRecord, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

from .conftest import Api, World

DENIED = "/apis/holdfast.dev/v1/tenants/shop"


class FaultyDisk(MemoryStore):
    """Appends to the audit log wait, fail or stay unanswered, as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()
        self.appends = 0
        self.unanswered: list[bool] = []
        """For each of the next appends: whether it happens although no answer comes."""
        self.is_full = False
        self.examined = 0
        """Records of the log that were read."""

    async def read_log(self, log: str, *, after: int = 0, limit: int = 1000) -> tuple[LogRecord, ...]:
        found = await super().read_log(log, after=after, limit=limit)
        self.examined += len(found)
        return found

    async def commit(self, txn: Txn) -> Committed:
        if not txn.appends or txn.writes:
            return await super().commit(txn)
        self.appends += 1
        await self.answers.wait()
        if self.is_full:
            raise Unavailable("the disk is full")
        if self.unanswered:
            if self.unanswered.pop(0):
                await super().commit(txn)
            raise Ambiguous("the store did not answer")
        return await super().commit(txn)


class FaultyWorld(World):
    def __init__(self, folder: Path) -> None:
        super().__init__("global", folder)
        self.disk = FaultyDisk()
        self.objects = Objects(self.disk, MemoryStore())
        self.gate = Gate("global", self.objects, self.ports)
        authenticator = Authenticator("global", self.ports, tokens=self.tokens)
        self.app = Application("global", self.objects, self.gate, authenticator, self.ports)

    async def recorded(self) -> list[dict[str, Any]]:
        """What a restarted cell would find: rows in memory are not read."""
        return [record for _, record in await read_records(self.disk) if record["result"] == "Refused"]

    async def counted(self, principal: str = "tim") -> int:
        return sum(record["count"] for record in await self.recorded() if principal in record["principal"])


@pytest.fixture
async def faulty(tmp_path: Path) -> AsyncIterator[FaultyWorld]:
    world = FaultyWorld(tmp_path)
    await world.objects.start()
    yield world
    world.disk.answers.set()
    await world.gate.close()
    await world.objects.close()


async def test_answer_is_sent_after_the_record_is_durable(faulty: FaultyWorld) -> None:
    tim, ada = Api(faulty.app, "tim"), Api(faulty.app, "ada")
    faulty.disk.answers.clear()
    denied = asyncio.create_task(tim.delete(DENIED))
    anonymous = asyncio.create_task(Api(faulty.app, "").get(DENIED))
    await asyncio.sleep(0.1)
    assert not denied.done() and not anonymous.done()
    assert (await ada.get("/apis/holdfast.dev/v1/tenants")).code == 200, "a permitted request does not wait"
    faulty.disk.answers.set()
    assert ((await denied).code, (await anonymous).code) == (403, 401)
    assert (await faulty.counted(), await faulty.counted("system:anonymous")) == (1, 1)


async def test_each_answered_denial_is_recorded_without_any_flush(faulty: FaultyWorld) -> None:
    tim = Api(faulty.app, "tim")
    for number in range(1, 20):
        assert (await tim.delete(DENIED)).code == 403
        assert await faulty.counted() == number


async def test_concurrent_denials_share_appends(faulty: FaultyWorld) -> None:
    callers = [Api(faulty.app, user) for user in ("tim", "") for _ in range(250)]
    answers = await asyncio.gather(*(caller.delete(DENIED) for caller in callers))
    assert {answer.code for answer in answers} == {401, 403}
    assert await faulty.counted() + await faulty.counted("system:anonymous") == 500
    assert faulty.disk.appends <= 10


async def test_caller_beyond_its_allowance_is_summed_and_delays_nobody(
    faulty: FaultyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_rows, "AUDIT_PROMPT_BURST", 3)
    tim, flooding = Api(faulty.app, "tim"), Api(faulty.app, "")
    flood = [asyncio.create_task(flooding.get(f"{DENIED}?n={number}")) for number in range(100)]
    await asyncio.sleep(0)
    assert (await tim.delete(DENIED)).code == 403
    waiting = sum(not request.done() for request in flood)
    assert waiting > 50, "the flood is answered with the next sum, after the other caller"
    assert {answer.code for answer in await asyncio.gather(*flood)} == {401}
    records = await faulty.recorded()
    assert await faulty.counted("system:anonymous") == 100
    assert len([r for r in records if "system:anonymous" in r["principal"]]) <= 4


async def test_reader_of_secrets_beyond_its_allowance_is_summed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read after the other would else be one disk write and one record each, and push older records out."""
    ada, path = Api(world.app, "ada"), "/api/v1/namespaces/shop/secrets"
    assert (await ada.post(path, {"metadata": {"name": "key"}, "stringData": {"a": "b"}})).code == 201
    monkeypatch.setattr(audit_rows, "AUDIT_PROMPT_BURST", 3)
    answers = await asyncio.gather(*(ada.get(f"{path}/key?n={number}") for number in range(40)))
    assert {answer.code for answer in answers} == {200}
    reads = [r for _, r in await read_records(world.store) if r["result"] == "Allowed" and r["verb"] == "get"]
    assert sum(int(r.get("count", 1)) for r in reads) == 40 and len(reads) <= 5


async def test_caller_with_many_paths_has_a_bounded_number_of_rows(faulty: FaultyWorld) -> None:
    tim = Api(faulty.app, "tim")
    paths = [f"/audit/v1/{'x' * number}" for number in range(1, 90)] + ["/audit/v1", "/metrics"]
    for path in paths:
        faulty.gate.audit.record_refusal("tim", "get", path, "Forbidden")
    assert (await tim.get("/audit/v1")).code == 403
    await faulty.gate.audit.flush()
    records = [record for record in await faulty.recorded() if record["principal"] == "tim"]
    assert await faulty.counted() == len(paths) + 1
    assert len(records) <= audit_rows.AUDIT_ROWS_PER_CALLER_MAX + 2


async def test_denial_that_cannot_be_recorded_is_unavailable_and_counted_later_once(faulty: FaultyWorld) -> None:
    tim = Api(faulty.app, "tim")
    faulty.disk.is_full = True
    reply = await tim.delete(DENIED)
    assert reply.code == 503 and b"audit log" in reply.body and b"the disk is full" in reply.body
    faulty.disk.is_full = False
    await faulty.gate.audit.flush()
    assert await faulty.counted() == 1


@pytest.mark.parametrize("happens", [True, False])
async def test_unanswered_append_is_read_back_and_counted_once(faulty: FaultyWorld, happens: bool) -> None:
    faulty.disk.unanswered = [happens]
    assert (await Api(faulty.app, "tim").delete(DENIED)).code == 403
    assert await faulty.counted() == 1
    assert len(await faulty.disk.read_log(AUDIT_LOG)) == 1


async def test_unanswered_append_after_a_restart_does_not_read_the_whole_log(faulty: FaultyWorld) -> None:
    """The process has read nothing of the log, which an earlier process filled."""
    await faulty.disk.commit(Txn(appends=tuple(Append(AUDIT_LOG, b'{"result":"old"}') for _ in range(3_000))))
    faulty.disk.unanswered = [True]
    assert (await Api(faulty.app, "tim").delete(DENIED)).code == 403
    assert faulty.disk.examined == 1
    (record,) = await faulty.disk.read_log(AUDIT_LOG, after=3_000)
    assert b'"principal":"tim"' in record.value


async def test_denial_that_no_handler_records_is_recorded(faulty: FaultyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(app: Application, request: Request) -> None:
        raise Forbidden("refused by a handler that knows nothing of audit")

    monkeypatch.setattr(Application, "_handle", refuse)
    assert (await Api(faulty.app, "tim").get("/version")).code == 403
    assert await faulty.counted("") == 1


async def test_secret_is_sent_after_the_record_of_its_read_is_durable(world: World) -> None:
    ada = Api(world.app, "ada")
    path = "/api/v1/namespaces/shop/secrets"
    assert (await ada.post(path, {"metadata": {"name": "key"}, "stringData": {"a": "b"}})).code == 201
    assert (await ada.get(f"{path}/key")).code == 200
    found = [record for _, record in await read_records(world.store) if record["result"] == "Allowed"]
    assert [(record["verb"], record["message"]) for record in found] == [("get", "key")]
