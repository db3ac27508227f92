"""Fault injection: the faults of a run, drawn from the seed.

- Operation faults happen with a rate per commit, call or watch batch. Each site has its own random stream, so that
  removing one fault does not change the others.
- Scheduled faults happen at drawn times (`sim/fault_schedule.py`).
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

from holdfast.sim.ports import random_stream


class FaultKind(enum.StrEnum):
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
    REPORT_DELAYED = "report of an agent delayed"
    WORK_EXIT = "work exits"
    START_SLOW = "slow start"
    START_FAILS = "start fails"
    PROBE_FAILS = "probe fails"
    BIND_IN_TWO_STEPS = "bind in two steps"
    TASK_LINGERS = "task lingers"
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
    # Scheduled: a cell loses its records
    STORE_LOST = "store lost"
    STORE_EMPTIED = "store emptied"
    STORE_OLD = "store of an earlier time"
    STORE_SWAPPED = "store of another cell"
    STORE_TRUNCATED = "store truncated"
    # Scheduled, drawn in few seeds
    SECOND_SCHEDULER = "another scheduler"
    QUOTA_LOWERED = "quota lowered to its use"
    REGION_RETURNS_STALE = "region returns with stale status"
    REGION_CUT_OFF = "region cut off beyond its grant leases"
    CELL_RESTORED = "cell restored"
    MAINTENANCE = "maintenance window"
    # Scheduled, by scenarios only: single records of a region's authority
    RECORD_LOST = "record lost"
    RECORD_DELETED = "record deleted by an operator"


FAULT_RATES: dict[FaultKind, float] = {
    FaultKind.TIMEOUT_BEFORE: 0.02,
    FaultKind.TIMEOUT_AFTER: 0.03,
    FaultKind.LATE_COMMIT: 0.01,
    FaultKind.CONFLICT: 0.03,
    FaultKind.SLOW: 0.05,
    FaultKind.CRASH_BEFORE: 0.001,
    FaultKind.CRASH_AFTER: 0.001,
    FaultKind.CRASH_LATE: 0.02,
    FaultKind.PAUSE_BEFORE: 0.001,
    FaultKind.PAUSE_AFTER: 0.001,
    FaultKind.WATCH_DROP: 0.02,
    FaultKind.WATCH_DELAY: 0.02,
    FaultKind.WATCH_DUPLICATE: 0.02,
    FaultKind.WATCH_STALL: 0.004,
    FaultKind.WATCH_EXPIRED: 0.4,
    FaultKind.CALL_LOST: 0.02,
    FaultKind.REPLY_LOST: 0.03,
    FaultKind.REPLY_SLOW: 0.35,
    FaultKind.ANSWER_LOST: 0.03,
    FaultKind.CALL_REPEATED: 0.4,
    FaultKind.REPORT_DELAYED: 0.1,
    FaultKind.WORK_EXIT: 0.05,
    FaultKind.START_SLOW: 0.2,
    FaultKind.START_FAILS: 0.05,
    FaultKind.PROBE_FAILS: 0.01,
    FaultKind.BIND_IN_TWO_STEPS: 0.5,
    FaultKind.TASK_LINGERS: 0.3,
}
"""Rate per operation. All other kinds are scheduled."""

SCHEDULED_FAULTS = tuple(kind for kind in FaultKind if kind not in FAULT_RATES)
REPAIRED_BY_RESYNC = frozenset({FaultKind.WATCH_STALL, FaultKind.CACHES_STALE})
"""Faults that leave a cache stale until a resync. They are disabled in runs without resync."""
ENABLED_FRACTION = 0.4
"""Share of the fault kinds that a run enables."""
LOST_STORES = frozenset(
    {
        FaultKind.STORE_LOST,
        FaultKind.STORE_EMPTIED,
        FaultKind.STORE_OLD,
        FaultKind.STORE_SWAPPED,
        FaultKind.STORE_TRUNCATED,
    }
)
"""Kinds in which a cell loses its records and is restored from a backup (`sim/lost_stores.py`)."""
SEPARATELY_DRAWN: dict[FaultKind, float] = {
    FaultKind.NEXT_RELEASE: 0.08,
    FaultKind.FORMER_RELEASE: 0.08,
    FaultKind.REPORT_DELAYED: 0.08,
    **dict.fromkeys(sorted(LOST_STORES), 0.02),
    FaultKind.BIND_IN_TWO_STEPS: 0.07,
    FaultKind.TASK_LINGERS: 0.05,
    FaultKind.SECOND_SCHEDULER: 0.07,
    FaultKind.QUOTA_LOWERED: 0.07,
    FaultKind.REGION_RETURNS_STALE: 0.04,
    FaultKind.REGION_CUT_OFF: 0.03,
    FaultKind.CELL_RESTORED: 0.03,
    FaultKind.MAINTENANCE: 0.03,
    FaultKind.RECORD_LOST: 0.02,
    FaultKind.RECORD_DELETED: 0.02,
}
"""Kinds added later, and the share of runs with each. Each has its own draw, so that all other seeds keep their
histories."""
# Maximum recorded faults, and recorded user actions, of a run. Later ones happen but are not recorded.
RECORDED_FAULTS_MAX = 10_000


class InjectedFault(msgspec.Struct, frozen=True):
    """One fault that was injected, or one action of a user."""

    at_s: float
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.at_s:9.3f} s  {self.name}{': ' + self.detail if self.detail else ''}"


def kind_of_name(name: str) -> str:
    """The kind of a fault or user action, which is the part of its name before the site or number."""
    return name.partition("@")[0].partition("#")[0]


class _Occasions:
    """Operations of one site and fault kind, counted. `next` is the operation that fails."""

    __slots__ = ("_rate", "_rng", "count", "next")

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng = rng
        self._rate = rate
        self.count = 0
        self.next = 0
        self.draw()

    def draw(self) -> None:
        gap = math.log(1.0 - self._rng.random()) / math.log(1.0 - self._rate) if self._rate < 1 else 0.0
        self.next += 1 + int(gap)


class FaultInjector:
    """`enabled` replaces the kinds drawn from the seed, `also` adds to them, `only` restricts them by name or kind."""

    def __init__(
        self,
        seed: int,
        clock: Callable[[], float],
        *,
        enabled: Iterable[FaultKind] | None = None,
        also: frozenset[FaultKind] = frozenset(),
        only: frozenset[str] | None = None,
    ) -> None:
        draw = random_stream(seed, "chaos/swarm")
        drawn = frozenset(k for k in FaultKind if k not in SEPARATELY_DRAWN and draw.random() < ENABLED_FRACTION)
        later = frozenset(
            kind
            for kind, fraction in SEPARATELY_DRAWN.items()
            if random_stream(seed, f"chaos/swarm/{kind}").random() < fraction
        )
        self.enabled = frozenset(enabled) if enabled is not None else drawn | later | also
        self.injected: list[InjectedFault] = []
        self.user_actions: list[InjectedFault] = []
        """Actions of users, in order. They are reported and shrunk like faults."""
        self.injected_counts: Counter[FaultKind] = Counter()
        self.effective_counts: Counter[FaultKind] = Counter()
        """Faults that took effect, by kind. A fault has no effect if its commit never comes or a request is refused."""
        self.healed = False
        self.healed_s = 0.0
        self._only = only
        self._seed = seed
        self._clock = clock
        self._occasions: dict[tuple[FaultKind, str], _Occasions] = {}
        self.active_kinds: frozenset[FaultKind] = frozenset()
        """The kinds that may happen now: none before the fault phase and none after it."""
        self._stale_until_s: dict[str, float] = {}
        """By cell, or by cell or caller and kind: until when watches deliver nothing, or statuses do not arrive."""

    def start(self) -> None:
        """Starts the fault phase."""
        self.active_kinds = frozenset() if self.healed else self.enabled

    def draw(self, kind: FaultKind, place: str) -> random.Random | None:
        """Draws whether the fault happens in this operation. Returns its random stream, or None."""
        if kind not in self.active_kinds:
            return None
        occasions = self._occasions.get((kind, place))
        if occasions is None:
            rng = random_stream(self._seed, f"chaos/{kind}/{place}")
            occasions = self._occasions[(kind, place)] = _Occasions(rng, FAULT_RATES[kind])
        occasions.count += 1
        if occasions.count < occasions.next:
            return None
        occasions.draw()
        name = f"{kind}@{place}#{occasions.count}"
        if not self.allows(name):
            return None
        self.record(kind, name)
        self.effective_counts[kind] += 1
        return random_stream(self._seed, f"chaos/{name}")

    def allows(self, name: str) -> bool:
        """Whether `only` permits the fault or user action: it contains the name, or its kind."""
        return self._only is None or name in self._only or kind_of_name(name) in self._only

    def record(self, kind: FaultKind, name: str, what: str = "") -> None:
        self.injected_counts[kind] += 1
        if len(self.injected) < RECORDED_FAULTS_MAX:
            self.injected.append(InjectedFault(self._clock(), name, what))

    def stall_caches(self, where: str, for_s: float) -> None:
        self._stale_until_s[where] = self._clock() + for_s

    def cache_stall_s(self, cell: str, kind: str) -> float:
        """How long the watches inside a cell still deliver nothing. Held events are delivered afterwards, in order. For
        a caller instead of a cell: how long its statuses of the kind do not arrive."""
        if self.healed or not self._stale_until_s:
            return 0.0
        known = self._stale_until_s
        return max(known.get(cell, 0.0), known.get(f"{cell}/{kind}", 0.0)) - self._clock()

    def record_user_action(self, name: str, what: str) -> None:
        """Records an action of a user. The caller checks `allows` first, so that shrinking can remove the action."""
        if len(self.user_actions) < RECORDED_FAULTS_MAX:
            self.user_actions.append(InjectedFault(self._clock(), name, what))

    def heal(self) -> None:
        self.healed = True
        self.active_kinds = frozenset()
        self.healed_s = self._clock()
