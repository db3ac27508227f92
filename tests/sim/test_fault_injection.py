"""Each fault has its own name and random stream, so omitting one leaves the others unchanged."""

from __future__ import annotations

from holdfast.sim import fault_schedule
from holdfast.sim.fault_injection import SCHEDULED_FAULTS, FaultInjector, FaultKind
from holdfast.sim.fault_schedule import FaultTargets

WHERE = FaultTargets(("east", "west"), ("east-n0", "west-n0"), ("east-a",), ("acme", "globex"))


def injected_names(only: frozenset[str] | None = None) -> list[str]:
    injector = FaultInjector(5, lambda: 0.0, enabled=FaultKind, only=only)
    injector.start()
    for _ in range(300):
        injector.draw(FaultKind.CONFLICT, "east")
        injector.draw(FaultKind.CONFLICT, "west")
        injector.draw(FaultKind.SLOW, "east")
    return [fault.name for fault in injector.injected]


def test_omitting_a_fault_leaves_the_others_unchanged() -> None:
    every = injected_names()
    assert len(every) > 20
    without = [name for name in every if name != every[3]]
    assert injected_names(frozenset(without)) == without


def test_no_fault_is_injected_before_start_or_after_heal() -> None:
    injector = FaultInjector(5, lambda: 0.0, enabled=FaultKind)
    assert not any(injector.draw(FaultKind.SLOW, "east") for _ in range(200))
    injector.start()
    injector.heal()
    assert not any(injector.draw(FaultKind.SLOW, "east") for _ in range(200))


def test_every_scheduled_fault_kind_is_drawn_with_unique_names() -> None:
    drawn = [t for seed in range(30) for t in fault_schedule.draw_schedule(seed, SCHEDULED_FAULTS, WHERE, 150.0)]
    assert {t.kind for t in drawn} == set(SCHEDULED_FAULTS)
    schedule = fault_schedule.draw_schedule(1, SCHEDULED_FAULTS, WHERE, 150.0)
    assert len({t.name for t in schedule}) == len(schedule)
    fewer = fault_schedule.draw_schedule(1, [k for k in SCHEDULED_FAULTS if k is not FaultKind.DRAIN], WHERE, 150.0)
    assert list(fewer) == [t for t in schedule if t.kind is not FaultKind.DRAIN]
