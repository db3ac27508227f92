"""Compaction of a cell's history: a complete cell in virtual time with a short history."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.virtual import VirtualPorts, run

from holdfast.cell.cell import COMPACT_EVERY_S, GLOBAL, Cell
from holdfast.model import codec, limits
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import OPERATORS, from_identity
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create
from holdfast.scheduling.plan.planner import PLANNER_VERSION
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore

OPERATOR = from_identity("ann", (OPERATORS,), credential="token")
KEPT, MOST = 50, 400


class History:
    """A global cell and its store."""

    def __init__(self) -> None:
        self.ports = VirtualPorts()
        self.store = MemoryStore()
        self.cell = Cell(GLOBAL, self.store, MemoryStore(), self.ports, identity="g-0")
        self.operator = self.cell.client(OPERATOR)
        self._made = 0

    async def write(self, count: int) -> None:
        for _ in range(count):
            self._made += 1
            await self.operator.commit([Create(Tenant(ObjectMeta(name=f"t{self._made}")))])

    async def decide(self, *, at: int, planner: str = PLANNER_VERSION) -> Decision:
        """Stores a Decision that was made at revision `at`, as the authority does."""
        spec = DecisionSpec(
            workload="web",
            request="web",
            request_revision=at,
            snapshot_revision=at,
            revisions={"Node": at},
            planner=planner,
        )
        kind = kind_of(Decision)
        item = Decision(ObjectMeta(name=f"d{at}", namespace="t1", uid=f"d{at}"), spec)
        await self.cell.objects.commit(
            None, Txn(writes=(Put(kind.store_key("t1", f"d{at}"), codec.encode(item), item),))
        )
        return item

    async def passed(self) -> int:
        """The compacted revision after one compaction interval."""
        await self.ports.clock.sleep(COMPACT_EVERY_S + 1.0)
        return self.store.compacted


def with_history(test: Any) -> None:
    async def main() -> None:
        history = History()
        await history.cell.start()
        await history.ports.clock.sleep(limits.LEADER_TTL_S * 2)
        try:
            await test(history)
        finally:
            await history.cell.stop()

    run(main)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cell.cell.HISTORY_REVISIONS", KEPT)
    monkeypatch.setattr("holdfast.cell.cell.HISTORY_REVISIONS_MAX", MOST)


def test_compaction_removes_only_history_beyond_limit() -> None:
    async def test(history: History) -> None:
        await history.write(200)
        compacted = await history.passed()
        assert history.store.revision_back(MOST) < compacted <= history.store.revision_back(KEPT)
        before = history.store.head
        assert await history.passed() >= compacted, "compaction never goes back"
        await history.write(KEPT * 2)
        assert before < await history.passed() <= history.store.revision_back(KEPT)

    with_history(test)


def test_compaction_keeps_history_of_replayable_decision() -> None:
    async def test(history: History) -> None:
        await history.write(10)
        needed = history.store.head
        await history.decide(at=needed)
        await history.write(150)
        assert await history.passed() <= needed, "the history of the decision is needed for replay"

    with_history(test)


def test_compaction_ignores_decision_of_other_planner_version() -> None:
    async def test(history: History) -> None:
        await history.write(10)
        needed = history.store.head
        await history.decide(at=needed, planner="of old")
        await history.write(150)
        assert await history.passed() > needed, "the decision cannot be replayed"

    with_history(test)


def test_compaction_beyond_maximum_ignores_decisions() -> None:
    async def test(history: History) -> None:
        await history.write(10)
        needed = history.store.head
        await history.decide(at=needed)
        await history.write(MOST + 50)
        compacted = await history.passed()
        assert needed < compacted <= history.store.revision_back(MOST)

    with_history(test)


def test_cell_that_is_not_leader_does_not_compact() -> None:
    async def test(history: History) -> None:
        await history.write(200)
        await history.cell.election.stop()
        before = history.store.compacted
        assert not history.cell.election.leading
        assert await history.passed() == before

    with_history(test)
