"""Result of the checkers on recorded histories: violations, properties checked, and properties not recorded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.sim.checkers import Violation

CHECKED = (
    "S1 S2 S4, attempts, recovery slots, preemption (placement)",
    "S3 (quota), protected quota (protection)",
    "S5 S6 (ownership)",
    "S7, expired reservations (exclusive_succession)",
    "S8, by the times in the records (expiry)",
    "S9 the order of revisions, S10, generations, identities (records)",
    "one policy per decision, no scale-up while replicas are pending (decisions)",
    "disruption budget over all cells (disruption)",
    "no oscillation (churn)",
    "no live replica is removed without an order of the global cell (removals)",
    "a volume stays on its node and has one user (volumes)",
    "moves for a more even spread are few, allowed and useful (rebalancing)",
    "nothing is bound where planned maintenance goes on (maintenance)",
    "an index of a job array succeeds once, in one region (array_indexes); a tick has at most one run (cron_runs)",
)
"""Checked in every history, with the checker."""
CHECKED_AT_REST = (
    "no leaked object: terminating, unclaimed, ownerless, expired (leaked_objects)",
    "every pending replica has a reason and a retry (pending_reasons)",
    "no node is drained by a maintenance that has ended (maintenance)",
)
"""Checked on the last state, if the platform was at rest then."""
NOT_CHECKED = (
    "S2 and S7 on machines: a store does not record which tasks ran (device_use, single_instance)",
    "S9 for clients: a store does not record responses and watch events",
    "S5 of elections: the log does not record the term that a renewal compared",
    "S8 in true time: the clocks in the records are trusted",
    "failback on machines: a store does not record which tasks ran (failback)",
    "convergence and load: a history does not show when faults and user changes had ended (convergence)",
    "waits for unused quota: a history does not show for how long room was known (quota_wakeups, unused_quota)",
    "the number of ticks of a schedule: only the simulation computes the expected ticks (cron_runs)",
    "recovery deadlines: the condition ObjectiveMet of each Recovery says it (recovery_deadline)",
)
"""Properties that a history does not record. Simulations check them."""


class HistoryVerdict(msgspec.Struct, frozen=True):
    """`unattributed` commits are older than the audit log, so their writer is unknown. `gaps` are checks that these
    histories do not allow. `unreadable` are versions of objects that this release cannot decode."""

    violations: tuple[Violation, ...]
    commits: int
    changes: int
    unattributed: int
    objects: int = 0
    cells: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    at_rest: bool = False

    def __str__(self) -> str:
        text = f"{self.commits} commits, {self.changes} changes, {len(self.violations)} violations"
        return f"{text}, {len(self.unreadable)} unreadable" if self.unreadable else text

    @property
    def checked(self) -> tuple[str, ...]:
        """The properties that were checked."""
        return (*CHECKED, *CHECKED_AT_REST) if self.at_rest else CHECKED

    @property
    def not_checked(self) -> tuple[str, ...]:
        """The properties that were not checked, each with the cause."""
        unread = tuple(f"unreadable by this release: {text}" for text in self.unreadable)
        leaks = () if self.at_rest else ("leaks and unexplained waits: the platform may be busy",)
        return (*unread, *self.gaps, *leaks, *NOT_CHECKED)

    def lines(self) -> Iterator[str]:
        """The report: violations, properties checked, properties not checked."""
        yield from map(str, self.violations)
        yield f"checked: {len(self.cells)} cells ({', '.join(self.cells)}), {self.objects} objects; at every commit:"
        yield from (f"  {what}" for what in self.checked)
        yield "not checked:"
        yield from (f"  {what}" for what in self.not_checked)
