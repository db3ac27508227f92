"""Types of the answers that a region gives to the console of the global cell, and the query that asks for one.

New fields have defaults: the two cells may run different releases.
"""

from __future__ import annotations

from typing import Any

import msgspec


class AnswerRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of everything that is sent to a page."""


class RegionQuery(AnswerRow, frozen=True, kw_only=True):
    """One question to a region, on behalf of a caller that the global cell has authenticated."""

    id: str
    name: str
    parameters: dict[str, str] = {}
    user: str = ""
    groups: tuple[str, ...] = ()
    known: str = ""
    """`etag` of the answer that the global cell has. If it is still true, the region sends no data."""


class RegionAnswer(AnswerRow, frozen=True, kw_only=True):
    """`as_of` is the region's time, `revision` that of its store. `error` is set if there is no data. `etag` changes
    with the data; `unchanged` says that the data is that of the answer which the query named."""

    as_of: float
    revision: int = 0
    data: Any = None
    error: str = ""
    etag: str = ""
    unchanged: bool = False


class StageCount(AnswerRow, frozen=True, kw_only=True):
    """Replicas in one stage. `oldest_since_s` is the Unix time at which the oldest of them entered it; 0 if unknown.
    A time and not a duration, so that nothing is sent again while nothing changes."""

    stage: str
    count: int = 0
    at_work: int = 0
    """Replicas of batch workloads among them that run. They never serve, and are not on the way anywhere."""
    oldest_since_s: float = 0.0
    oldest: str = ""


class StageSpan(AnswerRow, frozen=True, kw_only=True):
    """Durations of one step of the replicas that took it within the last hour."""

    name: str
    count: int = 0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    slowest: str = ""
    histogram: tuple[int, ...] = ()


class PendingWait(AnswerRow, frozen=True, kw_only=True):
    """Pending replicas of one workload with one reason."""

    region: str
    tenant: str
    workload: str
    request: str
    reason: str
    message: str
    replicas: int
    since: str
    position: int = 0
    attempts: int = 0
    priority: int = 0
    next_retry_at: str = ""
    retry_on: tuple[str, ...] = ()
    decision: str = ""
    gang: bool = False


class Capacity(AnswerRow, frozen=True, kw_only=True):
    """Amounts of one resource in base units (thousandths of a CPU or GPU, bytes)."""

    total: int = 0
    allocated: int = 0
    held: int = 0


class ZoneTotal(AnswerRow, frozen=True, kw_only=True):
    zone: str
    nodes: int = 0
    live: int = 0
    attention: int = 0
    resources: dict[str, Capacity] = {}


class RegionSummary(AnswerRow, frozen=True, kw_only=True):
    """Totals of one region, for the overview and the pipeline."""

    replicas: int = 0
    nodes: int = 0
    live: int = 0
    stages: tuple[StageCount, ...] = ()
    spans: tuple[StageSpan, ...] = ()
    waits: tuple[PendingWait, ...] = ()
    waiting: int = 0
    zones: tuple[ZoneTotal, ...] = ()
    resources: dict[str, Capacity] = {}
    repairs: int = 0
    failed_last_hour: int = 0
    served_last_hour: int = 0


class ZoneColumns(AnswerRow, frozen=True, kw_only=True):
    """Nodes of one zone as columns: the name is `prefix` plus `names[i]`. `allocated`, `held` and `used` are
    thousandths of the capacity; `used` is -1 where it is not known, and empty where nobody measures. `states` are
    letters: see `node_rows.STATES` and `UNKNOWN_LETTER`. `renewed` is Unix time in seconds, only for few nodes."""

    zone: str
    prefix: str = ""
    names: tuple[str, ...] = ()
    allocated: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    states: str = ""
    renewed: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    used: tuple[int, ...] = ()


class NodeAttention(AnswerRow, frozen=True, kw_only=True):
    """Nodes of one zone in one state that needs attention."""

    zone: str
    state: str
    reason: str
    count: int
    examples: tuple[str, ...] = ()
    since: str = ""


class RegionMap(AnswerRow, frozen=True, kw_only=True):
    nodes: int = 0
    zones: tuple[ZoneColumns, ...] = ()
    totals: tuple[ZoneTotal, ...] = ()
    attention: tuple[NodeAttention, ...] = ()


class ReplicaRow(AnswerRow, frozen=True, kw_only=True):
    """One replica. Times are those of the current attempt; empty if the stage was not reached."""

    tenant: str
    name: str
    workload: str
    region: str = ""
    assignment: str = ""
    purpose: str = ""
    stage: str
    revision: str = ""
    attempt: int = 1
    node: str = ""
    zone: str = ""
    binding: str = ""
    decision: str = ""
    priority: int = 0
    reclaimable: bool = False
    restarts: int = 0
    address: str = ""
    reason: str = ""
    message: str = ""
    queued_at: str = ""
    decided_at: str = ""
    reserved_at: str = ""
    bound_at: str = ""
    started_at: str = ""
    ready_at: str = ""
    serving_at: str = ""
    ended_at: str = ""
    since: str = ""
    next_owner: str = ""
    next_step: str = ""


class EventRow(AnswerRow, frozen=True, kw_only=True):
    at: str
    type: str
    reason: str
    message: str
    object: str
    count: int = 1
    by: str = ""
    region: str = ""


class DecisionLine(AnswerRow, frozen=True, kw_only=True):
    """One Decision in a list."""

    region: str
    tenant: str
    name: str
    workload: str
    at: str
    placed: int
    of: int
    nodes: int
    feasible: int
    reason: str = ""
    policy: str = ""


class RegionWorkload(AnswerRow, frozen=True, kw_only=True):
    """The part of a workload that one region runs. Replicas are paged."""

    replicas: tuple[ReplicaRow, ...] = ()
    total: int = 0
    waits: tuple[PendingWait, ...] = ()
    decisions: tuple[DecisionLine, ...] = ()
    events: tuple[EventRow, ...] = ()
    usual_ready_s: float = 0.0


class NodeDetail(AnswerRow, frozen=True, kw_only=True):
    name: str
    region: str
    zone: str
    pool: str
    state: str
    reason: str = ""
    since: str = ""
    renewed_at: float = 0.0
    epoch: int = 0
    agent_version: str = ""
    isolation: str = ""
    resources: dict[str, Capacity] = {}
    drain: str = ""
    unschedulable: bool = False
    draining: bool = False
    taints: tuple[str, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    slots: int = 0
    images: tuple[str, ...] = ()
    """Names of images that the node has, each with its size in bytes after a space."""


class SearchHit(AnswerRow, frozen=True, kw_only=True):
    kind: str
    name: str
    note: str
    path: str
    stage: str = ""


class RepairRow(AnswerRow, frozen=True, kw_only=True):
    region: str
    tenant: str
    replica: str
    reason: str
    message: str
    state: str
    at: str


class LeaderRow(AnswerRow, frozen=True, kw_only=True):
    cell: str
    election: str
    holder: str
    renewed_at: str
    transitions: int = 0


class RegionSystem(AnswerRow, frozen=True, kw_only=True):
    leaders: tuple[LeaderRow, ...] = ()
    version: str = ""
    objects: dict[str, int] = {}
    revision: int = 0
    behind: int = 0
    """Revisions of the store that its watch has not delivered yet."""
    compacted: int = 0
    grants_expiring_s: float = 0.0
