"""Endpoint: addresses that receive traffic, one object per workload and region.

An address is removed before its replica is stopped.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.validation import Causes, check_range


class Address(ApiStruct, frozen=True):
    replica: str
    uid: str
    address: str
    node: str = ""
    zone: str = ""
    ports: dict[str, int] = {}
    epoch: int = visible_default(1)
    revision: str = ""


class EndpointSpec(ApiStruct, frozen=True):
    """`ttlSeconds` counts from the region's last report, so that addresses of a partitioned region expire."""

    workload: str
    region: str
    ttl_seconds: float = visible_default(60.0)
    addresses: tuple[Address, ...] = ()


class EndpointStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Endpoint(Object, frozen=True):
    spec: EndpointSpec
    status: EndpointStatus = msgspec.field(default_factory=EndpointStatus)


def endpoint_name(workload: str, region: str) -> str:
    return f"{workload}.{region}"


def validate_endpoint(endpoint: Endpoint, old: Endpoint | None) -> Causes:
    yield from check_range("spec.ttlSeconds", endpoint.spec.ttl_seconds, 1, 3600)
