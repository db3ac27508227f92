"""CPU time of one commit in the gate of a global cell, on a store in memory and without a network.

A Workload is created as a user does it, its status is written, and its Assignment is created. Each figure is the best
of several rounds: other load on the machine makes a round slower, never faster. So a change of a few per cent shows on
a busy machine too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Condition, ObjectMeta
from holdfast.model.principal import OPERATORS, Principal, controller, from_identity
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Summary, Workload, WorkloadSpec
from holdfast.model.writes import Create, SetStatus, Write
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

TENANT = "bench"
ROUNDS = 12
COMMITS = 400
"""Commits of each sort per round."""
_TEMPLATE = Template(command=("serve",), resources={"cpu": "100m", "memory": "500Mi"})
_PENDING = Condition("Serving", "False", "NoneServing", "0 of 1 replicas serve")


def _create(name: str) -> Write:
    return Create(Workload(ObjectMeta(name=name, namespace=TENANT), WorkloadSpec(template=_TEMPLATE)))


def _status(item: Workload) -> Write:
    blocks = {"summary": Summary(replicas=1, assigned=1)}
    return SetStatus("Workload", item.key, item.uid, blocks=blocks, conditions=(_PENDING,), observed_generation=1)


def _assign(item: Workload) -> Write:
    name = item.metadata.name
    spec = AssignmentSpec(name, item.uid, "bench", "1", _TEMPLATE, replicas=1, epoch=1)
    return Create(Assignment(ObjectMeta(name=f"{name}.bench.normal", namespace=TENANT), spec))


async def _commit_each(gate: Gate, who: Principal, writes: Sequence[Write]) -> float:
    """CPU time of one commit in microseconds."""
    began = time.process_time()
    for write in writes:
        await gate.commit(who, [write])
    return (time.process_time() - began) / len(writes) * 1e6


async def run(rounds: int = ROUNDS, commits: int = COMMITS) -> dict[str, float]:
    objects = Objects(MemoryStore(), MemoryStore())
    await objects.start()
    gate = Gate("global", objects, SystemPorts())
    user = from_identity("operator", (OPERATORS,), credential="certificate")
    progress, assign = controller("workload-status", cell="global"), controller("assign", cell="global")
    priority = PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(tenants=("*",)))
    await gate.commit(user, [Create(Tenant(ObjectMeta(name=TENANT))), Create(priority)])
    taken: dict[str, list[float]] = {"create_us": [], "status_us": [], "assignment_us": []}
    for number in range(rounds):
        names = [f"w{number}-{at}" for at in range(commits)]
        taken["create_us"].append(await _commit_each(gate, user, [_create(name) for name in names]))
        stored = [item for name in names if isinstance(item := objects.get(kind_of(Workload), TENANT, name), Workload)]
        taken["status_us"].append(await _commit_each(gate, progress, [_status(item) for item in stored]))
        taken["assignment_us"].append(await _commit_each(gate, assign, [_assign(item) for item in stored]))
    await gate.close()
    await objects.close()
    return {name: round(min(each), 1) for name, each in taken.items()}
