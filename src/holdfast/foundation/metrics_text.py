"""The metrics of this process as Prometheus text, without the families of other programs.

All metrics are declared in one module, so every process has them all. A cell that exported the agent's metrics would
report zeros in the agent's name.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, Metric, generate_latest

AGENT_PREFIXES = ("holdfast_agent_", "holdfast_shim_")
PROXY_PREFIX = "holdfast_proxy_"
_SHARED_PREFIXES = ("process_", "python_", "holdfast_client_", "holdfast_trace_")
"""Families that an agent has as well: its process, its interpreter, its calls to the region, its traces."""


class _AgentFamilies:
    def collect(self) -> Iterator[Metric]:
        return (family for family in REGISTRY.collect() if family.name.startswith((*AGENT_PREFIXES, *_SHARED_PREFIXES)))


class _ProxyFamilies:
    def collect(self) -> Iterator[Metric]:
        return (family for family in REGISTRY.collect() if family.name.startswith((PROXY_PREFIX, *_SHARED_PREFIXES)))


class _CellFamilies:
    def collect(self) -> Iterator[Metric]:
        others = (*AGENT_PREFIXES, PROXY_PREFIX)
        return (family for family in REGISTRY.collect() if not family.name.startswith(others))


def agent_metrics() -> str:
    return generate_latest(_AgentFamilies()).decode()


def cell_metrics() -> bytes:
    return generate_latest(_CellFamilies())


def proxy_metrics() -> str:
    return generate_latest(_ProxyFamilies()).decode()
