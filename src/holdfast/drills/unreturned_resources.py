"""Resources that an incident has not returned: claims, consumed slots, grants, overrides and open recoveries."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Protocol

from holdfast.drills.platform_observer import Item
from holdfast.model.quantity import amounts


class ObjectReader(Protocol):
    """Reads the objects of all cells. `try_list` returns None for a cell that is unreachable."""

    @property
    def regions(self) -> Sequence[str]: ...

    def list(self, plural: str, cell: str = "global") -> builtins.list[Item]: ...

    def try_list(self, plural: str, cell: str) -> builtins.list[Item] | None: ...


def unreturned_resources(observer: ObjectReader) -> list[str]:
    """One line for each object that is not returned; empty if all are."""
    found: list[str] = []
    for recovery in observer.list("recoveries"):
        phase = recovery.get("status", {}).get("phase", "Open")
        if phase != "Closed":
            found.append(f"recovery/{recovery['metadata']['name']}: {phase}")
    for item in observer.list("assignments"):
        name = f"assignment/{item['metadata']['namespace']}/{item['metadata']['name']}"
        if item["spec"].get("purpose") == "Recovery":
            found.append(f"{name}: {item['spec']['replicas']} recovery replica(s)")
        if item["spec"].get("suspended"):
            found.append(f"{name}: suspended")
    for grant in observer.list("grants"):
        which = grant["spec"]["grantClass"]
        status = grant.get("status", {})
        limit = amounts(grant["spec"].get("limit", {})) or amounts(status.get("limit", {}))
        if which != "Normal" and (limit or amounts(status.get("used", {}))):
            found.append(f"grant/{grant['metadata']['namespace']}/{grant['metadata']['name']}: {which} quota")
    for override in observer.list("overrides"):
        status = override.get("status", {})
        phase = status.get("phase", "")
        name = f"override/{override['metadata']['name']}"
        if phase in ("", "Pending", "Active"):
            found.append(f"{name}: {override['spec']['kind']} {phase or 'without phase'}")
        elif any(c["type"] == "Reverted" and c["status"] != "True" for c in status.get("conditions", [])):
            found.append(f"{name}: {override['spec']['kind']} {phase}, not reverted yet")
    for quota in observer.list("quotas"):
        if any(c["type"] == "OverQuota" and c["status"] == "True" for c in quota["status"].get("conditions", [])):
            found.append(f"quota/{quota['metadata']['namespace']}: usage exceeds the quota")
    for region in observer.regions:
        found += _in_region(observer, region)
    return found


def _in_region(observer: ObjectReader, region: str) -> list[str]:
    slots = observer.try_list("recoveryslots", region)
    if slots is None:
        return [f"region/{region}: unreachable, not checked"]
    known = {o["metadata"]["name"]: o.get("status", {}).get("phase", "") for o in observer.list("overrides")}
    found = [
        f"override/{region}/{o['metadata']['name']}: {o['spec']['kind']} still active in the region"
        for o in observer.list("overrides", region)
        if o.get("status", {}).get("phase") == "Active" and known.get(o["metadata"]["name"]) != "Active"
    ]
    found += [
        f"recoveryslot/{region}/{h['metadata']['name']}: consumed by {h['status']['consumer'].get('claim', '')}"
        for h in slots
        if h.get("status", {}).get("consumer")
    ]
    bound = {(b["metadata"]["namespace"], b["metadata"]["name"]) for b in observer.list("bindings", region)}
    for item in observer.list("reservations", region):
        meta = item["metadata"]
        if (meta["namespace"], meta["name"]) not in bound:
            phase = item.get("status", {}).get("phase", "")
            found.append(f"reservation/{region}/{meta['namespace']}/{meta['name']}: {phase}, not bound")
    return found
