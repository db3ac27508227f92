"""Makes a failing run small: leaves out faults as long as it still fails in the same way (delta debugging).

Every fault has a name and its own stream of chance, so that those that are left strike where they struck before, as far
as the course of events allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.sim.world import Outcome, Shape, Telling, World

RUNS_MAX = 120


class Shrunk(msgspec.Struct, frozen=True):
    faults: tuple[str, ...]
    runs: int
    outcome: Outcome
    telling: Telling


def complaint(outcome: Outcome) -> str:
    """What kind of failure it is; a smaller run must fail in the same way."""
    if outcome.violations:
        return outcome.violations[0].promise
    if outcome.failures:
        return "failure"
    return "unsettled" if outcome.unsettled else ""


def shrink(seed: int, shape: Shape | None = None, *, told: Callable[[str], None] = lambda _: None) -> Shrunk | None:
    """The smallest list of faults found with which the seed still fails; None when it does not fail."""
    outcome, telling = _run(seed, shape, None)
    kind = complaint(outcome)
    if not kind:
        return None
    best, runs = (outcome, telling), 1
    faults = list(dict.fromkeys(fault.name for fault in telling.struck))
    told(f"fails ({kind}) with {len(faults)} faults")

    def fails(names: Sequence[str]) -> bool:
        nonlocal best, runs
        runs += 1
        tried = _run(seed, shape, frozenset(names))
        if complaint(tried[0]) != kind:
            return False
        best = tried
        return True

    parts = 2
    if fails(()):
        faults = []
    while len(faults) > 1 and runs < RUNS_MAX:
        size = max(1, len(faults) // parts)
        for start in range(0, len(faults), size):
            rest = faults[:start] + faults[start + size :]
            if fails(rest):
                faults, parts = rest, max(2, parts - 1)
                told(f"still fails with {len(faults)} faults ({runs} runs)")
                break
            if runs >= RUNS_MAX:
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), parts * 2)
    return Shrunk(tuple(faults), runs, *best)


def _run(seed: int, shape: Shape | None, only: frozenset[str] | None) -> tuple[Outcome, Telling]:
    world = World(seed, shape, only=only)
    outcome = world.run()
    return outcome, world.telling()
