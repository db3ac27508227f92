"""Requirements of identical replicas, read once from their SchedulingRequest: resources, rules and pending members."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.binding import DeviceClaim
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement_rules import PlacementRules, required_anti_affinity
from holdfast.model.quantity import GPU, STORAGE, WHOLE_GPU_MILLI
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest, SchedulingRequestSpec
from holdfast.model.template import Template, port_key, requests, template_claims, template_hash
from holdfast.model.volume import HeldVolume, volume_bytes, volume_name
from holdfast.scheduling.snapshot.claim import Labels, SnapshotClaim


class ReplicaRequirements(msgspec.Struct, frozen=True):
    """Requirements of the request's pending members.

    `bound_members` counts gang members that have a node already. `evictions_left` is the number of victims the tenant
    may still cause in this minute. `quota_headroom` is None if it is unknown.
    """

    namespace: str
    name: str
    workload: str
    template: Template
    placement: PlacementRules
    members: tuple[RequestMember, ...]
    amounts: dict[str, int]
    labels: Labels
    fixed_ports: tuple[int, ...]
    """Keys of fixed ports (`model.template.port_key`)."""
    open_ports: int
    reclaimable: bool
    dedicated: bool
    bound_members: int
    gang_min: int
    uses_recovery_slots: bool = False
    """Recovery work may use capacity reserved for recovery; the authority chooses the recovery slot."""
    priority: int = 0
    may_preempt: bool = False
    max_unavailable: int = 0
    evictions_left: int = 0
    quota_headroom: dict[str, int] | None = None
    excluded_victims: tuple[str, ...] = ()
    """Claims (tenant/claim) that the authority recently refused to evict for this request."""
    template_hash: str = ""
    """Identifies gang members. It is part of every claim, so that a committed claim equals the assumed one."""
    active_until: str = ""
    """When the batch must have ended (`activeDeadlineSeconds`); empty without such a time."""
    held_volumes: tuple[HeldVolume, ...] = ()
    """Volumes of the one member, if its template has claims (`for_member`)."""
    creates_volumes: bool = False
    """The member gets a new volume: it is bound at once or not at all, so it preempts nothing."""

    @property
    def gpu_milli(self) -> int:
        return self.amounts.get(GPU, 0)

    @property
    def whole_gpus(self) -> int:
        """Number of whole GPUs; 0 for a share of one."""
        return self.gpu_milli // WHOLE_GPU_MILLI

    @property
    def rescores_each_placement(self) -> bool:
        """Whether each placement must be scored again, because it changes a node by more than a subtraction."""
        return bool(self.gpu_milli or self.fixed_ports)

    def claim(
        self, node: str, member: RequestMember, devices: tuple[DeviceClaim, ...], victims: tuple[str, ...] = ()
    ) -> SnapshotClaim:
        """The claim of one member on the node, after its victims are released. Its Volumes hold their space."""
        return SnapshotClaim(
            node=node,
            namespace=self.namespace,
            replica_uid=member.uid,
            workload=self.workload,
            template_hash=self.template_hash,
            labels=self.labels,
            amounts=tuple((name, amount) for name, amount in self.amounts.items() if name != STORAGE),
            reclaimable=self.reclaimable,
            devices=tuple((d.id, d.milli) for d in devices),
            ports=self.fixed_ports,
            open_ports=self.open_ports,
            priority=self.priority,
            max_unavailable=self.max_unavailable,
            nominated=bool(victims),
            victims=victims,
            anti_affinity=required_anti_affinity(self.placement) if self.placement.affinity else (),
            ordinary=not self.uses_recovery_slots,
            gang_min=self.gang_min,
        )


def requirements_of(
    request: SchedulingRequest,
    members: tuple[RequestMember, ...] | None = None,
    *,
    bound_members: int = 0,
    evictions_left: int = 0,
    quota_headroom: dict[str, int] | None = None,
    excluded_victims: tuple[str, ...] = (),
) -> ReplicaRequirements:
    """Requirements of all members, or of the given pending ones. Recovery work does not use the tenant's headroom."""
    spec = request.spec
    template = spec.template
    uses_recovery_slots = spec.purpose is Purpose.RECOVERY and not spec.reclaimable
    fixed = tuple(port_key(port.port, port.protocol) for port in template.ports if port.port)
    return ReplicaRequirements(
        namespace=request.metadata.namespace,
        name=request.metadata.name,
        workload=spec.workload,
        template=template,
        placement=spec.placement,
        members=spec.members if members is None else members,
        amounts=requests(template),
        labels=tuple(sorted(template.labels.items())),
        fixed_ports=fixed,
        open_ports=len(template.ports) - len(fixed),
        reclaimable=spec.reclaimable,
        dedicated=spec.dedicated,
        bound_members=bound_members,
        gang_min=spec.gang.min_available if spec.gang is not None else 0,
        uses_recovery_slots=uses_recovery_slots,
        priority=spec.priority,
        may_preempt=spec.may_preempt,
        max_unavailable=spec.max_unavailable,
        evictions_left=evictions_left,
        quota_headroom=None if uses_recovery_slots else quota_headroom,
        excluded_victims=excluded_victims,
        template_hash=template_hash(template),
        active_until=spec.active_until,
    )


def for_member(
    requirements: ReplicaRequirements, member: RequestMember, volumes: Mapping[tuple[str, str], HeldVolume]
) -> ReplicaRequirements:
    """The requirements of one member whose template has claims: the volumes that it has, and space for the others."""
    held, new_bytes = [], 0
    for claim in template_claims(requirements.template):
        found = volumes.get((requirements.namespace, volume_name(claim.name, member.name)))
        if found is None:
            new_bytes += volume_bytes(claim.size) if claim.size else 0
        else:
            held.append(found)
    others = {name: amount for name, amount in requirements.amounts.items() if name != STORAGE}
    return msgspec.structs.replace(
        requirements,
        members=(member,),
        amounts={**others, STORAGE: new_bytes} if new_bytes else others,
        held_volumes=tuple(held),
        creates_volumes=bool(new_bytes),
        may_preempt=requirements.may_preempt and not new_bytes,
    )


def request_for(replica: Replica, *, attempt: int) -> SchedulingRequest:
    """The request that would place this replica alone."""
    spec = replica.spec
    return SchedulingRequest(
        ObjectMeta(name=f"what-if-{replica.metadata.name}", namespace=replica.metadata.namespace),
        SchedulingRequestSpec(
            workload=spec.workload,
            assignment=spec.assignment,
            revision=spec.revision,
            template=spec.template,
            placement=spec.placement,
            priority=spec.priority,
            reclaimable=spec.reclaimable,
            dedicated=spec.dedicated,
            purpose=spec.purpose,
            active_until=spec.active_until,
            members=(RequestMember(replica.metadata.name, replica.uid, attempt),),
        ),
    )
