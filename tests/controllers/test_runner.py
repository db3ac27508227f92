"""The runner: decisions are applied once, its own writes are visible, and faults do not stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from tests.controllers.scripted import ScriptedCell, ScriptedClient, meta, no_answer
from tests.controllers.virtual import VirtualPorts, run, until
from tests.expected import of_type

from holdfast.controllers.controller import Controller
from holdfast.controllers.informer import Informers
from holdfast.controllers.leader_election import Election
from holdfast.controllers.runner import Runner
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import Conflict, Forbidden, Overloaded, Unavailable
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction, ReleaseItem
from holdfast.model.tenant import Tenant
from holdfast.model.view import View
from holdfast.model.writes import NO_CHANGES, Create, Delete, Notice, Outcome, Update


def wake(new: Tenant | None, old: Tenant | None, view: View) -> Iterable[Key]:
    item = new or old
    return (item.key,) if item is not None else ()


def keys(view: View) -> Iterable[Key]:
    return [tenant.key for tenant in view.list(Tenant)]


def one_endpoint_each(key: Key, view: View, now: float) -> Outcome:
    """Creates one Endpoint per tenant, and deletes it with the tenant."""
    tenant, made = view.get(Tenant, key.name), view.get(Endpoint, key.name, "t")
    if tenant is None and made is not None:
        return Outcome(writes=(Delete("Endpoint", made.key, made.uid),))
    if tenant is not None and made is None:
        spec = EndpointSpec(workload="w", region="west")
        return Outcome(
            writes=(Create(Endpoint(metadata=meta(key.name), spec=spec)),), notices=(Notice(tenant, "Made", "made"),)
        )
    return NO_CHANGES


class Setup:
    def __init__(
        self, decide: Callable[..., Outcome] = one_endpoint_each, election: bool = False, **options: Any
    ) -> None:
        self.ports = VirtualPorts()
        self.cell = ScriptedCell()
        self.client = ScriptedClient(self.cell, self.ports)
        self.informers = Informers(self.client, self.ports)
        self.decided: list[Key] = []

        def counting(key: Key, view: View, now: float) -> Outcome:
            self.decided.append(key)
            return decide(key, view, now)

        controller = Controller("test", counting, {Tenant: wake}, keys, reads=(Endpoint,), **options)
        self.election = Election(self.client, "test", "me", self.ports) if election else None
        self.runner = Runner(controller, self.client, self.informers, self.ports, self.election)

    async def __aenter__(self) -> Setup:
        await self.informers.start()
        if self.election is not None:
            await self.election.start()
        await self.runner.start()
        await self.informers.synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runner.stop()
        if self.election is not None:
            await self.election.stop()
        await self.informers.stop()

    def tenant(self, name: str) -> Tenant:
        return of_type(self.cell.put(Tenant(metadata=ObjectMeta(name=name))), Tenant)

    def creations(self) -> list[str]:
        return [w.object.metadata.name for c in self.cell.commits for w in c if isinstance(w, Create)]

    def made(self) -> list[str]:
        return [item.metadata.name for item in self.cell.all(Endpoint)]


def test_runner_decides_and_applies_when_woken() -> None:
    async def main() -> None:
        setup = Setup()
        setup.tenant("a")
        async with setup:
            await until(lambda: setup.made() == ["a"], within_s=1)
            setup.tenant("b")
            await until(lambda: setup.made() == ["a", "b"], within_s=1)
            setup.cell.remove(Tenant, Key("", "a"))
            await until(lambda: setup.made() == ["b"], within_s=1)
            assert [n.reason for n in setup.cell.notices] == ["Made", "Made"]

    run(main)


def test_runner_with_stalled_watch_sees_its_own_writes() -> None:
    async def main() -> None:
        async with Setup() as setup:
            await asyncio.sleep(0.1)
            setup.client.stalled = True
            # The watches are stalled: only the resync wakes the runner, and only its own writes are new.
            setup.tenant("a")
            await until(lambda: setup.made() == ["a"], within_s=90)
            for _ in range(20):
                setup.runner.queue.add(Key("", "a"))
                await asyncio.sleep(0.1)
            assert setup.creations() == ["a"]

    run(main)


def test_runner_retries_conflict_soon() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.before_commit = [Conflict("someone was first")] * 3
        setup.tenant("a")
        async with setup:
            await until(lambda: setup.made() == ["a"], within_s=2)

    run(main)


@pytest.mark.parametrize("unanswered", [1, 3, 12])
def test_unanswered_commit_that_landed_has_one_effect(unanswered: int) -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.after_commit = [no_answer() for _ in range(unanswered)]
        setup.client.on_get = [Unavailable("no")] * (unanswered // 2)
        setup.tenant("a")
        async with setup:
            await until(lambda: setup.made() == ["a"], within_s=300)
            await asyncio.sleep(120)
            assert setup.creations() == ["a"]

    run(main)


def test_unanswered_commit_that_did_not_land_is_repeated() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.before_commit = [no_answer() for _ in range(30)]
        setup.tenant("a")
        async with setup:
            await until(lambda: setup.made() == ["a"], within_s=900)
            await asyncio.sleep(60)
            assert setup.creations() == ["a"]

    run(main)


def test_runner_waits_retry_after_of_overloaded_server() -> None:
    async def main() -> None:
        setup = Setup()
        setup.client.before_commit = [Overloaded("busy", retry_after_s=9.0)]
        setup.tenant("a")
        async with setup:
            await asyncio.sleep(8.5)
            assert setup.made() == []
            await until(lambda: setup.made() == ["a"], within_s=2)

    run(main)


def test_exception_in_decide_affects_only_its_key() -> None:
    async def main() -> None:
        def decide(key: Key, view: View, now: float) -> Outcome:
            if key.name == "bad":
                raise ZeroDivisionError("a bug")
            return one_endpoint_each(key, view, now)

        setup = Setup(decide, resync_s=1000.0)
        setup.tenant("bad")
        setup.tenant("good")
        async with setup:
            await until(lambda: setup.made() == ["good"], within_s=1)
            await asyncio.sleep(60)
            assert 5 < setup.decided.count(Key("", "bad")) < 20

    run(main)


def test_decide_reading_undeclared_kind_raises_lookup_error() -> None:
    async def main() -> None:
        found: list[str] = []

        def decide(key: Key, view: View, now: float) -> Outcome:
            with pytest.raises(LookupError, match="not in its wakes or reads") as caught:
                view.get(Term, "x")
            found.append(str(caught.value))
            return NO_CHANGES

        setup = Setup(decide)
        setup.tenant("a")
        async with setup:
            await until(lambda: found, within_s=1)

    run(main)


def test_forbidden_write_is_retried_after_long_backoff() -> None:
    async def main() -> None:
        setup = Setup(resync_s=1000.0)
        setup.client.before_commit = [Forbidden("not yours")]
        setup.tenant("a")
        async with setup:
            await asyncio.sleep(50)
            assert setup.made() == [] and len(setup.decided) == 1
            await until(lambda: setup.made() == ["a"], within_s=20)

    run(main)


def test_runner_decides_again_after_requested_delay() -> None:
    async def main() -> None:
        setup = Setup(lambda key, view, now: Outcome(requeue_after_s=10.0), resync_s=1000.0)
        setup.tenant("a")
        async with setup:
            await asyncio.sleep(55)
            assert len(setup.decided) == 6

    run(main)


def test_runner_resync_repairs_without_event() -> None:
    async def main() -> None:
        setup = Setup(resync_s=30.0)
        setup.tenant("a")
        async with setup:
            await until(lambda: setup.made() == ["a"], within_s=1)
            setup.cell.remove(Endpoint, Key("t", "a"))  # Endpoints wake nothing.
            await until(lambda: setup.made() == ["a"], within_s=60)

    run(main)


def test_batch_is_one_commit_and_is_split_on_conflict() -> None:
    async def main() -> None:
        setup = Setup(batch=True)
        for n in range(100):
            setup.tenant(f"t{n:03}")
        setup.cell.put(Endpoint(metadata=meta("t050"), spec=EndpointSpec(workload="x", region="east")))
        async with setup:
            await until(lambda: len(setup.made()) == 100, within_s=2)
            assert len(setup.cell.commits) == 1

        spoiled = Setup(batch=True)
        for n in range(100):
            spoiled.tenant(f"t{n:03}")
        async with spoiled:
            # The cache does not know yet that one Endpoint exists.
            spoiled.client.stalled = True
            spoiled.cell.put(Endpoint(metadata=meta("t050"), spec=EndpointSpec(workload="x", region="east")))
            await until(lambda: len(spoiled.made()) == 100, within_s=2)
            assert len(spoiled.cell.commits) <= 10

    run(main)


def test_batch_decisions_on_one_object_are_committed_in_sequence() -> None:
    async def main() -> None:
        def count(key: Key, view: View, now: float) -> Outcome:
            shared = view.get(Endpoint, "shared", "t")
            assert shared is not None
            if key.name in shared.spec.workload.split("-"):
                return NO_CHANGES
            spec = msgspec.structs.replace(shared.spec, workload=f"{shared.spec.workload}-{key.name}")
            return Outcome(writes=(Update(msgspec.structs.replace(shared, spec=spec)),))

        setup = Setup(count, batch=True)
        setup.cell.put(Endpoint(metadata=meta("shared"), spec=EndpointSpec(workload="w", region="west")))
        for name in "abcdef":
            setup.tenant(name)
        async with setup:
            await until(lambda: setup.cell.all(Endpoint)[0].spec.workload == "w-a-b-c-d-e-f", within_s=2)

    run(main)


def test_rejected_release_is_repeated_until_accepted() -> None:
    async def main() -> None:
        def free(key: Key, view: View, now: float) -> Outcome:
            item = ReleaseItem("t", key.name, "uid", 1, ReleaseAction.FREE)
            return Outcome(releases=(item,)) if view.get(Tenant, key.name) else NO_CHANGES

        setup = Setup(free, resync_s=1000.0)
        setup.cell.release_result = PlacementOutcome.REJECTED
        setup.tenant("a")
        async with setup:
            await until(lambda: len(setup.cell.released) == 3, within_s=10)
            setup.cell.release_result = PlacementOutcome.ACCEPTED
            await until(lambda: len(setup.cell.released) == 4, within_s=10)
            await asyncio.sleep(100)
            assert len(setup.cell.released) == 4

    run(main)


def test_singleton_stops_writing_after_losing_its_term() -> None:
    async def main() -> None:
        setup = Setup(election=True)
        async with setup:
            setup.tenant("a")
            await until(lambda: setup.made() == ["a"], within_s=5)
            assert setup.election is not None and setup.election.token is not None
            # Another process takes the term: writes under the old token are refused from now on.
            term = setup.cell.objects[(Term, Key("", "test"))]
            setup.cell.put(msgspec.structs.replace(term, spec=TermSpec(holder="other", term=9)))
            setup.tenant("b")
            await until(lambda: setup.election is not None and setup.election.token is None, within_s=5)
            assert setup.made() == ["a"]

    run(main)


def test_new_leader_lists_before_its_first_decision() -> None:
    async def main() -> None:
        setup = Setup(election=True)
        setup.tenant("a")
        setup.client.stalled = True
        await setup.informers.start()
        await setup.informers.synced()
        # Written by the previous leader after our caches were synced; our watch has not delivered it.
        setup.cell.put(Endpoint(metadata=meta("a"), spec=EndpointSpec(workload="w", region="west")))
        async with setup:
            await until(lambda: len(setup.decided) > 0, within_s=10)
            await asyncio.sleep(5)
            assert setup.creations() == ["test", "test"]  # its Lease and its Term; no second endpoint

    run(main)


def test_stopped_runner_decides_nothing_and_leaves_no_tasks() -> None:
    async def main() -> None:
        setup = Setup()
        async with setup:
            setup.tenant("a")
            await until(lambda: setup.made() == ["a"], within_s=1)
        setup.tenant("b")
        await asyncio.sleep(100)
        assert setup.made() == ["a"]
        assert len(asyncio.all_tasks()) == 1

    run(main)
