"""Finds stuck objects in all reachable cells: finalizers, repairs, leaked Reservations, and broken links between
replicas, claims, recovery slots, budgets and addresses."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from holdfast.drills.platform_observer import Item, PlatformObserver
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.core import Lease
from holdfast.model.times import parse_time
from holdfast.scheduling.eviction import stuck_finalizers

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{stuck_finalizers.LEASE_NAMESPACE}/leases"


def find_stuck_objects(observer: PlatformObserver) -> list[dict[str, Any]]:
    """One row per stuck object. `owner` must act; `deadline` is when it should have acted."""
    found: list[dict[str, Any]] = []
    for cell in ("global", *observer.regions):
        try:
            found += _deletions(observer, cell)
            if cell != "global":
                found += _repairs(observer, cell) + _leaks(observer, cell)
        except CommandError as stop:
            found.append({"cell": cell, "what": "Unreachable", "object": cell, "message": stop.message})
    return found


def _deletions(observer: PlatformObserver, cell: str) -> list[dict[str, Any]]:
    answer = observer.api(cell).get(LEASES)
    leases = [msgspec.convert(item, Lease) for item in answer["items"]]
    rows = []
    for kind in stuck_finalizers.kinds_with_finalizers(cell):
        terminating = [i for i in observer.list(kind.plural, cell) if i["metadata"].get("deletionTimestamp")]
        items = [msgspec.convert(item, kind.type) for item in terminating]
        for stuck in stuck_finalizers.stuck_finalizers(items, leases, time.time()):
            rows.append(
                {
                    "cell": cell,
                    "what": "FinalizerStuck",
                    "object": _name(stuck.kind, stuck.namespace, stuck.name),
                    "owner": stuck.owner,
                    "since": stuck.deleted_at,
                    "deadline": f"{stuck.deadline_seconds:.0f} s",
                    "lastHeartbeat": stuck.heartbeat,
                    "message": stuck_finalizers.stuck_message(stuck, time.time()),
                }
            )
    return rows


def _repairs(observer: PlatformObserver, cell: str) -> list[dict[str, Any]]:
    rows = []
    for replica in observer.list("replicas", cell):
        block = replica.get("status", {}).get("repair")
        if block and block.get("attempt") == replica["status"].get("placement", {}).get("attempt", 1):
            rows.append(
                {
                    "cell": cell,
                    "what": f"Repair{block.get('state', '')}",
                    "object": _of(replica, "Replica"),
                    "owner": "release" if block.get("state") == "ReleaseRequested" else "repair",
                    "since": block.get("at", ""),
                    "message": block.get("message", ""),
                }
            )
    return rows


def _leaks(observer: PlatformObserver, cell: str) -> list[dict[str, Any]]:
    """Broken links between records, in both directions: claims and replicas, recovery slots and budgets, addresses and
    replicas. Their owners repair each of them within seconds, so a row that stays shows a stuck owner."""
    listed = observer.list("replicas", cell)
    replicas = {r["metadata"]["uid"] for r in listed}
    bindings = observer.list("bindings", cell)
    bound = {(b["metadata"]["namespace"], b["metadata"]["name"]) for b in bindings}
    rows = _without_claim(cell, listed, bound)
    rows += _without_replica(cell, observer.list("endpoints", cell), listed, bound)
    budgets = {b["metadata"]["name"] for b in observer.list("recoverybudgets", cell)}
    rows += [
        {
            "cell": cell,
            "what": "SlotWithoutBudget",
            "object": _of(slot, "RecoverySlot"),
            "owner": "recovery-slots",
            "message": f"RecoveryBudget {slot['spec']['budget']} is gone",
        }
        for slot in observer.list("recoveryslots", cell)
        if slot["spec"]["budget"] not in budgets and not slot.get("status", {}).get("consumer")
    ]
    rows += [
        {
            "cell": cell,
            "what": "OrphanedBinding",
            "object": _of(b, "Binding"),
            "owner": "authority",
            "message": f"replica {b['spec']['replica']} is gone; its claim on node {b['spec']['node']} remains",
        }
        for b in bindings
        if b["spec"]["intent"]["replicaUid"] not in replicas and not b["spec"].get("quotaReleased")
    ]
    for item in observer.list("reservations", cell):
        meta, ends = item["metadata"], item["spec"].get("expiresAt", "")
        if (meta["namespace"], meta["name"]) not in bound and ends and parse_time(ends) < time.time():
            rows.append(
                {
                    "cell": cell,
                    "what": "LeakedReservation",
                    "object": _of(item, "Reservation"),
                    "owner": "authority",
                    "deadline": ends,
                    "message": "expired and not bound",
                }
            )
    return rows


def _without_claim(cell: str, replicas: list[Item], bound: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Replicas whose Binding is gone."""
    rows = []
    for replica in replicas:
        placed = replica.get("status", {}).get("placement", {})
        name = placed.get("binding", "")
        if name and (replica["metadata"]["namespace"], name) not in bound:
            rows.append(
                {
                    "cell": cell,
                    "what": "LostBinding",
                    "object": _of(replica, "Replica"),
                    "owner": "authority",
                    "message": f"Binding {name} is gone; the task on node {placed.get('node', '')} is to be stopped",
                }
            )
    return rows


def _without_replica(
    cell: str, endpoints: list[Item], replicas: list[Item], bound: set[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Addresses in Endpoints whose replica does not serve."""
    serving = {
        r["metadata"]["uid"]
        for r in replicas
        if r.get("status", {}).get("traffic", {}).get("serving")
        and (r["metadata"]["namespace"], r["status"].get("placement", {}).get("binding", "")) in bound
    }
    return [
        {
            "cell": cell,
            "what": "AddressWithoutReplica",
            "object": _of(endpoint, "Endpoint"),
            "owner": "serve",
            "message": f"address {address.get('address', '')} of {address['replica']}, which does not serve",
        }
        for endpoint in endpoints
        for address in endpoint["spec"].get("addresses", [])
        if address["uid"] not in serving
    ]


def _of(item: Item, kind: str) -> str:
    return _name(kind, item["metadata"].get("namespace", ""), item["metadata"]["name"])


def _name(kind: str, namespace: str, name: str) -> str:
    return f"{kind.lower()}/{namespace + '/' if namespace else ''}{name}"
