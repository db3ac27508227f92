"""Races and unanswered commits: one effect, one owner, and refusals only on committed state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.authority.cell import TENANT, Cell, devices, yield_to_loop

from holdfast.authority.records import put_object, without_revision
from holdfast.foundation.ports import SystemClock
from holdfast.gate import audit
from holdfast.model import limits
from holdfast.model.binding import Binding, Reservation
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec
from holdfast.model.errors import Ambiguous, StaleToken, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction
from holdfast.model.replica import Phase, Replica
from holdfast.store.contract import Committed, Txn


class SlowStore:
    """Delays commits until `resume`, so that several are in flight at once."""

    def __init__(self, cell: Cell) -> None:
        self._commit = cell.store.commit
        self.waiting: list[asyncio.Event] = []
        self.hold = True
        cell.store.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, txn: Txn) -> Committed:
        if self.hold and any("/bindings/" in w.key for w in txn.writes):
            gate = asyncio.Event()
            self.waiting.append(gate)
            await gate.wait()
        return await self._commit(txn)

    def resume(self) -> None:
        self.hold = False
        for gate in self.waiting:
            gate.set()


@pytest.mark.parametrize("fault", ["before", "after", "late"])
async def test_unanswered_reserve_commit_has_one_effect(cell: Cell, fault: str) -> None:
    replica = await cell.replica()
    cell.store.faults = [fault]
    answer = await cell.place(replica)
    assert answer.result is PlacementOutcome.ACCEPTED
    for txn in cell.store.late:
        with pytest.raises(Exception, match=r"expected|exists"):
            await cell.store.inner.commit(txn)
    assert len(cell.every(Binding)) == 1 and not cell.every(Reservation)
    assert (await cell.place(replica)).result is PlacementOutcome.ALREADY
    cell.check_ledger()


@pytest.mark.parametrize("fault", ["before", "after", "late"])
async def test_unanswered_release_commit_has_one_effect(cell: Cell, fault: str) -> None:
    replica = await cell.replica()
    await cell.place(replica)
    await cell.acknowledge("web-0.1")
    cell.store.faults = [fault]
    assert (await cell.release(replica, ReleaseAction.FREE)).result is PlacementOutcome.ACCEPTED
    assert cell.get_replica().status.placement.attempt == 2
    assert not cell.every(Binding) and not cell.authority.ledger.claims
    cell.check_ledger()


async def test_no_commit_starts_while_an_outcome_is_unknown(cell: Cell) -> None:
    await cell.lead(run=True)
    one, two = await cell.replica("one"), await cell.replica("two")
    cell.store.faults = ["before", "before", "after"]
    first = asyncio.create_task(cell.place(one))
    await yield_to_loop()
    before = cell.store.commits
    second = asyncio.create_task(cell.place(two))
    await yield_to_loop()
    assert cell.store.commits == before and not second.done()
    await cell.clock.advance(1)
    assert (await first).result is PlacementOutcome.ACCEPTED
    assert (await second).result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_authority_with_unresolved_commit_steps_down(cell: Cell) -> None:
    replica = await cell.replica()
    token = cell.authority._commits.token
    assert token is not None
    cell.store.faults = ["before"] * (limits.READ_BACK_ATTEMPTS + 1)
    waiting = asyncio.create_task(cell.place(replica))
    await cell.clock.advance(60)
    with pytest.raises(Ambiguous):
        await waiting
    assert not cell.authority.leading
    with pytest.raises(StaleToken):
        await cell.authority.start(token)
    await cell.lead()
    await cell.renew("n1", 1)
    assert (await cell.place(replica)).result is PlacementOutcome.ACCEPTED


async def test_cancelled_caller_leaves_complete_claim(cell: Cell) -> None:
    replica = await cell.replica()
    slow = SlowStore(cell)
    asking = asyncio.create_task(cell.place(replica))
    await yield_to_loop()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    slow.resume()
    await yield_to_loop()
    assert len(cell.every(Binding)) == 1
    cell.check_ledger()


async def test_commits_in_flight_count_each_others_claims(cell: Cell) -> None:
    replicas = [await cell.replica(f"w-{i}", template={"resources": {"cpu": "3"}}) for i in range(3)]
    slow = SlowStore(cell)
    asking = []
    for replica in replicas:
        asking.append(asyncio.create_task(cell.place(replica)))
        await yield_to_loop()
    assert len(slow.waiting) == 2
    assert not asking[2].done()  # its refusal depends on commits that could still fail
    slow.resume()
    answers = await asyncio.gather(*asking)
    assert [a.result.value for a in answers] == ["Accepted", "Accepted", "Rejected"]
    assert answers[2].reason == "InsufficientCpu"
    cell.check_ledger()


async def test_concurrent_reserves_are_one_commit_and_one_audit_record(cell: Cell) -> None:
    replicas = [await cell.replica(f"w-{i}", template={"resources": {"cpu": "3"}}) for i in range(3)]
    before = len(await audit.read_records(cell.store.inner))
    slow = SlowStore(cell)
    asking = [asyncio.create_task(cell.reserve(cell.item(r), decision=_decision(r))) for r in replicas]
    await yield_to_loop()
    assert len(slow.waiting) == 1
    slow.resume()
    answers = [own[0] for own in await asyncio.gather(*asking)]
    assert [a.result.value for a in answers] == ["Accepted", "Accepted", "Rejected"], "each item is checked alone"
    recorded = [record for _, record in (await audit.read_records(cell.store.inner))[before:]]
    assert [len(record["entries"]) for record in recorded if record["verb"] == "bind"] == [2]
    outcomes = {d.metadata.name: [entry.result for entry in d.spec.entries] for d in cell.every(Decision)}
    assert outcomes == {"d-w-0": ["Accepted"], "d-w-1": ["Accepted"], "d-w-2": ["Rejected"]}, (
        "each request has its own Decision"
    )
    for replica, name in ((replicas[0], "d-w-0"), (replicas[1], "d-w-1")):
        assert cell.get_replica(replica.metadata.name).status.placement.decision == name
    cell.check_ledger()


async def test_changed_replica_does_not_fail_other_reserves_of_batch(cell: Cell) -> None:
    first, second = await cell.replica("one"), await cell.replica("two")
    slow = SlowStore(cell)
    asking = [asyncio.create_task(cell.reserve(cell.item(r), decision=_decision(r))) for r in (first, second)]
    await yield_to_loop()
    await cell.remove(first)
    slow.resume()
    await cell.clock.advance(1)
    answers = [own[0] for own in await asyncio.gather(*asking)]
    assert [a.reason for a in answers] == ["ReplicaNotFound", ""]
    assert {d.metadata.name for d in cell.every(Decision)} == {"d-one", "d-two"}
    cell.check_ledger()


def _decision(replica: Replica) -> Decision:
    entry = DecisionEntry(replica=replica.metadata.name, uid=replica.uid, attempt=1, node="n1")
    meta = ObjectMeta(name=f"d-{replica.metadata.name}", namespace=replica.metadata.namespace)
    return Decision(meta, DecisionSpec(replica.metadata.name, "web", entries=(entry,)))


async def test_refusal_caused_by_failed_commit_is_rechecked(cell: Cell) -> None:
    """The first replica is deleted while its commit is in flight: the second replica gets the node."""
    big = {"resources": {"cpu": "8"}}
    first, second = await cell.replica("one", template=big), await cell.replica("two", template=big)
    slow = SlowStore(cell)
    asking = [asyncio.create_task(cell.place(r)) for r in (first, second)]
    await yield_to_loop()
    await cell.remove(first)
    slow.resume()
    await cell.clock.advance(1)
    answers = await asyncio.gather(*asking)
    assert [a.reason for a in answers] == ["ReplicaNotFound", ""]
    assert answers[1].result is PlacementOutcome.ACCEPTED
    cell.check_ledger()


async def test_cordon_during_bind_refuses_only_that_item(cell: Cell) -> None:
    """The cordon is committed between check and commit: only the item on that node is refused."""
    await cell.node("n2")
    one, two = await cell.replica("one"), await cell.replica("two")
    slow = SlowStore(cell)
    asking = asyncio.create_task(cell.reserve(cell.item(one, "n1"), cell.item(two, "n2")))
    await yield_to_loop()
    await cell.change_node("n1", unschedulable=True)
    slow.resume()
    answers = await asking
    assert (answers[0].reason, answers[1].result) == ("NodeCordoned", PlacementOutcome.ACCEPTED)
    assert [b.metadata.name for b in cell.every(Binding)] == ["two.1"]
    cell.check_ledger()


async def test_limit_lowered_during_bind_refuses_item(cell: Cell) -> None:
    replica = await cell.replica()
    slow = SlowStore(cell)
    asking = asyncio.create_task(cell.place(replica))
    await yield_to_loop()
    await cell.grant(limit={"cpu": "500m", "memory": "8Gi"})
    slow.resume()
    assert (await asking).reason == "QuotaExceeded"
    assert not cell.authority.ledger.used
    cell.check_ledger()


async def test_reserve_with_constantly_changing_replica_is_refused(cell: Cell) -> None:
    """Every commit finds the replica changed: after a bounded number of rounds the item is refused."""
    replica = await cell.replica()
    commit = cell.store.commit

    async def commit_concurrently(txn: Txn) -> Committed:
        if any("/bindings/" in w.key for w in txn.writes):
            current = cell.get_replica()
            await cell.store.inner.commit(
                Txn(writes=(msgspec.structs.replace(_put(current), key="/replicas/team-a/web-0"),))
            )
        return await commit(txn)

    cell.store.commit = commit_concurrently  # type: ignore[method-assign]
    asking = asyncio.create_task(cell.place(replica))
    for _ in range(limits.COMMIT_ROUNDS_MAX * 2):
        await cell.clock.advance(1)
    answer = await asking
    assert (answer.result, answer.reason) == (PlacementOutcome.REJECTED, "Waiting")
    assert not cell.authority.ledger.claims


def _put(item: Any) -> Any:
    return put_object(kind_of(item), msgspec.structs.replace(item, metadata=without_revision(item.metadata)))


async def test_item_that_waits_for_a_commit_in_flight_does_not_hold_up_the_items_behind_it(cell: Cell) -> None:
    first, second = await cell.replica("web-0"), await cell.replica("web-1")
    slow = SlowStore(cell)
    asking = asyncio.create_task(cell.place(first))
    await yield_to_loop()
    both = asyncio.create_task(cell.reserve(cell.item(first), cell.item(second)))
    await yield_to_loop()
    slow.resume()
    assert (await asking).result is PlacementOutcome.ACCEPTED
    again, other = await both
    assert (again.result, again.binding) == (PlacementOutcome.ALREADY, "web-0.1")
    assert (other.result, other.binding) == (PlacementOutcome.ACCEPTED, "web-1.1")
    cell.check_ledger()


async def test_leadership_lost_during_commit_leaves_no_claim(cell: Cell) -> None:
    replica = await cell.replica()
    slow = SlowStore(cell)
    asking = asyncio.create_task(cell.place(replica))
    await yield_to_loop()
    await cell.elect()
    slow.resume()
    with pytest.raises(Unavailable):
        await asking
    assert not cell.every(Binding)
    assert cell.get_replica().status.placement.binding == ""


async def _race(cell: Cell, rounds: int, clients: int) -> None:
    """`clients` proposals for one GPU, `rounds` times; the winner is released in between."""
    await cell.node("g", gpus=1, capacity={"cpu": "64"})
    await cell.grant()
    await cell.lead()
    replicas = [await cell.replica(f"r-{i}", template={"resources": {"gpu": "1"}}) for i in range(clients)]
    for number in range(rounds):
        current = [cell.get_replica(r.metadata.name) for r in replicas]
        named = {"devices": devices("gpu-0")} if number % 2 else {}
        answers = await asyncio.gather(*(cell.place(r, "g", **named) for r in current))
        won = [i for i, a in enumerate(answers) if a.result is PlacementOutcome.ACCEPTED]
        assert len(won) == 1, f"round {number}: {len(won)} owners"
        winner = current[won[0]]
        claim = f"{TENANT}/{answers[won[0]].binding}"
        for index, answer in enumerate(answers):
            if index != won[0]:
                assert answer.reason == ("DeviceInUse" if named else "InsufficientDevices")
                assert answer.facts["winner"]["claim"] == claim
        assert cell.authority.ledger.nodes["g"].device_use == {"gpu-0": {claim: 1000}}
        await cell.acknowledge(answers[won[0]].binding, Phase.STOPPED)
        assert (await cell.release(winner, ReleaseAction.FREE)).result is PlacementOutcome.ACCEPTED
        if number % 100 == 0:
            cell.check_ledger()
        if number % 25 == 0:  # the node's agent keeps its lease
            assert (await cell.renew("g", 1)).result is PlacementOutcome.ACCEPTED


async def test_restarted_authority_on_disk_restores_all_claims(tmp_path: Path) -> None:
    cell = await Cell.open(tmp_path / "cell.db", clock=SystemClock())
    await cell.node("g", gpus=2)
    await cell.grant()
    await cell.lead()
    replicas = [await cell.replica(f"r-{i}", template={"resources": {"gpu": "500m"}}) for i in range(3)]
    first = [await cell.place(r, "g") for r in replicas]
    await cell.reserve(cell.item(await cell.replica("held"), "g"), bind=False)
    before = cell.authority.ledger
    await cell.close()
    cell = await Cell.open(tmp_path / "cell.db", clock=SystemClock())
    try:
        await cell.lead()
        assert cell.authority.ledger == before and len(before.claims) == 4
        for replica, answer in zip(replicas, first, strict=True):
            again = await cell.place(replica, "g")
            assert (again.result, again.devices) == (PlacementOutcome.ALREADY, answer.devices)
    finally:
        await cell.close()


async def test_64_clients_racing_for_one_gpu_have_one_winner() -> None:
    cell = await Cell.open(clock=SystemClock())
    try:
        await _race(cell, 15, 64)
    finally:
        await cell.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_64_clients_racing_for_one_gpu_500_times_have_one_winner(tmp_path: Path, backend: str) -> None:
    cell = await Cell.open(tmp_path / "cell.db" if backend == "sqlite" else None, clock=SystemClock())
    try:
        await _race(cell, 500, 64)
    finally:
        await cell.close()
