"""What the names in a story mean, for a reader who knows the README and the glossary: promises, faults, sorts of work.

Owns no facts: a name that is not here is told as it is. `tests/sim/test_story.py` holds the tables to what exists.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.kinds import kind_of_store_key
from holdfast.sim.chaos import Kind


class Promise(NamedTuple):
    """What must never be, and what has to be the case instead."""

    never: str
    instead: str


PROMISES: dict[str, Promise] = {
    "S1": Promise(
        "two live accepted bindings for one replica identity",
        "whoever proposes a place for a replica that has one is answered with the one it has",
    ),
    "S2": Promise(
        "two owners of one exclusive device or recovery place, or a node claimed above its capacity",
        "a commit that would take more than is free, or what somebody still uses, is refused",
    ),
    "S3": Promise(
        "a region spending above its limit, or grants above the quota",
        "the claim waits until the tenant's limit in the region (GrantCopy) has room for it; no limit is raised before "
        "another region has acknowledged a lower one",
    ),
    "S4": Promise(
        "a workload bound where its rules forbid",
        "it is bound only in regions, zones and pools and on machines that its rules allow, or it waits",
    ),
    "S5": Promise(
        "a placement written by anyone but the region's authority, or on a stale token",
        "the store refuses a commit whose writer has been followed by another",
    ),
    "S6": Promise(
        "a field written by anyone but its owner, or without its audit record",
        "the gate refuses the write, or the record of who wrote is part of the same transaction",
    ),
    "S7": Promise(
        "two running instances of an exclusive replica at the same time",
        "the first counts as over only once it has said so, or its lease has ended by every clock and its node was "
        "fenced",
    ),
    "S8": Promise(
        "a reservation, draw, grant, emergency quota or override acting past its end",
        "what has ended grants and forbids nothing any more, whatever a cell's clock says",
    ),
    "S9": Promise(
        "an acknowledged write lost, or a watch with a gap",
        "what a client was told is on disk at that revision, and a watch tells every change once, in order",
    ),
    "S10": Promise(
        "a policy change that alters what was already decided, or a decision that names another policy than it used",
        "a decision is weighed by the very policy revision it names, and stays as it was committed",
    ),
    "identity": Promise(
        "an act on whoever bears a name now instead of the one that was meant",
        "a request names a uid and an attempt; when another has the name by now, nothing is done",
    ),
    "finalizer": Promise(
        "a replica gone while its place is still taken", "its finalizer goes when its binding and reservation are gone"
    ),
    "observedGeneration": Promise(
        "a status about a generation that does not exist, or older than the one before",
        "a status that was made from an older spec is refused",
    ),
    "budget": Promise(
        "more replicas of a workload let go by choice at once, over all regions, than its disruption budget",
        "the next is let go when one of those before it serves again",
    ),
    "preemption": Promise(
        "somebody made to leave although nobody has a place kept there",
        "a place is reserved for whoever is stronger before anyone must make way",
    ),
    "protection": Promise(
        "work of a tenant chosen to leave for another tenant's, although its quota protects it",
        "what makes way for others leaves the tenant as much as is protected there, or nobody does",
    ),
    "skew": Promise(
        "a release that cannot live beside the one before or after it",
        "what a release does not know it passes over, and the rest of what is said or stored counts",
    ),
    "scaling": Promise(
        "more replicas asked for while those there are have long been waiting or not ready",
        "the autoscaler holds its number until what it asked for has a place and is ready",
    ),
    "oscillation": Promise(
        "an object that goes to and fro while nobody asks for a change", "it stays as it was decided"
    ),
    "load": Promise(
        "more writes than what happens can explain", "failures are retried after pauses that grow, and rest is quiet"
    ),
    "tenancy": Promise(
        "one tenant seeing what is another's", "a watch of a namespace tells of that namespace alone"
    ),
    "waking": Promise(
        "work that waits for quota that has long been free again",
        "quota that is free wakes whoever waits for it, within half a minute",
    ),
    "reason": Promise(
        "work that waits and does not say why, or for what",
        "whatever waits names a reason that is about what is wanted now, and what makes it go on",
    ),
    "leftover": Promise(
        "what nobody needs any more, and nobody clears away",
        "claims, recovery places, overrides and what was deleted are gone when what they were for is",
    ),
    "unsettled": Promise(
        "work that is not done although nothing goes wrong any more",
        "within ten minutes everything is as users want it, or waits for room that really is not there",
    ),
    "circles": Promise("work without an end at one instant", "every loop pauses, or ends"),
    "failure": Promise("a part that fails by an error of its own", "every error is handled, or ends its process"),
}  # fmt: skip
"""What is checked, by the name in which a breach is told."""

FAULTS: dict[Kind, str] = {
    Kind.TIMEOUT_BEFORE: "a commit of this cell's store is not made, and its writer only hears that time ran out",
    Kind.TIMEOUT_AFTER: "a commit of this cell's store is made, and its writer only hears that time ran out",
    Kind.LATE_COMMIT: "a commit is made long after its writer was told that time ran out",
    Kind.CONFLICT: "a commit is refused as if someone had been faster",
    Kind.SLOW: "a commit takes long",
    Kind.CRASH_BEFORE: "the cell's process dies just before a commit",
    Kind.CRASH_AFTER: "the cell's process dies just after a commit",
    Kind.CRASH_LATE: "the cell's process dies, and the commit it had sent is made while its successor already lives",
    Kind.PAUSE_BEFORE: "the cell's process stands still just before a commit",
    Kind.PAUSE_AFTER: "the cell's process stands still just after a commit",
    Kind.WATCH_DROP: "a watch ends and must be begun again",
    Kind.WATCH_DELAY: "what a watch tells comes late",
    Kind.WATCH_DUPLICATE: "a watch tells the same twice",
    Kind.WATCH_STALL: "a watch tells nothing for a while, and does not end",
    Kind.WATCH_EXPIRED: "a watch that goes on is refused, as what it missed was compacted",
    Kind.CALL_LOST: "a call over the network never arrives",
    Kind.REPLY_LOST: "a call over the network is carried out and its answer is lost",
    Kind.REPLY_SLOW: "a call over the network is carried out and its answer comes late",
    Kind.ANSWER_LOST: "the authority carries out what it was asked for, and whoever asked never hears of it",
    Kind.CALL_REPEATED: "a call to the authority is delivered a second time, long after the first",
    Kind.WORK_EXIT: "a running program ends by itself",
    Kind.START_SLOW: "a program takes long to start",
    Kind.START_FAILS: "a program does not start",
    Kind.PROBE_FAILS: "a probe of healthy work fails",
    Kind.CELL_CRASH: "the cell's process dies and is started again",
    Kind.CELL_PAUSE: "the cell's process stands still, and goes on",
    Kind.ROLLING_RESTART: "all cells are restarted, one after the other",
    Kind.AGENT_CRASH: "the node's agent dies and is started again; its work goes on meanwhile",
    Kind.AGENT_PAUSE: "the node's agent stands still; its work goes on meanwhile",
    Kind.NODE_LOSS: "the node loses power, and comes back empty",
    Kind.ZONE_LOSS: "all nodes of the zone lose power",
    Kind.REGION_LOSS: "the region's cell and all its nodes lose power",
    Kind.LINK_CUT: "the region and the global cell do not hear each other",
    Kind.LINK_CUT_ONE_WAY: "of the region and the global cell one does not hear the other",
    Kind.AGENT_CUT: "the node and its region do not hear each other",
    Kind.AGENT_CUT_ONE_WAY: "of the node and its region one does not hear the other",
    Kind.REGION_ISOLATED: "nobody reaches the region's cell, its own nodes included",
    Kind.STORE_DOWN: "the cell's store takes no commits",
    Kind.DISK_FULL: "the cell's store fails at its next write, until someone makes room",
    Kind.COMPACTION: "the store forgets its history up to now",
    Kind.CLOCK_STEP: "the clock is put forward or back by so many seconds",
    Kind.CLOCK_DRIFT: "the clock runs so many times as fast, within what leases allow for",
    Kind.CLOCK_WILD: "the clock runs so many times as fast, beyond what leases allow for",
    Kind.CRASH_AT_AWAIT: "the cell's process dies after so many more steps",
    Kind.TIMEOUT_AT: "so many commits on, one is not answered in time (below zero: nor made)",
    Kind.CACHES_STALE: "the cell's caches hear of nothing new",
    Kind.OVERLOAD: "the cell turns many calls away",
    Kind.NODE_SHRINKS: "half of the node's processors are taken out for a while",
    Kind.NODE_BROKEN: "the node starts nothing",
    Kind.BURST: "a tenant brings much work at once",
    Kind.CORDON: "an operator closes the node for new work, and opens it again",
    Kind.DRAIN: "an operator drains the node, and opens it again",
    Kind.REPLICA_DELETED: "an operator deletes a replica",
    Kind.NODE_DELETED: "an operator deletes the node, whose agent still lives",
    Kind.QUOTA_CHANGED: "an operator multiplies the tenant's quota by so much",
    Kind.TENANT_DELETED: "an operator deletes the tenant, and everything of it must go",
    Kind.ZONE_AVOIDED: "an operator has the zone avoided by an override",
    Kind.POLICY_CHANGED: "an operator publishes another scheduling policy",
    Kind.BREAK_GLASS: "an operator gives an override in the region itself",
    Kind.OVERRIDE_GIVEN: "an operator gives an override",
    Kind.NODE_TAINTED: "an operator taints the node",
    Kind.NEXT_RELEASE: "the process runs the next release for a while, which says more than this one knows",
    Kind.FORMER_RELEASE: "the process runs the former release for a while, which knows less than this one",
}

SORTS: dict[str, str] = {
    "service": "an ordinary service",
    "exclusive": "each replica may run once only, in its region",
    "resident": "it may only be where its residency tags say",
    "batch": "work that ends",
    "critical": "it comes back elsewhere when a region is lost",
    "urgent": "large, and weaker work must make way for it",
    "brittle": "nobody starts it again on the spot when it ends",
    "probed": "a service with every sort of probe",
    "bare": "a service without probes",
    "scaled": "its number follows a load",
    "wavering": "its number follows a load, and half of it never gets ready",
    "hungry": "it needs much of something that few nodes have",
    "dedicated": "it runs on its tenant's own nodes",
    "pooled": "for nodes that exist only while they are needed",
    "fixed": "it insists on its port, so that no two share a node",
    "sociable": "it wants to be near others, or away from them",
    "picky": "few nodes meet its rules, or none",
    "dated": "batch work with a deadline",
    "failing": "batch work that fails now and then, or always",
    "quick": "batch work that is over at once",
    "gang": "batch work of use only together",
    "tenured": "each replica may run once only, anywhere",
    "vital": "four replicas that must serve elsewhere when their region is lost",
    "lone": "batch work of two for a place that a region has once",
}
"""Of what users bring (`sim/sorts.py`)."""

_KEY = re.compile(r"(?<![\w.])/[a-z]+(?:/[\w.-]*[\w-]){1,2}")
_BROUGHT = re.compile(r"brings \S*/([a-z]+)")


def named(key: str) -> str:
    """An object by its kind and its name: "/bindings/acme/web-0.1" is Binding acme/web-0.1."""
    kind = kind_of_store_key(key)
    return f"{kind.name} {key.split('/', 2)[2]}" if kind is not None else key


def spoken(text: str) -> str:
    """A message with the objects in it by kind and name."""
    return _KEY.sub(lambda found: named(found.group()), text)


def fault_says(name: str) -> str:
    """What a fault of this name is: its kind in words, and the place where it strikes."""
    kind, _, where = name.partition("#")[0].partition("@")
    says = FAULTS.get(Kind(kind), "") if kind in set(Kind) else ""
    return f"{says}, {_place(where)}" if says and where else says


def _place(where: str) -> str:
    """Calls name who makes them, watches their reader and what they are of, everything else a cell or a node."""
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


def act_says(text: str) -> str:
    """What sort of work somebody brings, where a text says that."""
    found = _BROUGHT.search(text)
    sort = text.rpartition("of sort ")[2] if "of sort " in text else found.group(1) if found is not None else ""
    return SORTS.get(sort, "")
