"""Two releases side by side: the worlds have them, what differs is what is claimed, and a strict reader is caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from holdfast.agent.drivers.contract import Task
from holdfast.agent.persisted_state import PersistedState
from holdfast.model import codec
from holdfast.model.kinds import BY_NAME, kind_of_store_key
from holdfast.model.meta import is_condition_true
from holdfast.model.placement_api import PlacementResponse
from holdfast.model.template import Template
from holdfast.sim import failure_report, parallel_runs
from holdfast.sim.fault_injection import ENABLED_FRACTION, SEPARATELY_DRAWN, FaultInjector, FaultKind
from holdfast.sim.fault_schedule import ScheduledFault
from holdfast.sim.mutations import applied_mutation
from holdfast.sim.ports import random_stream
from holdfast.sim.releases import (
    MISSING_FIELDS,
    UNKNOWN,
    UNKNOWN_CONDITION,
    UNKNOWN_KIND_KEY,
    UNKNOWN_LABEL,
    ReleaseVersion,
    object_read_by,
    record_left_by,
    stored_by,
    written_by,
)
from holdfast.sim.simulation import RunOutcome, Simulation, WorldSize
from holdfast.store.contract import Put, Txn

SMALL = WorldSize(nodes_per_region=2, faults_s=60.0, stable_s=60.0)
MESSAGES = {"Answers": PlacementResponse, "Facts": PersistedState}
LONG_S = 80.0
SOON_S = 120.0


def world(
    kind: FaultKind, *targets: str, for_s: float = 20.0, mixed: bool = False, breach_by_s: float | None = None
) -> Simulation:
    planned = tuple(
        ScheduledFault(f"{kind}#s{number}", kind, 8.0 + number, target, for_s)
        for number, target in enumerate(targets, 1)
    )
    made = Simulation(1, SMALL, enabled=(), planned=planned, breach_by_s=breach_by_s)
    made.keeps_mixed_releases = mixed
    return made


@contextmanager
def lived(made: Simulation) -> Iterator[RunOutcome]:
    """A world that has lived, to look at before it is taken apart."""
    try:
        yield made.run_without_teardown()
    finally:
        made._dismantle()


def judge(outcome: RunOutcome) -> None:
    assert outcome.ok, "\n".join([failure_report.headline(outcome), *failure_report.failure_lines(outcome)])


def values(made: Simulation, cell: str) -> dict[str, bytes]:
    return {e.key: e.value for e in made.cell(cell).disk.store._head.entries.values()}


@pytest.mark.slow
def test_what_the_next_release_stores_reads_as_what_it_meant() -> None:
    parallel_runs.silence_logs()
    made = world(FaultKind.COMPACTION, "east")
    found: dict[str, bytes] = {}
    with lived(made) as outcome:
        judge(outcome)
        for cell in ("global", "east"):
            found |= values(made, cell)
    seen: set[str] = set()
    for key, value in found.items():
        kind = kind_of_store_key(key)
        assert kind is not None
        (put,) = stored_by(ReleaseVersion.NEXT, Txn(writes=(Put(key, value),))).writes
        assert isinstance(put, Put) and put.value.count(UNKNOWN.encode()) >= 2
        assert codec.encode(codec.decode_value(kind, put.value)) == codec.encode(codec.decode_value(kind, value))
        seen.add(kind.name)
    assert len(seen) > 15, seen


def test_every_field_that_the_former_release_lacks_exists_and_may_be_absent() -> None:
    for lack in MISSING_FIELDS:
        kind: Any = MESSAGES.get(lack.kind) or BY_NAME[lack.kind].type
        assert lack.why
        for name in lack.path.split("."):
            field = next(f for f in msgspec.structs.fields(kind) if f.encode_name == name)
            kind = _struct_in(field.type)
        assert not field.required, f"{lack.kind} {lack.path} is required"


def _struct_in(kind: Any) -> Any:
    parts = getattr(kind, "__args__", ())
    return next((p for p in parts if isinstance(p, type) and issubclass(p, msgspec.Struct)), kind)


def test_the_former_release_does_not_say_what_it_lacks() -> None:
    told = written_by(
        ReleaseVersion.PREVIOUS,
        PlacementResponse,
        {"incarnation": 3, "answers": [{"result": "Accepted", "facts": {"a": 1}}]},
    )
    assert told == {"answers": [{"result": "Accepted"}]}


def test_an_agents_records_are_read_by_whoever_comes_after() -> None:
    facts = PersistedState(epoch=3, fenced_epoch=2, lease_until_mono_s=7.5, boot="b", incarnation=4)
    assert record_left_by(ReleaseVersion.NEXT, facts) == facts
    assert record_left_by(ReleaseVersion.PREVIOUS, facts) == msgspec.structs.replace(facts, incarnation=0)
    task = Task("t", 1, "acme", "r", "u", "w", "b", "bu", 1, 1, 1, Template(command=("true",)), {"A": "b"})
    assert record_left_by(ReleaseVersion.NEXT, task) == task


@pytest.mark.slow
def test_a_cell_and_an_agent_of_the_next_release_leave_what_they_know_and_are_taken_back() -> None:
    """And the present release reads the disk, the messages, and what it does not know in the open vocabularies."""
    parallel_runs.silence_logs()
    made = world(FaultKind.NEXT_RELEASE, "global", "east", "east-n0", "west-n1")
    written: list[bytes] = []
    for cell in ("global", "east", "west"):
        made.cell(cell).disk.commit_observers.append(
            lambda txn, done: written.extend(write.value for write in txn.writes if isinstance(write, Put))
        )
    with lived(made) as outcome:
        judge(outcome)
        assert all(host.release is ReleaseVersion.CURRENT for host in (*made.cells(), *made.agents))
        here, above = values(made, "east"), values(made, "global")
    assert made.faults.injected_counts[FaultKind.NEXT_RELEASE] == 4
    assert sum(UNKNOWN.encode() in value for value in written) > 50
    assert any(key.startswith(UNKNOWN_KIND_KEY) for key in here)
    node = codec.decode_value(BY_NAME["Node"], here["/nodes/east-n0"])
    assert UNKNOWN_LABEL in node.metadata.labels and "tomorrow.dev/npu" not in node.spec.capacity
    assert is_condition_true(node.status.conditions, UNKNOWN_CONDITION.type), (
        "conditions of types that nobody here knows stay"
    )
    region = codec.decode_value(BY_NAME["Region"], above["/regions/east"])
    assert is_condition_true(region.status.conditions, UNKNOWN_CONDITION.type)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.NEXT_RELEASE, FaultKind.FORMER_RELEASE])
@pytest.mark.parametrize(
    "targets",
    [("global",), ("east",), ("east-n0", "east-n1", "west-n0"), ("global", "west", "west-n1")],
    ids="-and-".join,
)
def test_releases_side_by_side_come_to_rest(kind: FaultKind, targets: tuple[str, ...]) -> None:
    """Nobody corrects for ever what a neighbour says otherwise."""
    parallel_runs.silence_logs()
    made = world(kind, *targets, for_s=LONG_S, mixed=True)
    with lived(made) as outcome:
        judge(outcome)
        hosts = (*made.cells(), *made.agents)
        assert {host.name for host in hosts if host.release is not ReleaseVersion.CURRENT} == set(targets)


@pytest.mark.slow
def test_a_strict_reader_is_caught() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("unknown-field-refused"):
        refused = world(FaultKind.NEXT_RELEASE, "east-n0", breach_by_s=SOON_S).run()
    assert {violation.invariant for violation in refused.violations} == {"skew"}
    with applied_mutation("unknown-field-stops-cell"):
        stopped = world(FaultKind.NEXT_RELEASE, "east", breach_by_s=SOON_S).run()
    assert "cannot read its disk" in str(stopped.violations[0])


def test_what_a_release_drops_because_it_does_not_know_it_is_no_write_of_it() -> None:
    kind = BY_NAME["Node"]
    value = b'{"metadata":{"name":"n1"},"spec":{"zone":"a"},"status":{"execution":{"warm":["x"],"epoch":2}}}'
    item = codec.decode(kind, value, 5)
    assert object_read_by(ReleaseVersion.CURRENT, kind, item) is item
    known = object_read_by(ReleaseVersion.PREVIOUS, kind, item)
    assert (known.status.execution.cached_artifacts, known.status.execution.epoch, known.revision) == ((), 2, 5)


def test_kinds_that_came_later_leave_other_draws_as_they_were() -> None:
    drawn_later: set[FaultKind] = set()
    for seed in range(1, 200):
        chance = random_stream(seed, "chaos/swarm")
        first = {kind for kind in FaultKind if kind not in SEPARATELY_DRAWN and chance.random() < ENABLED_FRACTION}
        enabled = FaultInjector(seed, lambda: 0.0).enabled
        assert enabled - SEPARATELY_DRAWN == first
        drawn_later |= enabled & SEPARATELY_DRAWN
    assert drawn_later == SEPARATELY_DRAWN
