"""Reasons that no simulated world gives, each with why, and the test that does. Whatever is in neither is a gap.

A reason that worlds do give must not be listed here: `tests/sim/test_coverage.py` holds the table to what exists.
"""

from __future__ import annotations

ELSEWHERE: dict[str, str] = {
    "Confined": "needs a kernel's control groups: tests/agent",
    "WeaklyConfined": "needs a node without control groups: tests/agent",
    "GuardBreached": "needs a canary that does worse by its own figures: tests/fleet/test_policy_guard.py",
    "DriverMissing": "every simulated node has the process driver: tests/flow/test_filters.py",
    "Rejoining": "needs a cell that was restored from a backup: tests/fleet/test_rejoin.py",
    "NotLeader": "a simulated cell is one process: tests/authority/test_release.py",
    "NoNodes": "every simulated region has nodes: tests/flow/test_filters.py",
    "PortsExhausted": "a simulated node has more ports than room for work: tests/flow/test_filters.py",
    "InsufficientResource": "worlds have processors, memory and GPUs only: tests/authority/test_reserve.py",
    "InsufficientMemory": "processors run out before memory in every world: tests/authority/test_reserve.py",
    "TenancyViolated": "no tenant of a world has nodes of its own: tests/flow/test_filters.py",
    "IntentMismatch": "one scheduler per region never proposes one intent twice: tests/authority/test_reserve.py",
    "FinalizerStuck": "takes an hour, and worlds last minutes",
    "PriorityClassMissing": "given by nothing: admission refuses such a workload, and a class in use is not deleted",
    "Rebalanced": "given by nothing yet",
    "Terminating": "given by nothing yet",
    "Overcommitted": "given by nothing yet",
    "Registered": "given by nothing yet",
}
