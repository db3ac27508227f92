"""Simulations with processes of two releases, and the rewriting of messages and stored objects between them."""

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
from holdfast.sim.hosts import AgentHost, CellHost
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
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import RunOutcome, Simulation
from holdfast.store.contract import Put, Txn

SMALL = SimulationSize(nodes_per_region=2, faults_s=60.0, stable_s=60.0)
MESSAGES = {"PlacementResponse": PlacementResponse, "PersistedState": PersistedState}
LONG_S = 80.0
SOON_S = 120.0


def simulation_of(
    kind: FaultKind, *targets: str, for_s: float = 20.0, mixed: bool = False, violation_by_s: float | None = None
) -> Simulation:
    planned = tuple(
        ScheduledFault(f"{kind}#s{number}", kind, 8.0 + number, target, for_s)
        for number, target in enumerate(targets, 1)
    )
    simulation = Simulation(1, SMALL, enabled=(), planned=planned, violation_by_s=violation_by_s)
    simulation.keeps_mixed_releases = mixed
    return simulation


@contextmanager
def finished(simulation: Simulation) -> Iterator[RunOutcome]:
    """Runs the simulation and yields before its teardown."""
    try:
        yield simulation.run_without_teardown()
    finally:
        simulation._tear_down()


def assert_ok(outcome: RunOutcome) -> None:
    assert outcome.ok, "\n".join([failure_report.headline(outcome), *failure_report.failure_lines(outcome)])


def values(simulation: Simulation, cell: str) -> dict[str, bytes]:
    return {e.key: e.value for e in simulation.cell(cell).disk.store._head.entries.values()}


@pytest.mark.slow
def test_current_release_reads_objects_stored_by_next_release() -> None:
    parallel_runs.silence_logs()
    simulation = simulation_of(FaultKind.COMPACTION, "east")
    found: dict[str, bytes] = {}
    with finished(simulation) as outcome:
        assert_ok(outcome)
        for cell in ("global", "east"):
            found |= values(simulation, cell)
    kinds: set[str] = set()
    for key, value in found.items():
        kind = kind_of_store_key(key)
        assert kind is not None
        (put,) = stored_by(ReleaseVersion.NEXT, Txn(writes=(Put(key, value),))).writes
        assert isinstance(put, Put) and put.value.count(UNKNOWN.encode()) >= 2
        assert codec.encode(codec.decode_value(kind, put.value)) == codec.encode(codec.decode_value(kind, value))
        kinds.add(kind.name)
    assert len(kinds) > 15, kinds


def test_every_field_missing_in_previous_release_exists_and_is_optional() -> None:
    for missing in MISSING_FIELDS:
        kind: Any = MESSAGES.get(missing.kind) or BY_NAME[missing.kind].type
        assert missing.why
        for name in missing.path.split("."):
            field = next(f for f in msgspec.structs.fields(kind) if f.encode_name == name)
            kind = _struct_in(field.type)
        assert not field.required, f"{missing.kind} {missing.path} is required"


def _struct_in(kind: Any) -> Any:
    parts = getattr(kind, "__args__", ())
    return next((p for p in parts if isinstance(p, type) and issubclass(p, msgspec.Struct)), kind)


def test_previous_release_does_not_send_missing_fields() -> None:
    message = written_by(
        ReleaseVersion.PREVIOUS,
        PlacementResponse,
        {"incarnation": 3, "results": [{"result": "Accepted", "facts": {"a": 1}}]},
    )
    assert message == {"results": [{"result": "Accepted"}]}


def test_agent_records_are_readable_by_other_releases() -> None:
    state = PersistedState(epoch=3, fenced_epoch=2, lease_until_mono_s=7.5, boot="b", incarnation=4)
    assert record_left_by(ReleaseVersion.NEXT, state) == state
    assert record_left_by(ReleaseVersion.PREVIOUS, state) == msgspec.structs.replace(state, incarnation=0)
    task = Task("t", 1, "acme", "r", "u", "w", "b", "bu", 1, 1, 1, Template(command=("true",)), {"A": "b"})
    assert record_left_by(ReleaseVersion.NEXT, task) == task


@pytest.mark.slow
def test_upgraded_cell_and_agent_leave_unknown_fields_and_roll_back() -> None:
    """The current release reads stored objects, messages and unknown values of open vocabularies."""
    parallel_runs.silence_logs()
    simulation = simulation_of(FaultKind.NEXT_RELEASE, "global", "east", "east-n0", "west-n1")
    written: list[bytes] = []
    for cell in ("global", "east", "west"):
        simulation.cell(cell).disk.commit_observers.append(
            lambda txn, done: written.extend(write.value for write in txn.writes if isinstance(write, Put))
        )
    with finished(simulation) as outcome:
        assert_ok(outcome)
        hosts: list[CellHost | AgentHost] = [*simulation.cells(), *simulation.agents]
        assert all(host.release is ReleaseVersion.CURRENT for host in hosts)
        east_objects, global_objects = values(simulation, "east"), values(simulation, "global")
    assert simulation.faults.injected_counts[FaultKind.NEXT_RELEASE] == 4
    assert sum(UNKNOWN.encode() in value for value in written) > 50
    assert any(key.startswith(UNKNOWN_KIND_KEY) for key in east_objects)
    node = codec.decode_value(BY_NAME["Node"], east_objects["/nodes/east-n0"])
    assert UNKNOWN_LABEL in node.metadata.labels and "tomorrow.dev/npu" not in node.spec.capacity
    assert is_condition_true(node.status.conditions, UNKNOWN_CONDITION.type), "conditions of unknown types stay"
    region = codec.decode_value(BY_NAME["Region"], global_objects["/regions/east"])
    assert is_condition_true(region.status.conditions, UNKNOWN_CONDITION.type)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.NEXT_RELEASE, FaultKind.FORMER_RELEASE])
@pytest.mark.parametrize(
    "targets",
    [("global",), ("east",), ("east-n0", "east-n1", "west-n0"), ("global", "west", "west-n1")],
    ids="-and-".join,
)
def test_mixed_releases_converge(kind: FaultKind, targets: tuple[str, ...]) -> None:
    """No controller overwrites another release's fields forever."""
    parallel_runs.silence_logs()
    simulation = simulation_of(kind, *targets, for_s=LONG_S, mixed=True)
    with finished(simulation) as outcome:
        assert_ok(outcome)
        hosts: list[CellHost | AgentHost] = [*simulation.cells(), *simulation.agents]
        assert {host.name for host in hosts if host.release is not ReleaseVersion.CURRENT} == set(targets)


@pytest.mark.slow
def test_strict_decoder_is_detected() -> None:
    parallel_runs.silence_logs()
    with applied_mutation("unknown-field-refused"):
        refused = simulation_of(FaultKind.NEXT_RELEASE, "east-n0", violation_by_s=SOON_S).run()
    assert {violation.invariant for violation in refused.violations} == {"skew"}
    with applied_mutation("unknown-field-stops-cell"):
        stopped = simulation_of(FaultKind.NEXT_RELEASE, "east", violation_by_s=SOON_S).run()
    assert "cannot read its disk" in str(stopped.violations[0])


def test_object_read_by_previous_release_lacks_new_fields() -> None:
    kind = BY_NAME["Node"]
    value = b'{"metadata":{"name":"n1"},"spec":{"zone":"a"},"status":{"execution":{"cachedArtifacts":["x"],"epoch":2}}}'
    item = codec.decode(kind, value, 5)
    assert object_read_by(ReleaseVersion.CURRENT, kind, item) is item
    reread = object_read_by(ReleaseVersion.PREVIOUS, kind, item)
    assert (reread.status.execution.cached_artifacts, reread.status.execution.epoch, reread.revision) == ((), 2, 5)


def test_later_fault_kinds_leave_other_draws_unchanged() -> None:
    drawn_later: set[FaultKind] = set()
    for seed in range(1, 400):
        rng = random_stream(seed, "chaos/swarm")
        first = {kind for kind in FaultKind if kind not in SEPARATELY_DRAWN and rng.random() < ENABLED_FRACTION}
        enabled = FaultInjector(seed, lambda: 0.0).enabled
        assert enabled - set(SEPARATELY_DRAWN) == first
        drawn_later |= enabled & set(SEPARATELY_DRAWN)
    assert drawn_later == set(SEPARATELY_DRAWN)
