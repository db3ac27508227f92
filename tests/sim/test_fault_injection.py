"""Faults have names and streams of their own: leaving one out moves no other."""

from __future__ import annotations

from holdfast.sim import fault_schedule
from holdfast.sim.fault_injection import SCHEDULED_FAULTS, FaultInjector, FaultKind
from holdfast.sim.fault_schedule import FaultTargets

WHERE = FaultTargets(("east", "west"), ("east-n0", "west-n0"), ("east-a",), ("acme", "globex"))


def strikes(only: frozenset[str] | None = None) -> list[str]:
    chaos = FaultInjector(5, lambda: 0.0, enabled=FaultKind, only=only)
    chaos.start()
    for _ in range(300):
        chaos.draw(FaultKind.CONFLICT, "east")
        chaos.draw(FaultKind.CONFLICT, "west")
        chaos.draw(FaultKind.SLOW, "east")
    return [fault.name for fault in chaos.injected]


def test_leaving_out_a_fault_leaves_the_others() -> None:
    every = strikes()
    assert len(every) > 20
    without = [name for name in every if name != every[3]]
    assert strikes(frozenset(without)) == without


def test_nothing_strikes_before_the_beginning_or_after_healing() -> None:
    chaos = FaultInjector(5, lambda: 0.0, enabled=FaultKind)
    assert not any(chaos.draw(FaultKind.SLOW, "east") for _ in range(200))
    chaos.start()
    chaos.heal()
    assert not any(chaos.draw(FaultKind.SLOW, "east") for _ in range(200))


def test_every_kind_of_trouble_can_be_drawn_and_names_are_unique() -> None:
    drawn = [t for seed in range(30) for t in fault_schedule.draw_schedule(seed, SCHEDULED_FAULTS, WHERE, 150.0)]
    assert {t.kind for t in drawn} == set(SCHEDULED_FAULTS)
    one = fault_schedule.draw_schedule(1, SCHEDULED_FAULTS, WHERE, 150.0)
    assert len({t.name for t in one}) == len(one)
    fewer = fault_schedule.draw_schedule(1, [k for k in SCHEDULED_FAULTS if k is not FaultKind.DRAIN], WHERE, 150.0)
    assert list(fewer) == [t for t in one if t.kind is not FaultKind.DRAIN]
