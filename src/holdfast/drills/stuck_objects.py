"""Finds stuck objects in all reachable cells: finalizers, repairs, leaked Reservations and orphaned Bindings."""

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
    """Expired Reservations, and Bindings without a replica. The authority releases both."""
    replicas = {r["metadata"]["uid"] for r in observer.list("replicas", cell)}
    bindings = observer.list("bindings", cell)
    bound = {(b["metadata"]["namespace"], b["metadata"]["name"]) for b in bindings}
    rows = [
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


def _of(item: Item, kind: str) -> str:
    return _name(kind, item["metadata"].get("namespace", ""), item["metadata"]["name"])


def _name(kind: str, namespace: str, name: str) -> str:
    return f"{kind.lower()}/{namespace + '/' if namespace else ''}{name}"
