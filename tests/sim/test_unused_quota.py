"""A replica that waits while its tenant's unused quota and its region have room for it is reported."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from tests.factories import assignment, binding, meta, node, replica

from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.quantity import Amount
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.template import Port, Template
from holdfast.sim.actors import DesiredObjects
from holdfast.sim.checkers.checker_set import CheckerSet
from holdfast.sim.checkers.convergence import ConvergenceCheck
from holdfast.sim.loop import VirtualLoop

HALF_CPU = Template(command=("x",), resources={"cpu": "500m"})


def problems(
    *, hard: str, cap: str = "", used_elsewhere: str = "", node_cpu: str = "4", more: Sequence[tuple[str, Object]] = ()
) -> list[str]:
    """East has one pending replica of 500m; west may use some of the quota."""
    checkers = CheckerSet(VirtualLoop(random.Random(1)))
    caps: dict[str, dict[str, Amount]] = {"east": {"cpu": cap}} if cap else {}
    quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(hard={"cpu": hard}, region_caps=caps))
    waiting = replica(1, assignment(where="east", template=HALF_CPU))
    machine = node("east-n1", capacity={"cpu": node_cpu, "memory": "4Gi"})
    stored: list[tuple[str, Object]] = [("global", quota), ("east", waiting), ("east", machine), *more]
    if used_elsewhere:
        claim = binding(replica(1, assignment(where="west", template=HALF_CPU)), "west-n1")
        spec = msgspec.structs.replace(claim.spec, resources={"cpu": used_elsewhere})
        stored.append(("west", msgspec.structs.replace(claim, spec=spec)))
    for cell, item in stored:
        checkers.state(cell)[kind_of(type(item)).store_key(item.metadata.namespace, item.metadata.name)] = item
    found = ConvergenceCheck(checkers, DesiredObjects(), ("east", "west"), ()).problems
    return [problem for problem in found if "api-east-1" in problem]


def test_wait_for_unused_quota_is_reported() -> None:
    (found,) = problems(hard="1", used_elsewhere="500m")
    assert "is Queued although there is room" in found


@pytest.mark.parametrize(("may_preempt", "reported"), [(False, True), (True, False)])
def test_quota_of_a_replica_that_waits_for_room_elsewhere_is_unused(may_preempt: bool, reported: bool) -> None:
    """West is full. Unless its work may preempt, east could use the quota."""
    west = assignment(where="west", template=HALF_CPU, may_preempt=may_preempt)
    full = node("west-n1", capacity={"cpu": "100m", "memory": "4Gi"})
    found = problems(hard="500m", more=[("west", west), ("west", replica(1, west)), ("west", full)])
    assert bool(found) is reported


@pytest.mark.parametrize(("ports", "reported"), [(1, False), (2, True)])
def test_quota_of_a_replica_that_waits_for_a_port_elsewhere_belongs_to_its_region(ports: int, reported: bool) -> None:
    """West has CPU for its replica and no port, which its report does not tell. With a free port it would be full."""
    template = Template(command=("x",), resources={"cpu": "500m"}, ports=(Port(name="http"),))
    west = assignment(where="west", template=template)
    machine = node("west-n1", capacity={"cpu": "4" if not reported else "100m", "memory": "4Gi"})
    spec = msgspec.structs.replace(machine.spec, port_range=(20000, 20000 + ports - 1))
    other = binding(replica(1, assignment("other", "west", namespace="globex", template=template)), "west-n1")
    taken = msgspec.structs.replace(other.spec, ports={"http": 20000})
    more: list[tuple[str, Object]] = [
        ("west", west),
        ("west", replica(1, west)),
        ("west", msgspec.structs.replace(machine, spec=spec)),
        ("west", msgspec.structs.replace(other, spec=taken)),
    ]
    assert bool(problems(hard="500m", more=more)) is reported


@pytest.mark.parametrize(
    ("hard", "cap", "used_elsewhere", "node_cpu"),
    [("900m", "", "500m", "4"), ("4", "400m", "", "4"), ("4", "", "", "400m")],
    ids=["quota used in another region", "cap of the region", "no room in the region"],
)
def test_wait_without_quota_cap_or_room_is_permitted(hard: str, cap: str, used_elsewhere: str, node_cpu: str) -> None:
    assert not problems(hard=hard, cap=cap, used_elsewhere=used_elsewhere, node_cpu=node_cpu)
