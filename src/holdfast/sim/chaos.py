"""Which faults a run has: drawn once from the seed, and asked at every seam.

Each kind is enabled or not per run (swarm style): some worlds have only lost watches, some only crashes. After
`heal` nothing goes wrong any more, which is when the world must converge. Everything that fired is counted.
"""

from __future__ import annotations

import enum
import random
from collections import Counter

from holdfast.sim.ports import stream


class Kind(enum.StrEnum):
    TIMEOUT_BEFORE = "timeout before commit"
    TIMEOUT_AFTER = "timeout after commit"
    LATE_COMMIT = "late commit"
    CONFLICT = "conflict"
    SLOW = "slow store"
    WATCH_DROP = "watch dropped"
    CALL_LOST = "call lost"
    REPLY_LOST = "reply lost"
    CELL_CRASH = "cell crash"
    AGENT_CRASH = "agent crash"
    AGENT_PAUSE = "agent pause"
    NODE_LOSS = "node loss"
    LINK_CUT = "link cut"
    WORK_EXIT = "work exits"
    START_SLOW = "slow start"


RATES: dict[Kind, float] = {
    Kind.TIMEOUT_BEFORE: 0.02,
    Kind.TIMEOUT_AFTER: 0.03,
    Kind.LATE_COMMIT: 0.01,
    Kind.CONFLICT: 0.03,
    Kind.SLOW: 0.05,
    Kind.WATCH_DROP: 0.02,
    Kind.CALL_LOST: 0.02,
    Kind.REPLY_LOST: 0.03,
    Kind.WORK_EXIT: 0.05,
    Kind.START_SLOW: 0.2,
}
"""The chance per occasion, for faults that ride on calls. The others come by a schedule of their own."""


class Chaos:
    def __init__(self, seed: int, *, enabled: frozenset[Kind] | None = None) -> None:
        draw = stream(seed, "chaos/swarm")
        self.enabled = enabled if enabled is not None else frozenset(k for k in Kind if draw.random() < 0.5)
        self.fired: Counter[Kind] = Counter()
        self.healed = False
        self._seed = seed
        self._streams: dict[Kind, random.Random] = {}

    def strikes(self, kind: Kind) -> bool:
        """Whether this fault happens on this occasion."""
        if self.healed or kind not in self.enabled:
            return False
        if self.of(kind).random() >= RATES.get(kind, 1.0):
            return False
        self.fired[kind] += 1
        return True

    def of(self, kind: Kind) -> random.Random:
        """The fault's own stream of chance."""
        found = self._streams.get(kind)
        if found is None:
            found = self._streams[kind] = stream(self._seed, f"chaos/{kind}")
        return found

    def note(self, kind: Kind) -> None:
        self.fired[kind] += 1

    def heal(self) -> None:
        self.healed = True
