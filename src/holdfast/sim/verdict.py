"""What the checkers say of recorded histories: what is broken, what was judged, and what could not be.

A verdict that does not say what it left out would be taken for more than it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.sim.checkers import Violation

JUDGED = (
    "S1 S2 S4, attempts, recovery places, preemption (placement)",
    "S3 (quota), what quotas protect from others (protection)",
    "S5 S6 (ownership)",
    "S7, reservations in time (replacing)",
    "S8, as far as records say it (expiry)",
    "S9 the order of revisions, S10, generations, identities (records)",
    "one policy per decision, no scaling of what waits (decisions)",
    "one disruption budget over all cells (disruption)",
    "no going to and fro (unrest)",
)
"""What every history is judged for, and by which checker."""
UNJUDGED = (
    "S7 at the machines: what really ran is not in a store",
    "S9 towards clients: what they were told and what watches told is not in a store",
    "S5 of elections: which term a renewal compared is not in the log",
    "S8 by true time: the records' own clocks are believed",
    "convergence and load: a history does not say when all was to be at rest",
)
"""What no history can show; simulated worlds are judged for it."""


class Verdict(msgspec.Struct, frozen=True):
    """`unattributed` commits are older than the audit log reaches: nobody can say who made them. `gaps` are what these
    very histories lack."""

    violations: tuple[Violation, ...]
    commits: int
    changes: int
    unattributed: int
    objects: int = 0
    cells: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.commits} commits, {self.changes} changes, {len(self.violations)} violations"

    def lines(self) -> Iterator[str]:
        """What was judged, by what, and what could not be."""
        yield from map(str, self.violations)
        yield f"judged: {len(self.cells)} cells ({', '.join(self.cells)}), {self.objects} objects, and at every commit:"
        yield from (f"  {what}" for what in JUDGED)
        yield "not judged:"
        yield from (f"  {what}" for what in (*self.gaps, *UNJUDGED))
