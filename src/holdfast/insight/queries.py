"""Queries for Python programs, with the client of `holdfast.client`: explain, why not, and what if. They write nothing.

The command line has the same queries: `holdfast explain`, `holdfast why-not`, `holdfast plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.client.calls import fault_of_command
from holdfast.client.holdfast import Holdfast
from holdfast.foundation.exit_codes import CommandError
from holdfast.insight.explain import Explanation, explanation_of
from holdfast.insight.region_clients import ObjectNotFound, RegionClient, RegionClients
from holdfast.insight.region_loss import region_loss
from holdfast.insight.what_if import WhatIfResult, explain_node, node_elsewhere, problems, what_if_applied, workloads_in
from holdfast.insight.why_not import WhyNotResult
from holdfast.model.errors import BadRequest, Invalid, NotFound
from holdfast.model.meta import Key


def explain(client: Holdfast, subject: str) -> Explanation:
    """The history of `TENANT/WORKLOAD` or `TENANT/REPLICA`, its stage, the reason, and the next step."""
    key = _key(subject)
    with _regions(client, key.namespace) as regions:
        return explanation_of(regions, key)


def why_not(client: Holdfast, replica: str, node: str) -> WhyNotResult:
    """Why `TENANT/REPLICA` cannot run on the node, or how the node scores."""
    key = _key(replica)
    with _regions(client, key.namespace) as regions:
        found = regions.find_replica(key)
        if found is None:
            raise NotFound(f"replica {replica}: not found; next: holdfast get replicas -n {key.namespace}")
        regions.learn_quota_need(key.namespace)
        result = explain_node(*found, node)
        if result is None:
            step = f"holdfast get nodes --region {found[0].name}"
            if elsewhere := node_elsewhere(regions.reachable, *found, node):
                raise NotFound(
                    f"{replica}: {elsewhere}; next: holdfast explain {key.namespace}/{found[1].spec.workload}"
                )
            raise NotFound(f"node {node}: not in region {found[0].name}, the region of the replica; next: {step}")
        return result


def plan(client: Holdfast, *manifests: Mapping[str, Any]) -> WhatIfResult:
    """What would happen if these Workload manifests were applied: changes, placements, evictions and removals."""
    try:
        found = workloads_in(list(manifests))
    except msgspec.ValidationError as error:
        raise BadRequest(f"manifest: not a valid Workload ({error}); next: edit the manifest") from error
    if not found:
        raise BadRequest("plan: no Workload among the manifests; next: pass a manifest of kind Workload")
    for manifest in found:
        wrong = problems(manifest.workload)
        if wrong:
            name = manifest.workload.key
            raise Invalid(f"workload {name}: invalid ({'; '.join(wrong)}); next: edit the manifest")
    with _regions(client) as regions:
        return what_if_applied(regions, found)


def plan_region_loss(client: Holdfast, region: str, zone: str = "") -> dict[str, Any]:
    """What the loss of the region or zone would cause: targets, nodes, preemptions, and missed objectives."""
    with _regions(client) as regions:
        return region_loss(regions, region, zone)


@contextmanager
def _regions(client: Holdfast, tenant: str = "") -> Iterator[RegionClients]:
    cells: list[Holdfast] = []
    try:
        cells = [client.region(name) for name in client.regions()]
        yield RegionClients(client.cell_api, [RegionClient(cell.cell_api, cell.cell, tenant) for cell in cells])
    except ObjectNotFound as error:
        raise NotFound(f"{error.message}; next: {error.next_step}") from error
    except CommandError as error:
        raise fault_of_command(error) from error
    finally:
        for cell in cells:
            cell.close()


def _key(text: str) -> Key:
    tenant, _, name = text.partition("/")
    if not tenant or not name:
        raise BadRequest(f"{text}: the tenant is missing; next: pass TENANT/NAME, such as payments/risk-api")
    return Key(tenant, name)
