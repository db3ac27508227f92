"""Reads the objects of all cells through their APIs and checks invariants S1 to S3 on them.

The checks do not use code of the components under test: sums are computed from the stored objects.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.quantity import Amounts, add, amounts, amounts_text, shortfall
from holdfast.model.replica import Replica
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout, Platform

Item = dict[str, Any]
T = TypeVar("T")


class PlatformObserver:
    """Reads objects of all cells."""

    def __init__(self, layout: Layout, platform: Platform) -> None:
        self._apis: dict[str, CellApi] = {name: connect_cell(layout, platform, name) for name, _ in platform.cells}

    def close(self) -> None:
        for api in self._apis.values():
            api.close()

    def api(self, cell: str = "global") -> CellApi:
        return self._apis[cell]

    def list(self, plural: str, cell: str = "global") -> builtins.list[Item]:
        return self._retry_once(lambda: self._apis[cell].list(plural))

    def _retry_once(self, call: Callable[[], T]) -> T:
        """Retries once on a new connection, because the server may have closed an idle one."""
        try:
            return call()
        except CommandError as stop:
            if stop.code is not ExitCode.UNREACHABLE:
                raise
            return call()

    def events(self, cell: str) -> builtins.list[Item]:
        """Recent events of a cell; none if it is unreachable."""
        try:
            answer = self._retry_once(lambda: self._apis[cell].get("/api/v1/events", limit="5000"))
        except CommandError:
            return []
        found: builtins.list[Item] = answer["items"]
        return found

    def try_list(self, plural: str, cell: str) -> builtins.list[Item] | None:
        try:
            return self.list(plural, cell)
        except CommandError as stop:
            if stop.code is ExitCode.UNREACHABLE:
                return None
            raise

    @property
    def regions(self) -> builtins.list[str]:
        return [name for name in self._apis if name != "global"]

    def get(self, plural: str, name: str, namespace: str = "", cell: str = "global") -> Item:
        where = f"namespaces/{namespace}/{plural}" if namespace else plural
        found: Item = self._retry_once(lambda: self._apis[cell].get(f"/apis/holdfast.dev/v1/{where}/{name}"))
        return found

    def critical_workloads(self) -> builtins.list[Item]:
        """Workloads with a recovery objective."""
        return [w for w in self.list("workloads") if w["spec"].get("recovery")]


def serving_by_region(workload: Item) -> dict[str, int]:
    """Serving replicas by region, from the workload's summary."""
    rows = workload.get("status", {}).get("summary", {}).get("regions", [])
    found: dict[str, int] = {}
    for row in rows:
        found[row["region"]] = found.get(row["region"], 0) + row.get("serving", 0)
    return found


def serves(replica: Item) -> bool:
    """Whether the replica's stage is Serving."""
    return stage(msgspec.convert(replica, Replica)) is Stage.SERVING


UsedBefore = dict[tuple[str, str, str], Amounts]
"""Quota use by region, tenant and class at the last check."""


def violations(observer: PlatformObserver, used_before: UsedBefore) -> list[str]:
    """Invariants that the stored objects violate at present."""
    found = regional_violations(observer, used_before)
    found += _grants(observer.list("quotas"), observer.list("grants"), observer.list("overrides"))
    return found


def regional_violations(observer: PlatformObserver, used_before: UsedBefore) -> list[str]:
    """Violations that can be checked without the global cell. `used_before` is updated."""
    found: list[str] = []
    for region in observer.regions:
        bindings = observer.try_list("bindings", region)
        if bindings is None:
            continue
        found += _unique(region, bindings)
        found += _capacity(region, bindings, observer.list("nodes", region))
        found += _limits(region, bindings, observer.list("grantcopies", region), used_before)
    return found


def _live(binding: Item) -> bool:
    return binding["spec"].get("desired", "Run") == "Run" and not binding["spec"].get("quotaReleased")


def _unique(region: str, bindings: list[Item]) -> list[str]:
    """S1: one live Binding per replica identity."""
    endpoints: dict[str, str] = {}
    found = []
    for binding in bindings:
        uid = binding["spec"]["intent"]["replicaUid"]
        name = binding["metadata"]["name"]
        if _live(binding):
            if uid in endpoints:
                found.append(f"S1: replica {uid} is bound twice in {region}: {endpoints[uid]} and {name}")
            endpoints[uid] = name
    return found


def _capacity(region: str, bindings: list[Item], nodes: list[Item]) -> list[str]:
    """S2: claims within node capacity, one owner per device."""
    found = []
    for node in nodes:
        name = node["metadata"]["name"]
        node_bindings = [b for b in bindings if b["spec"]["node"] == name]
        claimed: Amounts = {}
        owners: dict[str, int] = {}
        for binding in node_bindings:
            add(claimed, amounts(binding["spec"].get("resources", {})))
            for device in binding["spec"].get("devices", []):
                owners[device["id"]] = owners.get(device["id"], 0) + device.get("milli", 1000)
        claimed.pop("gpu", None)
        over = shortfall(claimed, amounts(node["spec"].get("capacity", {})))
        if over:
            found.append(f"S2: node {region}/{name} is claimed beyond its capacity by {amounts_text(over)}")
        found += [f"S2: device {d} of {region}/{name} has {m}m owners" for d, m in owners.items() if m > 1000]
    return found


def _limits(region: str, bindings: list[Item], copies: list[Item], used_before: UsedBefore) -> list[str]:
    """S3 in a region: usage does not grow beyond the enforced limit. A limit may fall below the usage, which then only
    falls."""
    spent: dict[tuple[str, str], Amounts] = {}
    for binding in bindings:
        if binding["spec"].get("quotaReleased"):
            continue
        which = "Recovery" if binding["spec"].get("capacityClass") == "Recovery" else "Normal"
        key = (binding["metadata"]["namespace"], which)
        add(spent.setdefault(key, {}), amounts(binding["spec"].get("resources", {})))
    found = []
    for (tenant, which), used in sorted(spent.items()):
        limit: Amounts = {}
        for copy in copies:
            if copy["metadata"]["namespace"] != tenant:
                continue
            if copy["spec"]["grantClass"] == which or (which == "Normal" and copy["spec"]["grantClass"] == "Emergency"):
                add(limit, amounts(copy["spec"].get("limit", {})))
        over = shortfall(used, limit)
        before = used_before.get((region, tenant, which))
        used_before[region, tenant, which] = used
        if over and (before is None or shortfall(used, before)):
            found.append(f"S3: tenant {tenant} exceeds its {which} limit in {region} by {amounts_text(over)}")
    return found


def _grants(quotas: list[Item], grants: list[Item], overrides: list[Item]) -> list[str]:
    """S3 across regions: grants of a class within the quota."""
    found = []
    for quota in quotas:
        tenant = quota["metadata"]["namespace"]
        emergency: Amounts = {}
        for override in overrides:
            spec = override["spec"]
            about = spec["kind"] == "EmergencyQuota" and spec.get("scope", {}).get("tenant") == tenant
            if about and override.get("status", {}).get("phase") == "Active":
                add(emergency, amounts(spec.get("quota", {})))
        totals = {
            "Normal": amounts(quota["spec"].get("hard", {})),
            "Recovery": amounts(quota["spec"].get("recoveryAllowance", {})),
            "Emergency": emergency,
        }
        for which, total in totals.items():
            granted: Amounts = {}
            for grant in grants:
                if grant["metadata"]["namespace"] == tenant and grant["spec"]["grantClass"] == which:
                    add(granted, amounts(grant["spec"].get("limit", {})))
            over = shortfall(granted, total)
            if over:
                found.append(f"S3: {which} grants of tenant {tenant} exceed the quota by {amounts_text(over)}")
    return found
