"""Coverage of runs: lifecycle transitions, fault kinds and reasons that occurred, and those that occurred never or in
fewer than one seed in a hundred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.lifecycle import TRANSITIONS, Stage, stage
from holdfast.model.reasons import Reason
from holdfast.sim.chaos import Kind
from holdfast.sim.checkers import Commit
from holdfast.sim.unseen import ELSEWHERE
from holdfast.store.contract import Put

_SAYS_WHY = b'eason":"'
TABLE = frozenset((str(t.source or ""), str(t.target)) for t in TRANSITIONS)
REASONS = frozenset(reason.value for reason in Reason)


SHARE_LEAST = 0.01
"""Minimum share of seeds for each fault kind and transition. Rarer ones are listed."""


class Coverage(msgspec.Struct):
    """Counts over many runs. `in_seeds` counts the seeds in which a fault kind took effect or a transition occurred."""

    transitions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    seeds: int = 0
    in_seeds: Counter[str] = msgspec.field(default_factory=Counter)

    def of_one_seed(self, struck: Mapping[str, int], felt: Iterable[str]) -> None:
        """Ends one run: adds its injected faults and those that took effect."""
        self.faults = Counter(struck)
        self.seeds = 1
        self.in_seeds = Counter([*felt, *map(_passed, self.transitions)])

    def see(self, commit: Commit) -> None:
        for change in commit.changed:
            if change.kind.name == "Replica" and change.new is not None:
                before: Stage | str = stage(change.old) if change.old is not None else ""
                after = stage(change.new)
                if before != after:
                    self.transitions[(str(before), str(after))] += 1
        for write in commit.txn.writes:
            if isinstance(write, Put) and _SAYS_WHY in write.value:
                for name in {part[: part.index(b'"')] for part in write.value.split(_SAYS_WHY)[1:]}:
                    if name.isalnum():
                        self.reasons[name.decode()] += 1

    def add(self, other: Coverage) -> None:
        self.transitions.update(other.transitions)
        self.faults.update(other.faults)
        self.reasons.update(other.reasons)
        self.seeds += other.seeds
        self.in_seeds.update(other.in_seeds)

    def lines(self) -> Iterable[str]:
        """The coverage as text."""
        seen = {pair for pair in self.transitions if pair in TABLE}
        yield (
            f"transitions: {len(seen)} of {len(TABLE)}"
            + _never(map(_passed, TABLE - seen))
            + self._rare(map(_passed, seen))
        )
        beside = sorted(pair for pair in self.transitions if pair not in TABLE)
        if beside:
            yield "not in the lifecycle table: " + ", ".join(
                f"{_passed(pair)} ({self.transitions[pair]})" for pair in beside
            )
        kinds = {kind.value for kind in Kind}
        struck = kinds & set(self.faults)
        yield f"fault kinds: {len(struck)} of {len(kinds)}" + _never(kinds - struck) + self._rare(struck)
        known = REASONS & set(self.reasons)
        left = REASONS - known
        yield f"reasons: {len(known)} of {len(REASONS)}" + _never(left - set(ELSEWHERE))
        for name in sorted(left & set(ELSEWHERE)):
            yield f"  {name}: {ELSEWHERE[name]}"

    def _rare(self, names: Iterable[str]) -> str:
        """The names that occurred in too few seeds, with their share."""
        shares = sorted((self.in_seeds[name] / max(1, self.seeds), name) for name in names)
        rare = [f"{name} ({share:.1%})" for share, name in shares if share < SHARE_LEAST]
        return f"; in fewer than {SHARE_LEAST:.0%} of {self.seeds} seeds: {', '.join(rare)}" if rare else ""


def _passed(pair: tuple[str, str]) -> str:
    return f"{pair[0] or 'none'} → {pair[1]}"


def _never(names: Iterable[str]) -> str:
    left = sorted(names)
    return f"; never: {', '.join(left)}" if left else ""
