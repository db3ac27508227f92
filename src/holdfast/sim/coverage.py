"""What a run has exercised: transitions of the lifecycle table, fault kinds and reasons. What none did is listed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from holdfast.model.lifecycle import TRANSITIONS, Stage, stage
from holdfast.model.reasons import Reason
from holdfast.sim.chaos import Kind
from holdfast.sim.checkers import Commit
from holdfast.sim.unseen import ELSEWHERE
from holdfast.store.contract import Put

_REASON = re.compile(rb'[rR]eason":"(\w+)"')
_SAYS_WHY = b'eason":"'
TABLE = frozenset((str(t.source or ""), str(t.target)) for t in TRANSITIONS)
REASONS = frozenset(reason.value for reason in Reason)


class Coverage(msgspec.Struct):
    """Counts by name; added up over many runs."""

    transitions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    reasons: Counter[str] = msgspec.field(default_factory=Counter)

    def see(self, commit: Commit) -> None:
        for change in commit.changed:
            if change.kind.name == "Replica" and change.new is not None:
                before: Stage | str = stage(change.old) if change.old is not None else ""
                after = stage(change.new)
                if before != after:
                    self.transitions[(str(before), str(after))] += 1
        for write in commit.txn.writes:
            if isinstance(write, Put) and _SAYS_WHY in write.value:
                self.reasons.update({text.decode() for text in _REASON.findall(write.value)})

    def add(self, other: Coverage) -> None:
        self.transitions.update(other.transitions)
        self.faults.update(other.faults)
        self.reasons.update(other.reasons)

    def lines(self) -> Iterable[str]:
        """What was and what was never exercised."""
        seen = {pair for pair in self.transitions if pair in TABLE}
        yield f"transitions: {len(seen)} of {len(TABLE)}" + _never(f"{a or 'none'} → {b}" for a, b in TABLE - seen)
        beside = sorted(pair for pair in self.transitions if pair not in TABLE)
        if beside:
            yield "not in the table: " + ", ".join(
                f"{a or 'none'} → {b} ({self.transitions[(a, b)]})" for a, b in beside
            )
        kinds = {kind.value for kind in Kind}
        yield f"fault kinds: {len(kinds & set(self.faults))} of {len(kinds)}" + _never(kinds - set(self.faults))
        known = REASONS & set(self.reasons)
        left = REASONS - known
        yield f"reasons: {len(known)} of {len(REASONS)}" + _never(left - set(ELSEWHERE))
        for name in sorted(left & set(ELSEWHERE)):
            yield f"  {name}: {ELSEWHERE[name]}"


def _never(names: Iterable[str]) -> str:
    left = sorted(names)
    return f"; never: {', '.join(left)}" if left else ""
