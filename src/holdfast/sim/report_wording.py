"""Texts of failure reports: invariants, faults and workload profiles.

A name without a text is printed as it is. `tests/sim/test_failure_report.py` checks that the tables are complete.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.kinds import kind_of_store_key
from holdfast.sim.fault_injection import FaultKind


class InvariantText(NamedTuple):
    """The forbidden state, and what must happen instead."""

    forbids: str
    requires: str


INVARIANTS: dict[str, InvariantText] = {
    "S1": InvariantText(
        "two live accepted bindings for one replica identity",
        "a second proposal for a bound replica is answered with the existing binding",
    ),
    "S2": InvariantText(
        "two owners of one exclusive device or recovery slot, or claims above a node's capacity",
        "the authority refuses a claim that exceeds the free capacity or takes a device that is in use",
    ),
    "S3": InvariantText(
        "a region's usage above its limit, or grants above the quota",
        "the claim waits until the tenant's limit in the region (GrantCopy) has room; no limit is raised before "
        "another region has acknowledged a lower one",
    ),
    "S4": InvariantText(
        "a workload bound where its placement rules forbid it",
        "it is bound only in regions, zones, pools and nodes that its rules allow, or it stays pending",
    ),
    "S5": InvariantText(
        "a placement written by another component than the region's authority, or with a stale fencing token",
        "the store refuses a commit of a leader that was replaced",
    ),
    "S6": InvariantText(
        "a field written by another component than its owner, or without an audit record",
        "the gate refuses the write; the audit record is in the same transaction as the write",
    ),
    "S7": InvariantText(
        "two running instances of an exclusive replica at the same time",
        "the first instance counts as ended only after its stop was acknowledged, or its lease expired on every clock "
        "and its node was fenced",
    ),
    "S8": InvariantText(
        "a reservation, slot, grant, emergency quota or override that is effective after its expiry",
        "an expired object has no effect, whatever a cell's clock shows",
    ),
    "S9": InvariantText(
        "an acknowledged write lost, or a watch with a gap",
        "an acknowledged write is on disk at its revision, and a watch delivers every change once, in order",
    ),
    "S10": InvariantText(
        "a policy change that alters a committed decision, or a decision that names another policy than it used",
        "a decision uses exactly the policy revision that it names, and never changes after its commit",
    ),
    "amnesia": InvariantText(
        "work stopped because a cell lost its records",
        "a replica is removed only by an order of the global cell, or of a person who confirms it",
    ),
    "identity": InvariantText(
        "an action on another object with the same name",
        "a request names a uid and an attempt; if another object has the name, nothing is done",
    ),
    "finalizer": InvariantText(
        "a replica deleted while it still has a claim", "its finalizer is removed after its binding and reservation"
    ),
    "observedGeneration": InvariantText(
        "a status for a generation that does not exist, or older than the previous status",
        "a status computed from an older spec is refused",
    ),
    "budget": InvariantText(
        "more voluntary evictions of a workload at once, over all regions, than its disruption budget",
        "the next replica is evicted when an evicted one serves again",
    ),
    "preemption": InvariantText(
        "an eviction without a nomination for the victim's node",
        "a node is reserved for the higher-priority replica before a victim is evicted",
    ),
    "failback": InvariantText(
        "recovery replicas removed while the ordinary replicas do not run",
        "the recovery shrinks after every ordinary region reports its replicas as serving under the newest epoch",
    ),
    "maintenance": InvariantText(
        "work bound to a node in planned maintenance, or a drain that outlasts its maintenance",
        "new work goes elsewhere from the start on; at the end the nodes take work again",
    ),
    "protection": InvariantText(
        "another tenant's preemption of work within the protected quota",
        "after the preemption the victim's tenant still runs its protected amount, or nothing is preempted",
    ),
    "skew": InvariantText(
        "a message or stored object that another release cannot read",
        "a release ignores unknown fields and uses the others",
    ),
    "scaling": InvariantText(
        "a scale-up while replicas have been pending or not ready for long",
        "the autoscaler holds the count until the requested replicas are placed and ready",
    ),
    "rebalance": InvariantText(
        "a move for a more even spread that is not allowed, comes too soon or does not help",
        "moves are one at a time, rare, never during a recovery, and each makes the spread more even",
    ),
    "volumes": InvariantText(
        "a persistent volume on two nodes or with two users, or a task without the data of its volume",
        "a replica runs only where its volume is, and a node has the space for its volumes",
    ),
    "array": InvariantText(
        "an index of a job array that is in two regions, succeeds twice or runs again",
        "an index is in one region, succeeds once, and then never runs again",
    ),
    "ticks": InvariantText(
        "a tick of a CronWorkload with two runs, or with neither a run nor a counted miss",
        "a tick has one run, or is counted as missed with its reason",
    ),
    "oscillation": InvariantText(
        "an object that alternates between two values while the desired state is unchanged", "it keeps its value"
    ),
    "load": InvariantText(
        "more writes than the events explain", "retries have a growing backoff, and a converged system is quiet"
    ),
    "tenancy": InvariantText(
        "a watch that shows another tenant's objects", "a watch of a namespace shows only that namespace"
    ),
    "wakeup": InvariantText(
        "a replica that is pending for quota although quota has been free for long",
        "free quota wakes pending requests within half a minute",
    ),
    "reason": InvariantText(
        "a pending replica without a reason or without a retry",
        "it names a current reason, and the event or time of its next retry",
    ),
    "chain": InvariantText(
        "a record that names another one that is gone: a replica without its claim, an address without its replica",
        "the owner of each record compares it with the records that it names, and repairs it",
    ),
    "leak": InvariantText(
        "an object that nothing needs and no controller deletes",
        "claims, recovery slots, overrides and deleted objects go when their owner is gone",
    ),
    "convergence": InvariantText(
        "a system that does not converge after the fault phase",
        "within ten minutes the actual state matches the desired state; only replicas without room are pending",
    ),
    "livelock": InvariantText("a loop without end at one instant of virtual time", "every loop waits or ends"),
    "failure": InvariantText("an unhandled error of a component", "every error is handled, or ends its process"),
}
"""Checked invariants, by the name in a violation."""

FAULT_TEXTS: dict[FaultKind, str] = {
    FaultKind.TIMEOUT_BEFORE: "a commit is not made, and its writer gets a timeout",
    FaultKind.TIMEOUT_AFTER: "a commit is made, and its writer gets a timeout",
    FaultKind.LATE_COMMIT: "a commit is made long after its writer got a timeout",
    FaultKind.CONFLICT: "a commit fails with a conflict",
    FaultKind.SLOW: "a commit is slow",
    FaultKind.CRASH_BEFORE: "the cell's process crashes just before a commit",
    FaultKind.CRASH_AFTER: "the cell's process crashes just after a commit",
    FaultKind.CRASH_LATE: "the cell's process crashes, and its commit in flight is made after the restart",
    FaultKind.PAUSE_BEFORE: "the cell's process is paused just before a commit",
    FaultKind.PAUSE_AFTER: "the cell's process is paused just after a commit",
    FaultKind.WATCH_DROP: "a watch is closed",
    FaultKind.WATCH_DELAY: "watch events are delayed",
    FaultKind.WATCH_DUPLICATE: "watch events are delivered twice",
    FaultKind.WATCH_STALL: "a watch delivers nothing for a while and stays open",
    FaultKind.WATCH_EXPIRED: "a watch cannot resume, because its revision was compacted",
    FaultKind.CALL_LOST: "a call is lost in the network",
    FaultKind.REPLY_LOST: "the response to a call is lost",
    FaultKind.REPLY_SLOW: "the response to a call is slow",
    FaultKind.REPORT_DELAYED: "a report of an agent arrives late",
    FaultKind.ANSWER_LOST: "the authority commits, and its response is lost",
    FaultKind.CALL_REPEATED: "a call to the authority is delivered twice",
    FaultKind.WORK_EXIT: "a task exits by itself",
    FaultKind.START_SLOW: "a task starts slowly",
    FaultKind.START_FAILS: "a task fails to start",
    FaultKind.PROBE_FAILS: "a probe fails",
    FaultKind.BIND_IN_TWO_STEPS: "the scheduler reserves and binds later, while operators cordon nodes",
    FaultKind.TASK_LINGERS: "a stopped task keeps its devices and ports for a while before it ends",
    FaultKind.CELL_CRASH: "the cell's process crashes and restarts later",
    FaultKind.CELL_PAUSE: "the cell's process is paused",
    FaultKind.ROLLING_RESTART: "all cells restart, one after the other",
    FaultKind.AGENT_CRASH: "the node's agent crashes and restarts; its tasks keep running",
    FaultKind.AGENT_PAUSE: "the node's agent is paused; its tasks keep running",
    FaultKind.NODE_LOSS: "the node loses power and restarts without tasks",
    FaultKind.ZONE_LOSS: "all nodes of the zone lose power",
    FaultKind.REGION_LOSS: "the region's cell and all its nodes lose power",
    FaultKind.LINK_CUT: "the region and the global cell are partitioned",
    FaultKind.LINK_CUT_ONE_WAY: "messages between the region and the global cell are lost in one direction",
    FaultKind.AGENT_CUT: "the node and its region are partitioned",
    FaultKind.AGENT_CUT_ONE_WAY: "messages between the node and its region are lost in one direction",
    FaultKind.REGION_ISOLATED: "the region's cell is partitioned from the global cell, its nodes and operators",
    FaultKind.STORE_DOWN: "the cell's store is unavailable",
    FaultKind.DISK_FULL: "the cell's store fails at its next write, until disk space is freed",
    FaultKind.COMPACTION: "the store's history is compacted",
    FaultKind.CLOCK_STEP: "the clock is stepped by this many seconds",
    FaultKind.CLOCK_DRIFT: "the clock runs at this rate, within the tolerance of leases",
    FaultKind.CLOCK_WILD: "the clock runs at this rate, beyond the tolerance of leases",
    FaultKind.CRASH_AT_AWAIT: "the cell's process crashes after this many steps",
    FaultKind.TIMEOUT_AT: "the commit at this position gets a timeout (negative: and is not made)",
    FaultKind.CACHES_STALE: "the cell's caches get no events",
    FaultKind.OVERLOAD: "the cell rejects many calls",
    FaultKind.NODE_SHRINKS: "half of the node's CPU is removed for a while",
    FaultKind.NODE_BROKEN: "task starts on the node fail",
    FaultKind.BURST: "a tenant creates many workloads at once",
    FaultKind.CORDON: "an operator cordons the node, and uncordons it later",
    FaultKind.MAINTENANCE: "an operator plans maintenance of the region, a zone or some nodes",
    FaultKind.DRAIN: "an operator drains the node, and uncordons it later",
    FaultKind.REPLICA_DELETED: "an operator deletes a replica",
    FaultKind.NODE_DELETED: "an operator deletes the Node while its agent runs",
    FaultKind.QUOTA_CHANGED: "an operator multiplies the tenant's quota by this factor",
    FaultKind.TENANT_DELETED: "an operator deletes the tenant",
    FaultKind.ZONE_AVOIDED: "an operator creates an AvoidZone override",
    FaultKind.POLICY_CHANGED: "an operator publishes another scheduling policy",
    FaultKind.BREAK_GLASS: "an operator creates a break-glass override in the region",
    FaultKind.OVERRIDE_GIVEN: "an operator creates an override",
    FaultKind.NODE_TAINTED: "an operator taints the node",
    FaultKind.NEXT_RELEASE: "the process runs the next release for a while, which sends unknown fields",
    FaultKind.FORMER_RELEASE: "the process runs the previous release for a while, which lacks some fields",
    FaultKind.STORE_LOST: "the cell's store is missing; the cell refuses to start and is restored from a backup",
    FaultKind.STORE_EMPTIED: "the cell is created again on an empty store, and later restored from a backup",
    FaultKind.STORE_OLD: "the cell is restored from an earlier backup than its newest",
    FaultKind.STORE_SWAPPED: "the cell has the store of another cell; it refuses to start and is restored",
    FaultKind.RECORD_LOST: "the region's store loses one Binding",
    FaultKind.RECORD_DELETED: "an operator tries to delete a record of each component",
    FaultKind.STORE_TRUNCATED: "the cell's store lost its last part; it refuses to start and is restored",
    FaultKind.SECOND_SCHEDULER: "a second scheduler proposes random placements to the region's authority",
    FaultKind.QUOTA_LOWERED: "an operator lowers the tenant's quota to its use, and the tenant scales up meanwhile",
    FaultKind.REGION_RETURNS_STALE: "the region loses power and returns with old statuses and slow task starts",
    FaultKind.REGION_CUT_OFF: "the region is partitioned beyond its grant leases, and replicas are deleted there",
    FaultKind.CELL_RESTORED: "the cell is restored from an older backup",
}

PROFILE_TEXTS: dict[str, str] = {
    "service": "a plain service",
    "exclusive": "exclusive, scope Region",
    "resident": "with a residency rule",
    "batch": "a batch",
    "critical": "with a recovery objective",
    "urgent": "large, preempts lower priority",
    "brittle": "exits by itself, not restarted on its node",
    "probed": "with all kinds of probes",
    "bare": "without probes",
    "scaled": "autoscaled",
    "wavering": "autoscaled, half of it never ready",
    "hungry": "needs much of a scarce resource",
    "dedicated": "on its tenant's dedicated nodes",
    "pooled": "for node pools",
    "fixed": "with a fixed port, one per node",
    "sociable": "with affinity or anti-affinity",
    "picky": "few nodes meet its rules, or none",
    "dated": "a batch with a deadline",
    "failing": "a batch that fails sometimes or always",
    "quick": "a batch whose tasks end at once",
    "gang": "a gang",
    "tenured": "exclusive, scope Global",
    "vital": "four critical replicas",
    "balanced": "a service that moves to an even spread soon, or never",
    "array": "a job array over two regions",
    "stateful": "with a persistent volume per replica",
    "lone": "a batch of two for a resource that a region has once",
}
"""Workload profiles (`sim/workload_profiles.py`)."""

_KEY = re.compile(r"(?<![\w.])/[a-z]+(?:/[\w.-]*[\w-]){1,2}")
_BROUGHT = re.compile(r"creates \S*/([a-z]+)")


def object_name(key: str) -> str:
    """Kind and name of a store key: "/bindings/acme/web-0.1" is Binding acme/web-0.1."""
    kind = kind_of_store_key(key)
    return f"{kind.name} {key.split('/', 2)[2]}" if kind is not None else key


def with_object_names(text: str) -> str:
    """The message with store keys replaced by kind and name."""
    return _KEY.sub(lambda found: object_name(found.group()), text)


def describe_fault(name: str) -> str:
    """Description of a fault by its name: the text of its kind, and its site."""
    kind, _, where = name.partition("#")[0].partition("@")
    text = FAULT_TEXTS.get(FaultKind(kind), "") if kind in set(FaultKind) else ""
    return f"{text}, {_place(where)}" if text and where else text


def _place(where: str) -> str:
    """Description of a fault site: the caller of a call, the reader and kind of a watch, or a cell or node."""
    match where.split("/"):
        case ["node", _, node, kind]:
            return f"of node {node}, about its {kind}s"
        case ["node", _, node]:
            return f"of node {node}"
        case ["region", region, kind]:
            return f"of region {region} at the global cell, about {kind}s"
        case ["region", region]:
            return f"of region {region} to the global cell"
        case [cell, kind]:
            return f"about {kind}s inside {cell}"
        case _:
            return f"at {where}"


def describe_user_action(text: str) -> str:
    """Description of the workload profile that a user action creates, if any."""
    found = _BROUGHT.search(text)
    profile = (
        text.rpartition("of profile ")[2] if "of profile " in text else found.group(1) if found is not None else ""
    )
    return PROFILE_TEXTS.get(profile, "")
