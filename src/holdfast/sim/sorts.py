"""The sorts of work that users of a simulated world bring: which there are in a run is drawn, as the faults are.

How work behaves is written in its own environment (`BEHAVES`), where the simulated machine reads it: well, badly, or
well until someone changes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_rules import AffinityRule, Expression, Operator, Placement, SpreadRule, Toleration
from holdfast.model.region import Region
from holdfast.model.template import Driver, Port, Probe, Probes, RestartPolicy, TcpProbe, Template
from holdfast.model.workload import (
    Autoscale,
    Batch,
    Disruption,
    ExclusiveScope,
    Exclusivity,
    Gang,
    RecoveryPromise,
    Rollout,
    ScaleLimits,
    Workload,
    WorkloadSpec,
    WorkloadType,
)

LEVELS = (
    # name, rank, reclaimable, may preempt
    ("standard", 0, False, False),
    ("high", 100, False, False),
    ("spare", -100, True, False),
    ("urgent", 200, False, True),
)
BEHAVES = "BEHAVES"
FAILS, UNSTEADY, NEVER_READY, UNWELL, NEVER_UP = "fails", "unsteady", "never-ready", "unwell", "never-up"
HALF_READY = "half-ready"
"""Every second replica never gets ready."""
QUICK, FAILS_AT_ONCE, MORTAL = "quick", "fails-at-once", "mortal"
"""Over before anyone has looked, well or badly; a service that ends by itself now and then until all else is well."""
BAD = frozenset({NEVER_READY, UNWELL, NEVER_UP, HALF_READY})
"""Behaviours of services that people repair in the end."""
RESTLESS = frozenset({UNWELL, NEVER_UP})
"""Those of them that are started again and again."""
EVERYWHERE = 100
FIXED_PORT = 20_007
SOLO = "solo"
"""The tenant that has machines of its own, where there is one."""
SCARCE = "fpga"
"""A resource that few machines have."""
SHARE_OF_SORTS = 0.4
PROBE = Probe(tcp=TcpProbe(), period_seconds=10.0, failure_threshold=1)
SEEN_LATE = Probes(readiness=PROBE)
"""What is not ready at once is looked at again after ten seconds; by then short work is over."""

Make = Callable[[str, str, Sequence[Region], random.Random], Workload]


def drawn(chance: random.Random) -> tuple[str, ...]:
    """The sorts of one run: the plain ones always, and some of the others."""
    found = (name for name in SORTS if name not in DECLARED)
    return tuple(name for name in found if name in PLAIN or chance.random() < SHARE_OF_SORTS)


def template(**changes: Any) -> Template:
    plain = Template(
        command=("serve",),
        resources={"cpu": "500m", "memory": "512Mi"},
        ports=(Port(name="http"),),
        probes=Probes(readiness=PROBE),
    )
    return msgspec.structs.replace(plain, **changes)


def _workload(tenant: str, name: str, spec: WorkloadSpec) -> Workload:
    return Workload(metadata=ObjectMeta(name=name, namespace=tenant), spec=spec)


# Services


def service(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    placement = Placement()
    if chance.random() < 0.3:
        topology, skew = chance.choice((("zone", 1), ("node", 2)))
        placement = Placement(spread=(SpreadRule(topology=topology, max_skew=skew),))
    spec = WorkloadSpec(
        replicas=2,
        template=template(),
        placement=placement,
        priority_class_name=chance.choice(("standard", "high", "spare")),
        disruption=Disruption(max_unavailable=chance.choice((1, 1, 1, 0))),
    )
    return _workload(tenant, name, spec)


def exclusive(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    spec = WorkloadSpec(replicas=2, template=template(), priority_class_name="high", exclusive=Exclusivity())
    return _workload(tenant, name, spec)


def tenured(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """One of it anywhere, and it moves by itself when its region is cut off."""
    alone = Exclusivity(scope=ExclusiveScope.GLOBAL)
    spec = WorkloadSpec(replicas=2, template=template(), priority_class_name="high", exclusive=alone)
    return _workload(tenant, name, spec)


def resident(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that may only be where the law says."""
    placement = Placement(residency=chance.choice(regions).spec.residency, pools=("default",))
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(), placement=placement))


def critical(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that comes back elsewhere when a region is lost; some promise it sooner than it can be."""
    promise = RecoveryPromise(min_serving=2, deadline_seconds=chance.choice((300.0, 300.0, 30.0)))
    spec = WorkloadSpec(replicas=2, template=template(), priority_class_name="high", recovery=promise)
    return _workload(tenant, name, spec)


def vital(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Four that are critical: all that one recovery budget keeps places for. Only scenarios bring it (`DECLARED`)."""
    promise = RecoveryPromise(min_serving=4, deadline_seconds=300.0)
    spec = WorkloadSpec(replicas=4, template=template(), priority_class_name="high", recovery=promise)
    return _workload(tenant, name, spec)


def urgent(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that makes others leave: it needs more than is usually free on one node."""
    asks = template(resources={"cpu": "1500m", "memory": "1Gi"})
    return _workload(tenant, name, WorkloadSpec(replicas=1, template=asks, priority_class_name="urgent"))


def brittle(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service that nobody starts again on the spot when it ends, and that does end by itself."""
    policy = chance.choice((RestartPolicy.NEVER, RestartPolicy.ON_FAILURE))
    once = template(restart_policy=policy, env={BEHAVES: MORTAL})
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=once))


def probed(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service with every sort of probe."""
    startup = msgspec.structs.replace(PROBE, period_seconds=2.0, failure_threshold=5)
    probes = Probes(startup=startup, readiness=PROBE, liveness=PROBE)
    behaves = {BEHAVES: chance.choice((UNWELL, NEVER_UP))} if chance.random() < 0.5 else {}
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(probes=probes, env=behaves)))


def bare(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service without any probe: it is ready because it runs, and it ends by itself now and then."""
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(probes=Probes(), env={BEHAVES: MORTAL})))


def scaled(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service whose number follows the load that people push for it."""
    rules = Autoscale(
        max_replicas=4, scale_up=ScaleLimits(), scale_down=ScaleLimits(stabilization_seconds=chance.choice((0.0, 30.0)))
    )
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(), autoscale=rules))


def wavering(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """The same, and only half of its replicas ever get ready: more of them would not help."""
    made = scaled(tenant, name, regions, chance)
    return respec(made, template=template(env={BEHAVES: HALF_READY}))


def hungry(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that needs little of the processors and much of something else."""
    much = chance.choice(({"memory": "3Gi"}, {SCARCE: "1"}))
    asks = template(resources={"cpu": "50m", "memory": "128Mi", **much})
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=asks))


def dedicated(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A plain service; where there is this sort, one tenant has machines of its own (`SOLO`)."""
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template()))


def pooled(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work for machines that exist only while they are needed: the pools that are named after their regions."""
    pools = tuple(region.metadata.name for region in regions)
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(), placement=Placement(pools=pools)))


def fixed(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service that insists on its port, so that two of its kind never share a node."""
    spec = WorkloadSpec(replicas=2, template=template(ports=(Port(name="http", port=FIXED_PORT),)))
    return _workload(tenant, name, spec)


def sociable(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service that wants to be near others, or away from them."""
    apart = chance.random() < 0.6
    topology = chance.choice(("node", "zone"))
    rule = AffinityRule(workload_labels={"app": "social"}, topology=topology, apart=apart)
    labels = {"app": "social"} if apart else {}
    # All of these in one region, which has few zones: who comes second waits.
    crowded = (regions[0].metadata.name,) if apart and topology == "zone" and regions else ()
    rules = Placement(affinity=(rule,), regions=crowded)
    spec = WorkloadSpec(replicas=3 if crowded else 2, template=template(labels=labels), placement=rules)
    return _workload(tenant, name, spec)


def picky(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """A service with requirements that few nodes meet, or none."""
    zones = [zone for region in regions for zone in region.spec.zones]
    choices = (
        Placement(node_selector={"disk": "fast"}),
        Placement(expressions=(Expression(key="disk", operator=Operator.IN, values=("slow",)),)),
        Placement(zones=(chance.choice(zones),)),
        Placement(tolerations=(Toleration(key="reserved", exists=True),), node_selector={"disk": "reserved"}),
        Placement(regions=("nowhere",)),
    )
    made = template(driver=Driver.OCI, bundle="bundle") if chance.random() < 0.15 else template()
    rules = chance.choice(choices)
    if rules.zones:  # and much of it, so that its zone is full at times
        made = msgspec.structs.replace(made, resources={"cpu": "1500m", "memory": "1Gi"})
    spec = WorkloadSpec(replicas=1, template=made, placement=rules)
    return _workload(tenant, name, spec)


# Work that ends


def batch(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    resources: dict[str, Any] = {"cpu": "250m", "memory": "256Mi"}
    models: tuple[str, ...] = ()
    if chance.random() < 0.5:
        resources["gpu"] = chance.choice(("1", "500m"))
        models = chance.choice(((), ("A100",)))
    made = _ends(resources=resources, gpu_models=models)
    return _batch(tenant, name, made, Batch(completions=chance.randint(1, 3), parallelism=2), chance)


def dated(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that must be done by a time, and is cleared away a while after it is."""
    by_then = Batch(
        completions=2,
        parallelism=2,
        deadline_seconds=chance.choice((20.0, 60.0, 3600.0)),
        ttl_after_finished_seconds=chance.choice((5.0, 30.0)),
    )
    made = _ends(resources={"cpu": "500m", "memory": "256Mi"}, ports=(Port(name="http"),), probes=SEEN_LATE)
    return _batch(tenant, name, made, by_then, chance)


def lone(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work of two for a place that a region has only once: they run one after the other."""
    made = _ends(resources={"cpu": "100m", "memory": "128Mi", SCARCE: "1"})
    where = (chance.choice(regions).metadata.name,) if regions else ()
    work = _batch(tenant, name, made, Batch(completions=2, parallelism=2), chance)
    return respec(work, placement=Placement(regions=where))


def failing(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that fails now and then, or always."""
    made = _ends(
        env={BEHAVES: chance.choice((FAILS, UNSTEADY))},
        ports=(Port(name="http"),),
        probes=Probes(readiness=PROBE) if chance.random() < 0.5 else Probes(),
        restart_policy=chance.choice((RestartPolicy.NEVER, RestartPolicy.NEVER, RestartPolicy.ON_FAILURE)),
    )
    limit = Batch(completions=2, parallelism=2, backoff_limit=chance.randint(0, 2), ttl_after_finished_seconds=20.0)
    return _batch(tenant, name, made, limit, chance)


def hopeless(workload: Workload) -> bool:
    """Work that fails at every start and is started again for many minutes: whoever runs it takes it back."""
    made = workload.spec.template
    return made.env.get(BEHAVES) == FAILS and made.restart_policy is RestartPolicy.ON_FAILURE


def quick(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that is over as soon as it has begun, well or badly."""
    badly = chance.random() < 0.5
    made = _ends(
        env={BEHAVES: FAILS_AT_ONCE if badly else QUICK},
        restart_policy=RestartPolicy.NEVER if badly else RestartPolicy.ON_FAILURE,
    )
    many = Batch(completions=4, parallelism=2, backoff_limit=chance.randint(1, 4), ttl_after_finished_seconds=20.0)
    return _batch(tenant, name, made, many, chance)


def gang(tenant: str, name: str, regions: Sequence[Region], chance: random.Random) -> Workload:
    """Work that is of use only together."""
    size = chance.randint(2, 4)
    made = _ends(resources={"cpu": "500m", "memory": "256Mi"})
    spec = WorkloadSpec(
        type=WorkloadType.BATCH,
        replicas=size,
        template=made,
        batch=Batch(completions=size, parallelism=size),
        gang=Gang(min_available=size),
    )
    return _workload(tenant, name, spec)


def _ends(**changes: Any) -> Template:
    plain = Template(
        command=("work",),
        resources={"cpu": "250m", "memory": "256Mi"},
        restart_policy=RestartPolicy.ON_FAILURE,
    )
    return msgspec.structs.replace(plain, **changes)


def _batch(tenant: str, name: str, made: Template, batch: Batch, chance: random.Random) -> Workload:
    spec = WorkloadSpec(
        type=WorkloadType.BATCH,
        template=made,
        priority_class_name=chance.choice(("standard", "spare")),
        batch=batch,
    )
    return _workload(tenant, name, spec)


SORTS: dict[str, Make] = {
    "service": service,
    "exclusive": exclusive,
    "resident": resident,
    "batch": batch,
    "critical": critical,
    "urgent": urgent,
    "brittle": brittle,
    "probed": probed,
    "bare": bare,
    "scaled": scaled,
    "wavering": wavering,
    "hungry": hungry,
    "dedicated": dedicated,
    "pooled": pooled,
    "fixed": fixed,
    "sociable": sociable,
    "picky": picky,
    "dated": dated,
    "failing": failing,
    "quick": quick,
    "gang": gang,
    "tenured": tenured,
    "lone": lone,
    "vital": vital,
}
PLAIN = frozenset({"service", "exclusive", "resident", "batch"})
DECLARED = frozenset({"vital"})
"""Never drawn: there where a scenario names it."""


# What users do to what they have


def broken(workload: Workload, chance: random.Random) -> Workload:
    """A new version that never becomes ready, with a rollout that notices soon; what then, is the user's choice."""
    made = msgspec.structs.replace(
        workload.spec.template, env={"VERSION": str(chance.randint(1, 1000)), BEHAVES: NEVER_READY}
    )
    rollout = Rollout(progress_deadline_seconds=chance.uniform(15.0, 60.0), auto_rollback=chance.random() < 0.7)
    return respec(workload, template=made, rollout=rollout)


def repaired(workload: Workload) -> Workload:
    """The same without what keeps it from serving, and with the usual time for it: a deadline that is to end a broken
    version soon would end this one too while it waits for room, and bring back what may never get ready. What is
    started again and again is repaired everywhere at once: behind a region without room it would never be at rest."""
    made, rollout = workload.spec.template, workload.spec.rollout
    behaves = made.env.get(BEHAVES)
    if behaves in BAD:
        made = msgspec.structs.replace(made, env={"VERSION": "repaired"})
    if behaves in RESTLESS:
        rollout = msgspec.structs.replace(rollout, wave_regions=EVERYWHERE)
    patient = Rollout().progress_deadline_seconds
    rollout = msgspec.structs.replace(rollout, paused=False, progress_deadline_seconds=patient)
    return respec(workload, template=made, rollout=rollout)


def respec(workload: Workload, **changes: Any) -> Workload:
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(workload.spec, **changes))
