"""Faults have names and streams of their own: leaving one out moves no other."""

from __future__ import annotations

from holdfast.sim import troubles
from holdfast.sim.chaos import COMING, Chaos, Kind
from holdfast.sim.troubles import Map

WHERE = Map(("east", "west"), ("east-n0", "west-n0"), ("east-a",), ("acme", "globex"))


def strikes(only: frozenset[str] | None = None) -> list[str]:
    chaos = Chaos(5, lambda: 0.0, enabled=Kind, only=only)
    chaos.begin()
    for _ in range(300):
        chaos.strikes(Kind.CONFLICT, "east")
        chaos.strikes(Kind.CONFLICT, "west")
        chaos.strikes(Kind.SLOW, "east")
    return [fault.name for fault in chaos.struck]


def test_leaving_out_a_fault_leaves_the_others() -> None:
    every = strikes()
    assert len(every) > 20
    without = [name for name in every if name != every[3]]
    assert strikes(frozenset(without)) == without


def test_nothing_strikes_before_the_beginning_or_after_healing() -> None:
    chaos = Chaos(5, lambda: 0.0, enabled=Kind)
    assert not any(chaos.strikes(Kind.SLOW, "east") for _ in range(200))
    chaos.begin()
    chaos.heal()
    assert not any(chaos.strikes(Kind.SLOW, "east") for _ in range(200))


def test_every_kind_of_trouble_can_be_drawn_and_names_are_unique() -> None:
    drawn = [t for seed in range(30) for t in troubles.draw(seed, COMING, WHERE, 150.0)]
    assert {t.kind for t in drawn} == set(COMING)
    one = troubles.draw(1, COMING, WHERE, 150.0)
    assert len({t.name for t in one}) == len(one)
    fewer = troubles.draw(1, [k for k in COMING if k is not Kind.DRAIN], WHERE, 150.0)
    assert list(fewer) == [t for t in one if t.kind is not Kind.DRAIN]
