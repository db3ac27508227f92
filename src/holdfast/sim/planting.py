"""Plants each bug of `sim/mutations` in turn and counts the seeds until it is caught; the same seeds without it are the
control, and must be clean.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.sim.loop import NothingLeft
from holdfast.sim.mutations import MUTATIONS, planted
from holdfast.sim.shrink import complaint
from holdfast.sim.world import World


class Caught(msgspec.Struct, frozen=True):
    """`seed` is the one that caught it, None when none did; `by` the promise that it broke."""

    name: str
    tried: int
    seed: int | None = None
    by: str = ""
    what: str = ""


def catch(name: str, seeds: range) -> Caught:
    """Runs seeds with the bug planted until one fails."""
    for tried, seed in enumerate(seeds, 1):
        try:
            with planted(name):
                outcome = World(seed).run()
        except NothingLeft as stuck:
            return Caught(name, tried, seed, "circles", str(stuck))
        if not outcome.ok:
            what = next(iter((*map(str, outcome.violations), *outcome.unsettled, *outcome.failures)))
            return Caught(name, tried, seed, complaint(outcome), what)
    return Caught(name, len(seeds))


def plant(name: str, *, seeds: int, first: int, told: Callable[[str], None]) -> int:
    """The command: one bug, or all; tells a row for each. 0 when each was caught and the control is clean."""
    chosen = [m for m in MUTATIONS if name in ("all", m.name)]
    if not chosen:
        told(f"there is no bug {name!r}; there are: {', '.join(m.name for m in MUTATIONS)}")
        return 2
    worlds = range(first, first + seeds)
    furthest, missed = first, []
    told(f"{'bug':28} {'seeds':>5}  caught by")
    for mutation in chosen:
        caught = catch(mutation.name, worlds)
        if caught.seed is None:
            missed.append(mutation.name)
            told(f"{mutation.name:28} {'none':>5}  not caught in {caught.tried} seeds: {mutation.says}")
            continue
        furthest = max(furthest, caught.seed)
        told(f"{mutation.name:28} {caught.tried:5}  {caught.by}: {caught.what[:150]}")
    alarms = [seed for seed in range(first, furthest + 1) if not World(seed).run().ok]
    told(f"control: {furthest - first + 1} seeds without any bug, {len(alarms)} alarms {alarms or ''}")
    return 1 if missed or alarms else 0
