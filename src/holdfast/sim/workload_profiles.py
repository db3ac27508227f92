"""Workload profiles: the types of workloads that simulated users create. Each run draws a subset.

The behaviour of a task is set in its environment (`BEHAVES`), where the simulated machine reads it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_rules import AffinityRule, Expression, Operator, PlacementRules, SpreadRule, Toleration
from holdfast.model.probe import Probe, TcpProbe
from holdfast.model.region import Region
from holdfast.model.template import DriverName, Port, Probes, RestartPolicy, Template
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.workload import (
    Autoscale,
    Batch,
    CompletionMode,
    Disruption,
    ExclusiveScope,
    Exclusivity,
    Gang,
    Rebalance,
    RecoveryObjective,
    Rollout,
    ScaleLimits,
    Workload,
    WorkloadSpec,
    WorkloadType,
)

PRIORITY_LEVELS = (
    # name, priority, reclaimable, may preempt
    ("standard", 0, False, False),
    ("high", 100, False, False),
    ("spare", -100, True, False),
    ("urgent", 200, False, True),
)
BEHAVIOUR_ENV = "BEHAVES"
FAILS, FAILS_SOMETIMES, NEVER_READY, TURNS_UNHEALTHY, NEVER_UP = (
    "fails",
    "unsteady",
    "never-ready",
    "unwell",
    "never-up",
)
HALF_READY = "half-ready"
"""Every second replica never becomes ready."""
QUICK, FAILS_AT_ONCE, EXITS_SOMETIMES = "quick", "fails-at-once", "mortal"
"""Batch tasks that succeed or fail at once, and services that exit by themselves during the fault phase."""
BROKEN_BEHAVIOURS = frozenset({NEVER_READY, TURNS_UNHEALTHY, NEVER_UP, HALF_READY})
"""Behaviours that users repair at the end of the run."""
CRASH_LOOPING = frozenset({TURNS_UNHEALTHY, NEVER_UP})
"""Behaviours that cause a restart loop."""
ALL_REGIONS = 100
FIXED_PORT = 20_007
DEDICATED_TENANT = "solo"
"""The tenant with dedicated machines, if the run has one."""
SCARCE_RESOURCE = "fpga"
"""A resource that few machines have."""
PROFILE_FRACTION = 0.4
VOLUME_CLAIM, VOLUME_SIZE, VOLUMES_PER_NODE = "data", "64Mi", "64Mi"
"""The VolumeClaim of each tenant with the profile `stateful`, its size, and the space of each machine."""
PROBE = Probe(tcp=TcpProbe(), period_seconds=10.0, failure_threshold=1)
SLOW_READINESS = Probes(readiness=PROBE)
"""A slow readiness probe: short tasks have ended before the second check."""

ProfileFactory = Callable[[str, str, Sequence[Region], random.Random], Workload]


def draw_profiles(rng: random.Random) -> tuple[str, ...]:
    """The profiles of one run: the base profiles, and a random part of the others."""
    found = (name for name in PROFILES if name not in SCENARIO_ONLY_PROFILES)
    return tuple(name for name in found if name in BASE_PROFILES or rng.random() < PROFILE_FRACTION)


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


def service(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    placement = PlacementRules()
    if rng.random() < 0.3:
        topology, skew = rng.choice((("zone", 1), ("node", 2)))
        placement = PlacementRules(spread=(SpreadRule(topology=topology, max_skew=skew),))
    spec = WorkloadSpec(
        replicas=2,
        template=template(),
        placement=placement,
        priority_class_name=rng.choice(("standard", "high", "spare")),
        disruption=Disruption(max_unavailable=rng.choice((1, 1, 1, 0))),
    )
    return _workload(tenant, name, spec)


def exclusive(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    spec = WorkloadSpec(replicas=2, template=template(), priority_class_name="high", exclusive=Exclusivity())
    return _workload(tenant, name, spec)


def tenured(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """Exclusive work of scope Global: it moves to another region when its region is partitioned."""
    alone = Exclusivity(scope=ExclusiveScope.GLOBAL)
    spec = WorkloadSpec(replicas=2, template=template(), priority_class_name="high", exclusive=alone)
    return _workload(tenant, name, spec)


def resident(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with a residency rule."""
    placement = PlacementRules(residency=rng.choice(regions).spec.residency, pools=("default",))
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(), placement=placement))


def critical(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with a recovery objective. Some deadlines are too short to be met."""
    objective = RecoveryObjective(min_serving=2, deadline_seconds=rng.choice((300.0, 300.0, 30.0)))
    spec = WorkloadSpec(replicas=2, template=template(), priority_class_name="high", recovery=objective)
    return _workload(tenant, name, spec)


def vital(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """Four critical replicas in one region, as many as one RecoveryBudget has slots. Used only in scenarios."""
    objective = RecoveryObjective(min_serving=4, deadline_seconds=300.0)
    spec = WorkloadSpec(
        replicas=4,
        template=template(),
        priority_class_name="high",
        placement=PlacementRules(spread_regions=1),
        recovery=objective,
    )
    return _workload(tenant, name, spec)


def balanced(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service whose replicas move soon to a zone or node with fewer of them, or never. Used only in scenarios."""
    spec = WorkloadSpec(
        replicas=rng.choice((3, 4, 6)),
        template=template(),
        placement=PlacementRules(spread_regions=rng.choice((1, 2))),
        disruption=Disruption(max_unavailable=rng.choice((1, 1, 2))),
        rebalance=Rebalance(after_seconds=rng.choice((20.0, 20.0, 40.0, 0.0))),
    )
    return _workload(tenant, name, spec)


def urgent(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A preempting service: it needs more than is usually free on one node."""
    pod_template = template(resources={"cpu": "1500m", "memory": "1Gi"})
    return _workload(tenant, name, WorkloadSpec(replicas=1, template=pod_template, priority_class_name="urgent"))


def brittle(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service that exits by itself and is not restarted on its node."""
    policy = rng.choice((RestartPolicy.NEVER, RestartPolicy.ON_FAILURE))
    once = template(restart_policy=policy, env={BEHAVIOUR_ENV: EXITS_SOMETIMES})
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=once))


def probed(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with startup, readiness and liveness probes."""
    startup = msgspec.structs.replace(PROBE, period_seconds=2.0, failure_threshold=5)
    probes = Probes(startup=startup, readiness=PROBE, liveness=PROBE)
    behaves = {BEHAVIOUR_ENV: rng.choice((TURNS_UNHEALTHY, NEVER_UP))} if rng.random() < 0.5 else {}
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(probes=probes, env=behaves)))


def bare(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service without probes that exits by itself sometimes."""
    return _workload(
        tenant, name, WorkloadSpec(replicas=2, template=template(probes=Probes(), env={BEHAVIOUR_ENV: EXITS_SOMETIMES}))
    )


def scaled(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """An autoscaled service."""
    rules = Autoscale(
        max_replicas=4, scale_up=ScaleLimits(), scale_down=ScaleLimits(stabilization_seconds=rng.choice((0.0, 30.0)))
    )
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(), autoscale=rules))


def wavering(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """An autoscaled service of which only half of the replicas become ready."""
    made = scaled(tenant, name, regions, rng)
    return with_spec(made, template=template(env={BEHAVIOUR_ENV: HALF_READY}))


def hungry(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service that needs little CPU and much of another resource."""
    scarce = rng.choice(({"memory": "3Gi"}, {SCARCE_RESOURCE: "1"}))
    pod_template = template(resources={"cpu": "50m", "memory": "128Mi", **scarce})
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=pod_template))


def dedicated(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A plain service. If a run has this profile, one tenant has dedicated machines (`DEDICATED_TENANT`)."""
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template()))


def pooled(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service for node pools, whose nodes exist only while they are needed."""
    pools = tuple(region.metadata.name for region in regions)
    return _workload(tenant, name, WorkloadSpec(replicas=2, template=template(), placement=PlacementRules(pools=pools)))


def fixed(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with a fixed port, so that two replicas never share a node."""
    spec = WorkloadSpec(replicas=2, template=template(ports=(Port(name="http", port=FIXED_PORT),)))
    return _workload(tenant, name, spec)


def sociable(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with affinity or anti-affinity rules."""
    apart = rng.random() < 0.6
    topology = rng.choice(("node", "zone"))
    rule = AffinityRule(workload_labels={"app": "social"}, topology=topology, apart=apart)
    labels = {"app": "social"} if apart else {}
    # All of them in one region with few zones, so that some stay pending.
    crowded = (regions[0].metadata.name,) if apart and topology == "zone" and regions else ()
    rules = PlacementRules(affinity=(rule,), regions=crowded)
    spec = WorkloadSpec(replicas=3 if crowded else 2, template=template(labels=labels), placement=rules)
    return _workload(tenant, name, spec)


def picky(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with placement rules that few nodes meet, or none."""
    zones = [zone for region in regions for zone in region.spec.zones]
    choices = (
        PlacementRules(node_selector={"disk": "fast"}),
        PlacementRules(expressions=(Expression(key="disk", operator=Operator.IN, values=("slow",)),)),
        PlacementRules(zones=(rng.choice(zones),)),
        PlacementRules(tolerations=(Toleration(key="reserved", exists=True),), node_selector={"disk": "reserved"}),
        PlacementRules(regions=("nowhere",)),
    )
    made = template(driver=DriverName.OCI, bundle="bundle") if rng.random() < 0.15 else template()
    rules = rng.choice(choices)
    if rules.zones:  # large, so that its zone is full at times
        made = msgspec.structs.replace(made, resources={"cpu": "1500m", "memory": "1Gi"})
    spec = WorkloadSpec(replicas=1, template=made, placement=rules)
    return _workload(tenant, name, spec)


# Batch


def batch(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    resources: dict[str, Any] = {"cpu": "250m", "memory": "256Mi"}
    models: tuple[str, ...] = ()
    if rng.random() < 0.5:
        resources["gpu"] = rng.choice(("1", "500m"))
        models = rng.choice(((), ("A100",)))
    made = _finite_template(resources=resources, gpu_models=models)
    return _batch(tenant, name, made, Batch(completions=rng.randint(1, 3), parallelism=2), rng)


def dated(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A batch with a deadline, which is deleted some time after it has finished."""
    by_then = Batch(
        completions=2,
        parallelism=2,
        deadline_seconds=rng.choice((20.0, 60.0, 3600.0)),
        ttl_after_finished_seconds=rng.choice((5.0, 30.0)),
    )
    made = _finite_template(
        resources={"cpu": "500m", "memory": "256Mi"}, ports=(Port(name="http"),), probes=SLOW_READINESS
    )
    return _batch(tenant, name, made, by_then, rng)


def lone(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A batch of two tasks for a resource that a region has once, so that they run one after the other."""
    made = _finite_template(resources={"cpu": "100m", "memory": "128Mi", SCARCE_RESOURCE: "1"})
    where = (rng.choice(regions).metadata.name,) if regions else ()
    work = _batch(tenant, name, made, Batch(completions=2, parallelism=2), rng)
    return with_spec(work, placement=PlacementRules(regions=where))


def failing(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A batch that fails sometimes or always."""
    made = _finite_template(
        env={BEHAVIOUR_ENV: rng.choice((FAILS, FAILS_SOMETIMES))},
        ports=(Port(name="http"),),
        probes=Probes(readiness=PROBE) if rng.random() < 0.5 else Probes(),
        restart_policy=rng.choice((RestartPolicy.NEVER, RestartPolicy.NEVER, RestartPolicy.ON_FAILURE)),
    )
    limit = Batch(completions=2, parallelism=2, backoff_limit=rng.randint(0, 2), ttl_after_finished_seconds=20.0)
    return _batch(tenant, name, made, limit, rng)


def is_hopeless(workload: Workload) -> bool:
    """Whether the batch fails at every start and is restarted for many minutes. Its user deletes it."""
    made = workload.spec.template
    return made.env.get(BEHAVIOUR_ENV) == FAILS and made.restart_policy is RestartPolicy.ON_FAILURE


def quick(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A batch whose tasks succeed or fail at once."""
    badly = rng.random() < 0.5
    made = _finite_template(
        env={BEHAVIOUR_ENV: FAILS_AT_ONCE if badly else QUICK},
        restart_policy=RestartPolicy.NEVER if badly else RestartPolicy.ON_FAILURE,
    )
    many = Batch(completions=4, parallelism=2, backoff_limit=rng.randint(1, 4), ttl_after_finished_seconds=20.0)
    return _batch(tenant, name, made, many, rng)


def array(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A job array over two regions whose indexes fail sometimes and are retried. Used only in scenarios."""
    made = _finite_template(
        resources={"cpu": "50m", "memory": "64Mi"},
        env={BEHAVIOUR_ENV: rng.choice((FAILS_SOMETIMES, "steady"))},
        restart_policy=RestartPolicy.NEVER,
    )
    indexed = Batch(
        completions=rng.randint(4, 9), parallelism=2, backoff_limit=200, completion_mode=CompletionMode.INDEXED
    )
    work = _batch(tenant, name, made, indexed, rng)
    return with_spec(work, placement=PlacementRules(spread_regions=2))


def stateful(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A service with a persistent volume per replica, in two regions. Used only in scenarios."""
    data = TemplateVolume(name="data", mount_path="/data", claim=ClaimVolume(VOLUME_CLAIM))
    spec = WorkloadSpec(
        replicas=rng.choice((4, 6, 8)),
        template=template(resources={"cpu": "50m", "memory": "64Mi"}, volumes=(data,)),
        placement=PlacementRules(spread_regions=2),
        disruption=Disruption(max_unavailable=1),
    )
    return _workload(tenant, name, spec)


def gang(tenant: str, name: str, regions: Sequence[Region], rng: random.Random) -> Workload:
    """A gang."""
    size = rng.randint(2, 4)
    made = _finite_template(resources={"cpu": "500m", "memory": "256Mi"})
    spec = WorkloadSpec(
        type=WorkloadType.BATCH,
        replicas=size,
        template=made,
        batch=Batch(completions=size, parallelism=size),
        gang=Gang(min_available=size),
    )
    return _workload(tenant, name, spec)


def _finite_template(**changes: Any) -> Template:
    plain = Template(
        command=("work",), resources={"cpu": "250m", "memory": "256Mi"}, restart_policy=RestartPolicy.ON_FAILURE
    )
    return msgspec.structs.replace(plain, **changes)


def _batch(tenant: str, name: str, made: Template, batch: Batch, rng: random.Random) -> Workload:
    spec = WorkloadSpec(
        type=WorkloadType.BATCH, template=made, priority_class_name=rng.choice(("standard", "spare")), batch=batch
    )
    return _workload(tenant, name, spec)


PROFILES: dict[str, ProfileFactory] = {
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
    "balanced": balanced,
    "array": array,
    "stateful": stateful,
}
BASE_PROFILES = frozenset({"service", "exclusive", "resident", "batch"})
SCENARIO_ONLY_PROFILES = frozenset({"vital", "balanced", "array", "stateful"})
"""Profiles that are never drawn, only declared by scenarios."""


# Changes by users


def with_broken_template(workload: Workload, rng: random.Random) -> Workload:
    """A new revision that never becomes ready, with a short progress deadline."""
    made = msgspec.structs.replace(
        workload.spec.template, env={"VERSION": str(rng.randint(1, 1000)), BEHAVIOUR_ENV: NEVER_READY}
    )
    rollout = Rollout(progress_deadline_seconds=rng.uniform(15.0, 60.0), auto_rollback=rng.random() < 0.7)
    return with_spec(workload, template=made, rollout=rollout)


def with_repaired_template(workload: Workload) -> Workload:
    """The workload with a working template and the default progress deadline.

    The short deadline of a broken revision could end this one too while it is pending, and bring the broken one back. A
    crash-looping revision is replaced in all regions at once; behind a full region it would restart forever."""
    made, rollout = workload.spec.template, workload.spec.rollout
    behaves = made.env.get(BEHAVIOUR_ENV)
    if behaves in BROKEN_BEHAVIOURS:
        made = msgspec.structs.replace(made, env={"VERSION": "repaired"})
    if behaves in CRASH_LOOPING:
        rollout = msgspec.structs.replace(rollout, wave_regions=ALL_REGIONS)
    patient = Rollout().progress_deadline_seconds
    rollout = msgspec.structs.replace(rollout, paused=False, progress_deadline_seconds=patient)
    return with_spec(workload, template=made, rollout=rollout)


def with_spec(workload: Workload, **changes: Any) -> Workload:
    return msgspec.structs.replace(workload, spec=msgspec.structs.replace(workload.spec, **changes))
