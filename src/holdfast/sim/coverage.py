"""Coverage of runs: lifecycle transitions, fault kinds and reasons that occurred, and those that occurred never or in
fewer than one seed in a hundred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.lifecycle import TRANSITIONS, Stage, stage
from holdfast.model.reasons import Reason
from holdfast.sim.checkers import ObservedCommit
from holdfast.sim.coverage_exemptions import EXEMPTIONS
from holdfast.sim.fault_injection import FaultKind
from holdfast.store.contract import Put

_SAYS_WHY = b'eason":"'
LIFECYCLE_TRANSITIONS = frozenset((str(t.source or ""), str(t.target)) for t in TRANSITIONS)
ALL_REASONS = frozenset(reason.value for reason in Reason)


SEED_FRACTION_MIN = 0.01
"""Minimum share of seeds for each fault kind and transition. Rarer ones are listed."""


class Coverage(msgspec.Struct):
    """Counts over many runs. `in_seeds` counts the seeds in which a fault kind took effect or a transition occurred."""

    transitions: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    seeds: int = 0
    in_seeds: Counter[str] = msgspec.field(default_factory=Counter)

    def finish_seed(self, struck: Mapping[str, int], felt: Iterable[str]) -> None:
        """Ends one run: adds its injected faults and those that took effect."""
        self.faults = Counter(struck)
        self.seeds = 1
        self.in_seeds = Counter([*felt, *map(_passed, self.transitions)])

    def observe(self, commit: ObservedCommit) -> None:
        for change in commit.changes:
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
        covered = {pair for pair in self.transitions if pair in LIFECYCLE_TRANSITIONS}
        yield (
            f"transitions: {len(covered)} of {len(LIFECYCLE_TRANSITIONS)}"
            + _never(map(_passed, LIFECYCLE_TRANSITIONS - covered))
            + self._rare(map(_passed, covered))
        )
        beside = sorted(pair for pair in self.transitions if pair not in LIFECYCLE_TRANSITIONS)
        if beside:
            yield "not in the lifecycle table: " + ", ".join(
                f"{_passed(pair)} ({self.transitions[pair]})" for pair in beside
            )
        kinds = {kind.value for kind in FaultKind}
        struck = kinds & set(self.faults)
        yield f"fault kinds: {len(struck)} of {len(kinds)}" + _never(kinds - struck) + self._rare(struck)
        known = ALL_REASONS & set(self.reasons)
        left = ALL_REASONS - known
        yield f"reasons: {len(known)} of {len(ALL_REASONS)}" + _never(left - set(EXEMPTIONS))
        for name in sorted(left & set(EXEMPTIONS)):
            yield f"  {name}: {EXEMPTIONS[name]}"

    def _rare(self, names: Iterable[str]) -> str:
        """The names that occurred in too few seeds, with their share."""
        shares = sorted((self.in_seeds[name] / max(1, self.seeds), name) for name in names)
        rare = [f"{name} ({share:.1%})" for share, name in shares if share < SEED_FRACTION_MIN]
        return f"; in fewer than {SEED_FRACTION_MIN:.0%} of {self.seeds} seeds: {', '.join(rare)}" if rare else ""


def _passed(pair: tuple[str, str]) -> str:
    return f"{pair[0] or 'none'} → {pair[1]}"


def _never(names: Iterable[str]) -> str:
    left = sorted(names)
    return f"; never: {', '.join(left)}" if left else ""
