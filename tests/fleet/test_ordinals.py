"""Exclusive workloads that change region: never more instances than desired, never an ordinal twice.

The global decision is real. Regions receive it late, start and stop with delay, and report late.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.expected import present
from tests.factories import assignment, cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.fleet import assign, ordinals
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.meta import Key
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.region import HealthState, Region
from holdfast.model.workload import Exclusivity, Workload
from holdfast.model.writes import Create, Delete, Update

REGIONS = ("a", "b", "c")
WANTED = 2
ALLOWED = (("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ())


class World:
    def __init__(self) -> None:
        one = workload("one", replicas=WANTED, exclusive=Exclusivity())
        self.home = cache_of(one, priority(), tenant(), *(region(name) for name in REGIONS))
        self.mirror: dict[str, Assignment | None] = dict.fromkeys(REGIONS)
        self.there: dict[str, set[int]] = {name: set() for name in REGIONS}

    def allow(self, names: tuple[str, ...]) -> None:
        found = present(self.home.get(Workload, "one", "acme"))
        spec = msgspec.structs.replace(found.spec, placement=PlacementRules(regions=names))
        self.home.put(with_new_revision(found, spec=spec))

    def scale(self, replicas: int) -> None:
        found = present(self.home.get(Workload, "one", "acme"))
        self.home.put(with_new_revision(found, spec=msgspec.structs.replace(found.spec, replicas=replicas)))

    def health(self, where: str, state: HealthState) -> None:
        found = present(self.home.get(Region, where))
        health = msgspec.structs.replace(found.status.health, state=state)
        self.home.put(with_new_revision(found, status=msgspec.structs.replace(found.status, health=health)))

    def decide(self) -> None:
        for write in assign.decide(Key("acme", "one"), self.home, 1.0).writes:
            match write:
                case Create():
                    self.home.put(with_new_revision(write.object, metadata=meta(write.object.metadata.name, "acme")))
                case Update() if isinstance(write.object, Assignment):
                    self.home.put(with_new_revision(write.object))
                case Delete():
                    self.home.remove(Assignment, write.key, int(meta("gone").resource_version))

    def at_home(self, where: str) -> Assignment | None:
        return self.home.get(Assignment, f"one.{where}.normal", "acme")

    def fetch(self, where: str) -> None:
        """`replicate` creates assigned replicas at once; removal takes time."""
        self.mirror[where] = self.at_home(where)
        known = self.mirror[where]
        if known is not None and not known.spec.suspended:
            self.there[where] |= set(known.spec.ordinals)

    def toggle_suspended(self, where: str) -> None:
        """Suspends or resumes the region's Assignment, as a recovery does."""
        stored = self.at_home(where)
        if stored is not None:
            spec = msgspec.structs.replace(
                stored.spec, suspended=not stored.spec.suspended, epoch=stored.spec.epoch + 1
            )
            self.home.put(with_new_revision(stored, spec=spec))

    def delete_replica(self, where: str, number: int) -> None:
        """A replica is deleted; the region creates it again at its next pass."""
        self.there[where].discard(number % WANTED)

    def stop(self, where: str) -> None:
        known = self.mirror[where]
        if known is not None and known.spec.suspended:
            return
        self.there[where] &= set(known.spec.ordinals) if known is not None else set()

    def report(self, where: str) -> None:
        stored, known = self.at_home(where), self.mirror[where]
        if stored is not None and known is not None:
            names = tuple(sorted(self.there[where]))
            status = AssignmentStatus(observed_epoch=known.spec.epoch, replicas=len(names), ordinals=names)
            self.home.put(with_new_revision(stored, status=status))

    def check(self) -> None:
        every = [n for name in REGIONS for n in self.there[name]]
        assert len(every) == len(set(every)), f"ordinal runs twice: {self.there}"
        assert len(every) <= WANTED, f"more replicas than desired: {self.there}"


ACTS = (
    "decide",
    "decide",
    "fetch",
    "fetch",
    "stop",
    "report",
    "allow",
    "allow",
    "lose",
    "find",
    "settle",
    "scale",
    "hold",
    "delete",
)
stories = st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(REGIONS), st.integers(0, 5)), max_size=60)


def run_events(events: list[tuple[str, str, int]]) -> World:
    world = World()
    settle(world, REGIONS)
    for act, where, number in events:
        match act:
            case "decide":
                world.decide()
            case "fetch":
                world.fetch(where)
            case "stop":
                world.stop(where)
            case "report":
                world.report(where)
            case "allow":
                world.allow(ALLOWED[number])
            case "lose":
                world.health(where, HealthState.LOST)
            case "find":
                world.health(where, HealthState.HEALTHY)
            case "settle":
                settle(world, (where,))
            case "scale":
                world.scale(number % (WANTED + 1))
            case "hold":
                world.toggle_suspended(where)
            case "delete":
                world.delete_replica(where, number)
        world.check()
    return world


def settle(world: World, names: tuple[str, ...]) -> None:
    for _ in range(3):
        world.decide()
        for name in names:
            world.fetch(name)
            world.check()
            world.stop(name)
            world.report(name)


@settings(max_examples=400, deadline=None)
@given(stories)
def test_ordinals_are_unique_and_within_the_replica_count(events: list[tuple[str, str, int]]) -> None:
    world = run_events(events)
    world.scale(WANTED)
    for name in REGIONS:
        world.health(name, HealthState.HEALTHY)
        stored = world.at_home(name)
        if stored is not None and stored.spec.suspended:
            world.toggle_suspended(name)
    settle(world, REGIONS)
    settle(world, REGIONS)
    assert sorted(n for name in REGIONS for n in world.there[name]) == list(range(WANTED)), "all run in the end"


def assign_beside(shares: dict[str, int], stored: list[Assignment]) -> ordinals.Ordinals:
    """Planted bug: a new ordinal is created while the withdrawn one may still run."""
    held = {a.spec.region: a.spec.ordinals for a in stored}
    taken = {n for found in held.values() for n in found}
    given: ordinals.Ordinals = {}
    for name, share in sorted(shares.items()):
        own = held.get(name, ())[:share]
        fresh = [n for n in range(9) if n not in taken][: share - len(own)]
        taken |= set(fresh)
        given[name] = tuple(sorted((*own, *fresh)))
    return given


def test_search_detects_a_planted_ordinal_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assign, "assign_ordinals", assign_beside)

    @settings(max_examples=400, deadline=None, derandomize=True, database=None, phases=(Phase.generate,))
    @given(stories)
    def search(events: list[tuple[str, str, int]]) -> None:
        run_events(events)

    with pytest.raises(AssertionError, match="more replicas than desired"):
        search()


def test_ordinal_moves_after_its_region_released_it() -> None:
    there = assignment(where="a", replicas=1, ordinals=(0,), exclusive=Exclusivity())
    running = with_new_revision(there, status=AssignmentStatus(observed_epoch=1, replicas=1, ordinals=(0,)))
    assert ordinals.assign_ordinals({"b": 1}, [running]) == {"b": ()}
    told = with_new_revision(running, spec=msgspec.structs.replace(running.spec, ordinals=(), replicas=0, epoch=2))
    assert ordinals.assign_ordinals({"b": 1}, [told]) == {"b": ()}, "withdrawn, and it may still run"
    gone = with_new_revision(told, status=AssignmentStatus(observed_epoch=2, replicas=0))
    assert ordinals.assign_ordinals({"b": 1}, [gone]) == {"b": (0,)}


def assignment_with(where: str, given: tuple[int, ...], there: tuple[int, ...]) -> Assignment:
    """An Assignment with these ordinals and this report."""
    made = assignment(where=where, replicas=len(given), ordinals=given, exclusive=Exclusivity())
    return with_new_revision(made, status=AssignmentStatus(observed_epoch=1, replicas=len(there), ordinals=there))


def test_report_of_still_running_withdrawn_ordinal_does_not_release_it() -> None:
    """The withdrawn ordinal 1 runs and ordinal 0 does not run yet, so the number of replicas alone would match."""
    swapped = assignment_with("a", given=(0,), there=(1,))
    assert not ordinals.has_released(swapped)
    assert ordinals.assign_ordinals({"a": 1, "b": 1}, [swapped]) == {"a": (0,), "b": ()}
    assert ordinals.assign_ordinals({"a": 1, "b": 1}, [assignment_with("a", (0,), (0,))]) == {"a": (0,), "b": (1,)}


def test_region_keeps_its_running_ordinals_when_its_share_returns() -> None:
    kept = assignment_with("b", given=(), there=(1,))
    assert ordinals.assign_ordinals({"a": 1, "b": 1}, [kept]) == {"a": (), "b": (1,)}
    assert ordinals.assign_ordinals({"b": 2}, [kept]) == {"b": (0, 1)}


def test_report_without_ordinals_releases_only_if_nothing_runs() -> None:
    silent = with_new_revision(assignment_with("a", (0, 1), ()), status=AssignmentStatus(observed_epoch=1, replicas=1))
    assert not ordinals.has_released(silent)
    assert ordinals.has_released(with_new_revision(silent, status=AssignmentStatus(observed_epoch=1)))
