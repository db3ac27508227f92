"""Fault injection: the faults of a run, drawn from the seed.

- Operation faults happen with a rate per commit, call or watch batch. Each site has its own random stream, so that
  removing one fault does not change the others.
- Scheduled faults happen at drawn times (`sim/troubles.py`).
- Every injected fault is recorded by name and time. `only` restricts a run to named faults; shrinking uses it.
- Each run enables a random subset of the fault kinds (swarm testing). After `heal` no fault happens.
"""

from __future__ import annotations

import enum
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from holdfast.sim.ports import stream


class Kind(enum.StrEnum):
    # Per commit of a cell's store
    TIMEOUT_BEFORE = "timeout before commit"
    TIMEOUT_AFTER = "timeout after commit"
    LATE_COMMIT = "late commit"
    CONFLICT = "conflict"
    SLOW = "slow store"
    CRASH_BEFORE = "crash before commit"
    CRASH_AFTER = "crash after commit"
    CRASH_LATE = "crash with a commit on its way"
    PAUSE_BEFORE = "pause before commit"
    PAUSE_AFTER = "pause after commit"
    # Per watch batch
    WATCH_DROP = "watch dropped"
    WATCH_DELAY = "watch delayed"
    WATCH_DUPLICATE = "watch duplicated"
    WATCH_STALL = "watch stalled"
    WATCH_EXPIRED = "watch expired"
    # Per network call, and per task
    CALL_LOST = "call lost"
    REPLY_LOST = "reply lost"
    REPLY_SLOW = "reply slow"
    ANSWER_LOST = "authority's answer lost"
    CALL_REPEATED = "call delivered twice"
    WORK_EXIT = "work exits"
    START_SLOW = "slow start"
    START_FAILS = "start fails"
    PROBE_FAILS = "probe fails"
    # Scheduled
    CELL_CRASH = "cell crash"
    CELL_PAUSE = "cell pause"
    ROLLING_RESTART = "rolling restart"
    AGENT_CRASH = "agent crash"
    AGENT_PAUSE = "agent pause"
    NODE_LOSS = "node loss"
    ZONE_LOSS = "zone loss"
    REGION_LOSS = "region loss"
    LINK_CUT = "link cut"
    LINK_CUT_ONE_WAY = "link cut one way"
    AGENT_CUT = "agent cut"
    AGENT_CUT_ONE_WAY = "agent cut one way"
    REGION_ISOLATED = "region isolated"
    STORE_DOWN = "store unavailable"
    DISK_FULL = "disk full"
    COMPACTION = "compaction"
    CLOCK_STEP = "clock step"
    CLOCK_DRIFT = "clock drift"
    CLOCK_WILD = "clock drift beyond the bound"
    CRASH_AT_AWAIT = "crash at an await"
    TIMEOUT_AT = "timeout at a commit"
    CACHES_STALE = "caches stale"
    OVERLOAD = "overload"
    NODE_SHRINKS = "node shrinks"
    NODE_BROKEN = "node starts nothing"
    BURST = "burst of load"
    # Scheduled actions of operators
    CORDON = "cordon"
    DRAIN = "drain"
    REPLICA_DELETED = "replica deleted"
    NODE_DELETED = "node deleted"
    QUOTA_CHANGED = "quota changed"
    TENANT_DELETED = "tenant deleted"
    ZONE_AVOIDED = "zone avoided"
    POLICY_CHANGED = "policy changed"
    BREAK_GLASS = "override given in a region"
    OVERRIDE_GIVEN = "override given"
    NODE_TAINTED = "node tainted"
    # Scheduled: another release
    NEXT_RELEASE = "next release"
    FORMER_RELEASE = "former release"


RATES: dict[Kind, float] = {
    Kind.TIMEOUT_BEFORE: 0.02,
    Kind.TIMEOUT_AFTER: 0.03,
    Kind.LATE_COMMIT: 0.01,
    Kind.CONFLICT: 0.03,
    Kind.SLOW: 0.05,
    Kind.CRASH_BEFORE: 0.001,
    Kind.CRASH_AFTER: 0.001,
    Kind.CRASH_LATE: 0.02,
    Kind.PAUSE_BEFORE: 0.001,
    Kind.PAUSE_AFTER: 0.001,
    Kind.WATCH_DROP: 0.02,
    Kind.WATCH_DELAY: 0.02,
    Kind.WATCH_DUPLICATE: 0.02,
    Kind.WATCH_STALL: 0.004,
    Kind.WATCH_EXPIRED: 0.4,
    Kind.CALL_LOST: 0.02,
    Kind.REPLY_LOST: 0.03,
    Kind.REPLY_SLOW: 0.35,
    Kind.ANSWER_LOST: 0.03,
    Kind.CALL_REPEATED: 0.4,
    Kind.WORK_EXIT: 0.05,
    Kind.START_SLOW: 0.2,
    Kind.START_FAILS: 0.05,
    Kind.PROBE_FAILS: 0.01,
}
"""Rate per operation. All other kinds are scheduled."""

COMING = tuple(kind for kind in Kind if kind not in RATES)
MENDED_BY_RESYNC = frozenset({Kind.WATCH_STALL, Kind.CACHES_STALE})
"""Faults that leave a cache stale until a resync. They are disabled in runs without resync."""
SHARE_ENABLED = 0.4
"""Share of the fault kinds that a run enables."""
LATER = frozenset({Kind.NEXT_RELEASE, Kind.FORMER_RELEASE})
SHARE_LATER = 0.08
"""Kinds added later. Each has its own draw, so that all other seeds keep their histories."""
# Maximum recorded faults, and recorded user actions, of a run. Later ones happen but are not recorded.
STRIKES_KEPT = 10_000


class Struck(msgspec.Struct, frozen=True):
    """One fault that was injected, or one action of a user."""

    at_s: float
    name: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.at_s:9.3f} s  {self.name}{': ' + self.what if self.what else ''}"


class _Occasions:
    """Operations of one site and fault kind, counted. `next` is the operation that fails."""

    __slots__ = ("_chance", "_rate", "count", "next")

    def __init__(self, chance: random.Random, rate: float) -> None:
        self._chance = chance
        self._rate = rate
        self.count = 0
        self.next = 0
        self.draw()

    def draw(self) -> None:
        gap = math.log(1.0 - self._chance.random()) / math.log(1.0 - self._rate) if self._rate < 1 else 0.0
        self.next += 1 + int(gap)


class Chaos:
    """`enabled` replaces the kinds drawn from the seed, `also` adds to them, `only` restricts the faults by name."""

    def __init__(
        self,
        seed: int,
        clock: Callable[[], float],
        *,
        enabled: Iterable[Kind] | None = None,
        also: frozenset[Kind] = frozenset(),
        only: frozenset[str] | None = None,
    ) -> None:
        draw = stream(seed, "chaos/swarm")
        drawn = frozenset(k for k in Kind if k not in LATER and draw.random() < SHARE_ENABLED)
        later = frozenset(k for k in LATER if stream(seed, f"chaos/swarm/{k}").random() < SHARE_LATER)
        self.enabled = frozenset(enabled) if enabled is not None else drawn | later | also
        self.struck: list[Struck] = []
        self.acts: list[Struck] = []
        """Actions of users, in order. They are reported and shrunk like faults."""
        self.fired: Counter[Kind] = Counter()
        self.felt: Counter[Kind] = Counter()
        """Faults that took effect, by kind. A fault has no effect if its commit never comes or a request is refused."""
        self.healed = False
        self.healed_s = 0.0
        self._only = only
        self._seed = seed
        self._clock = clock
        self._occasions: dict[tuple[Kind, str], _Occasions] = {}
        self.live: frozenset[Kind] = frozenset()
        """The kinds that may happen now: none before the fault phase and none after it."""
        self._stale_until_s: dict[str, float] = {}
        """By cell, or by cell and kind: until when its watches deliver nothing."""

    def begin(self) -> None:
        """Starts the fault phase."""
        self.live = frozenset() if self.healed else self.enabled

    def strikes(self, kind: Kind, place: str) -> random.Random | None:
        """Draws whether the fault happens in this operation. Returns its random stream, or None."""
        if kind not in self.live:
            return None
        occasions = self._occasions.get((kind, place))
        if occasions is None:
            chance = stream(self._seed, f"chaos/{kind}/{place}")
            occasions = self._occasions[(kind, place)] = _Occasions(chance, RATES[kind])
        occasions.count += 1
        if occasions.count < occasions.next:
            return None
        occasions.draw()
        name = f"{kind}@{place}#{occasions.count}"
        if not self.allows(name):
            return None
        self.note(kind, name)
        self.felt[kind] += 1
        return stream(self._seed, f"chaos/{name}")

    def allows(self, name: str) -> bool:
        return self._only is None or name in self._only

    def note(self, kind: Kind, name: str, what: str = "") -> None:
        self.fired[kind] += 1
        if len(self.struck) < STRIKES_KEPT:
            self.struck.append(Struck(self._clock(), name, what))

    def make_stale(self, where: str, for_s: float) -> None:
        self._stale_until_s[where] = self._clock() + for_s

    def stale_s(self, cell: str, kind: str) -> float:
        """How long the watches inside a cell still deliver nothing. Held events are delivered afterwards, in order."""
        if self.healed or not self._stale_until_s:
            return 0.0
        known = self._stale_until_s
        return max(known.get(cell, 0.0), known.get(f"{cell}/{kind}", 0.0)) - self._clock()

    def act(self, name: str, what: str) -> None:
        """Records an action of a user. The caller checks `allows` first, so that shrinking can remove the action."""
        if len(self.acts) < STRIKES_KEPT:
            self.acts.append(Struck(self._clock(), name, what))

    def heal(self) -> None:
        self.healed = True
        self.live = frozenset()
        self.healed_s = self._clock()
