"""CronWorkloads: a tick has at most one run, and every tick is a run or a counted miss.

The ticks are counted here minute by minute, with another reading of the schedule than production has (UTC, minute
field only). At every commit that moves `decidedThrough` from one time to another, the ticks between them must equal the
runs that the commit creates plus the misses that it counts. At rest the schedule is suspended and nothing is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from holdfast.model.cron_workload import CronWorkload
from holdfast.model.workload import Workload
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit

SCHEDULED_AT = "holdfast.dev/scheduled-at"
LOOKED_AT_MAX = 100
"""Ticks that production looks at in one decision. Beyond, a commit may count fewer misses."""


class CronRunsChecker:
    """Checker of the global cell."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], str] = {}
        """Run of each tick: (uid of the CronWorkload, time) → name. Deleted runs stay."""

    def check_runs(self, commit: ObservedCommit) -> Iterator[Finding]:
        """Checks only that a tick has at most one run. The expected ticks of the schedule are not computed."""
        for change in commit.changes:
            if isinstance(change.new, Workload) and change.old is None:
                yield from self._observe_run(change, {})

    def check(self, commit: ObservedCommit) -> Iterator[Finding]:
        created: dict[str, int] = {}
        for change in commit.changes:
            if isinstance(change.new, Workload) and change.old is None:
                yield from self._observe_run(change, created)
        for change in commit.changes:
            if isinstance(change.new, CronWorkload) and isinstance(change.old, CronWorkload):
                yield from _judge(change, created.get(change.new.uid, 0))

    def _observe_run(self, change: ObservedChange, created: dict[str, int]) -> Iterator[Finding]:
        run = change.new
        at = run.metadata.annotations.get(SCHEDULED_AT)
        for owner in run.metadata.owner_references:
            if owner.kind != "CronWorkload" or at is None:
                continue
            former = self._runs.get((owner.uid, at))
            if former is not None:
                yield "ticks", f"tick {at} of {owner.name} has a second run {change.key}, after {former}", (change.key,)
            self._runs[owner.uid, at] = change.key
            created[owner.uid] = created.get(owner.uid, 0) + 1


def _judge(change: ObservedChange, runs: int) -> Iterator[Finding]:
    old, new = change.old.status, change.new.status
    if change.old.uid != change.new.uid or not old.decided_through:
        return
    if new.decided_through < old.decided_through:
        yield "ticks", f"{change.key} forgets that ticks through {old.decided_through} are decided", (change.key,)
        return
    if old.decided_suspended:
        return
    due = _count(old.decided_schedule, old.decided_through, new.decided_through)
    missed = (new.missed.count if new.missed else 0) - (old.missed.count if old.missed else 0)
    if due != runs + missed and due <= LOOKED_AT_MAX:
        what = (
            f"{change.key} decided {due} ticks in ({old.decided_through}, {new.decided_through}], with {runs} runs and "
            f"{missed} counted misses"
        )
        yield "ticks", what, (change.key,)


def _count(schedule: str, after: str, until: str) -> int:
    """Ticks in (after, until] of a schedule that restricts only minutes."""
    minutes = schedule.split(maxsplit=1)[0]
    span, _, step = minutes.partition("/")
    first = int(span.split("-")[0]) if span != "*" else 0
    from_s, to_s = (int(datetime.fromisoformat(text).timestamp()) for text in (after, until))
    return sum(
        (minute % 60) >= first and (minute % 60 - first) % int(step or 1) == 0
        for minute in range(from_s // 60 + 1, to_s // 60 + 1)
    )


def ticks_at_rest(state: dict[str, Any]) -> Iterator[Finding]:
    """CronWorkloads whose controller has not seen the newest spec, and runs that it does not list as active."""
    for key, item in state.items():
        if isinstance(item, CronWorkload) and item.status.decided_suspended != item.spec.suspend:
            yield "ticks", f"{key} is suspended, and its controller has not acted on it", (key,)
