"""Two releases side by side: the worlds have them, what differs is what is claimed, and a strict reader is caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from holdfast.agent.drivers.contract import Task
from holdfast.agent.memory import Facts
from holdfast.model import codec
from holdfast.model.kinds import BY_NAME, kind_of_store_key
from holdfast.model.meta import is_true
from holdfast.model.placement import Answers
from holdfast.model.template import Template
from holdfast.sim import runs, story
from holdfast.sim.chaos import LATER, SHARE_ENABLED, Chaos, Kind
from holdfast.sim.mutations import planted
from holdfast.sim.ports import stream
from holdfast.sim.releases import (
    CONDITION,
    LACKS,
    MARK,
    UNKNOWN,
    UNKNOWN_KIND_KEY,
    Release,
    left_on_disk,
    seen_by,
    stored,
    voiced,
)
from holdfast.sim.troubles import Trouble
from holdfast.sim.world import Outcome, Shape, World
from holdfast.store.contract import Put, Txn

SMALL = Shape(nodes_per_region=2, faults_s=60.0, stable_s=60.0)
MESSAGES = {"Answers": Answers, "Facts": Facts}
LONG_S = 80.0
SOON_S = 120.0


def world(
    kind: Kind, *targets: str, for_s: float = 20.0, mixed: bool = False, breach_by_s: float | None = None
) -> World:
    planned = tuple(
        Trouble(f"{kind}#s{number}", kind, 8.0 + number, target, for_s) for number, target in enumerate(targets, 1)
    )
    made = World(1, SMALL, enabled=(), planned=planned, breach_by_s=breach_by_s)
    made.mixed = mixed
    return made


@contextmanager
def lived(made: World) -> Iterator[Outcome]:
    """A world that has lived, to look at before it is taken apart."""
    try:
        yield made.live()
    finally:
        made._dismantle()


def judge(outcome: Outcome) -> None:
    assert outcome.ok, "\n".join([story.headline(outcome), *story.complaints(outcome)])


def values(made: World, cell: str) -> dict[str, bytes]:
    return {e.key: e.value for e in made.cell(cell).disk.store._head.entries.values()}


@pytest.mark.slow
def test_what_the_next_release_stores_reads_as_what_it_meant() -> None:
    runs.quiet()
    made = world(Kind.COMPACTION, "east")
    found: dict[str, bytes] = {}
    with lived(made) as outcome:
        judge(outcome)
        for cell in ("global", "east"):
            found |= values(made, cell)
    seen: set[str] = set()
    for key, value in found.items():
        kind = kind_of_store_key(key)
        assert kind is not None
        (put,) = stored(Release.NEXT, Txn(writes=(Put(key, value),))).writes
        assert isinstance(put, Put) and put.value.count(UNKNOWN.encode()) >= 2
        assert codec.encode(codec.read(kind, put.value)) == codec.encode(codec.read(kind, value))
        seen.add(kind.name)
    assert len(seen) > 15, seen


def test_every_field_that_the_former_release_lacks_exists_and_may_be_absent() -> None:
    for lack in LACKS:
        kind: Any = MESSAGES.get(lack.of) or BY_NAME[lack.of].type
        assert lack.why
        for name in lack.path.split("."):
            field = next(f for f in msgspec.structs.fields(kind) if f.encode_name == name)
            kind = _struct_in(field.type)
        assert not field.required, f"{lack.of} {lack.path} is required"


def _struct_in(kind: Any) -> Any:
    parts = getattr(kind, "__args__", ())
    return next((p for p in parts if isinstance(p, type) and issubclass(p, msgspec.Struct)), kind)


def test_the_former_release_does_not_say_what_it_lacks() -> None:
    told = voiced(Release.FORMER, Answers, {"incarnation": 3, "answers": [{"result": "Accepted", "facts": {"a": 1}}]})
    assert told == {"answers": [{"result": "Accepted"}]}


def test_an_agents_records_are_read_by_whoever_comes_after() -> None:
    facts = Facts(epoch=3, fenced_epoch=2, lease_until_mono_s=7.5, boot="b", incarnation=4)
    assert left_on_disk(Release.NEXT, facts) == facts
    assert left_on_disk(Release.FORMER, facts) == msgspec.structs.replace(facts, incarnation=0)
    task = Task("t", 1, "acme", "r", "u", "w", "b", "bu", 1, 1, 1, Template(command=("true",)), {"A": "b"})
    assert left_on_disk(Release.NEXT, task) == task


@pytest.mark.slow
def test_a_cell_and_an_agent_of_the_next_release_leave_what_they_know_and_are_taken_back() -> None:
    """And the present release reads the disk, the messages, and what it does not know in the open vocabularies."""
    runs.quiet()
    made = world(Kind.NEXT_RELEASE, "global", "east", "east-n0", "west-n1")
    written: list[bytes] = []
    for cell in ("global", "east", "west"):
        made.cell(cell).disk.witnesses.append(
            lambda txn, done: written.extend(write.value for write in txn.writes if isinstance(write, Put))
        )
    with lived(made) as outcome:
        judge(outcome)
        assert all(host.release is Release.PRESENT for host in (*made.cells(), *made.agents))
        here, above = values(made, "east"), values(made, "global")
    assert made.chaos.fired[Kind.NEXT_RELEASE] == 4
    assert sum(UNKNOWN.encode() in value for value in written) > 50
    assert any(key.startswith(UNKNOWN_KIND_KEY) for key in here)
    node = codec.read(BY_NAME["Node"], here["/nodes/east-n0"])
    assert MARK in node.metadata.labels and "tomorrow.dev/npu" not in node.spec.capacity
    assert is_true(node.status.conditions, CONDITION.type), "conditions of types that nobody here knows stay"
    region = codec.read(BY_NAME["Region"], above["/regions/east"])
    assert is_true(region.status.conditions, CONDITION.type)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.NEXT_RELEASE, Kind.FORMER_RELEASE])
@pytest.mark.parametrize(
    "targets",
    [("global",), ("east",), ("east-n0", "east-n1", "west-n0"), ("global", "west", "west-n1")],
    ids="-and-".join,
)
def test_releases_side_by_side_come_to_rest(kind: Kind, targets: tuple[str, ...]) -> None:
    """Nobody corrects for ever what a neighbour says otherwise."""
    runs.quiet()
    made = world(kind, *targets, for_s=LONG_S, mixed=True)
    with lived(made) as outcome:
        judge(outcome)
        hosts = (*made.cells(), *made.agents)
        assert {host.name for host in hosts if host.release is not Release.PRESENT} == set(targets)


@pytest.mark.slow
def test_a_strict_reader_is_caught() -> None:
    runs.quiet()
    with planted("unknown-refused"):
        refused = world(Kind.NEXT_RELEASE, "east-n0", breach_by_s=SOON_S).run()
    assert {violation.promise for violation in refused.violations} == {"skew"}
    with planted("unknown-stops-the-cell"):
        stopped = world(Kind.NEXT_RELEASE, "east", breach_by_s=SOON_S).run()
    assert "cannot read its disk" in str(stopped.violations[0])


def test_what_a_release_drops_because_it_does_not_know_it_is_no_write_of_it() -> None:
    kind = BY_NAME["Node"]
    value = b'{"metadata":{"name":"n1"},"spec":{"zone":"a"},"status":{"execution":{"warm":["x"],"epoch":2}}}'
    item = codec.decode(kind, value, 5)
    assert seen_by(Release.PRESENT, kind, item) is item
    known = seen_by(Release.FORMER, kind, item)
    assert (known.status.execution.warm, known.status.execution.epoch, known.revision) == ((), 2, 5)


def test_kinds_that_came_later_leave_other_draws_as_they_were() -> None:
    drawn_later: set[Kind] = set()
    for seed in range(1, 200):
        chance = stream(seed, "chaos/swarm")
        first = {kind for kind in Kind if kind not in LATER and chance.random() < SHARE_ENABLED}
        enabled = Chaos(seed, lambda: 0.0).enabled
        assert enabled - LATER == first
        drawn_later |= enabled & LATER
    assert drawn_later == LATER
