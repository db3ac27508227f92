"""Requirements of identical replicas, read once from their SchedulingRequest: resources, rules and pending members."""

from __future__ import annotations

import msgspec

from holdfast.flow.snapshot.claim import Claim, Labels
from holdfast.model.assignment import Purpose
from holdfast.model.binding import DeviceClaim
from holdfast.model.placement_rules import Placement, keeps_off
from holdfast.model.quantity import GPU, WHOLE_GPU_MILLI
from holdfast.model.scheduling_request import Member, SchedulingRequest
from holdfast.model.template import Template, requests, template_hash


class Ask(msgspec.Struct, frozen=True):
    """Requirements of the request's pending members.

    `bound` counts gang members that have a node already. `evictions` is the number of victims the tenant may still
    cause in this minute. `room` is the tenant's quota headroom in this region; None if it is unknown.
    """

    namespace: str
    name: str
    workload: str
    template: Template
    placement: Placement
    members: tuple[Member, ...]
    amounts: dict[str, int]
    labels: Labels
    fixed_ports: tuple[int, ...]
    open_ports: int
    reclaimable: bool
    dedicated: bool
    bound: int
    gang_min: int
    draws: bool = False
    """Recovery work may use capacity reserved for recovery; the authority chooses the recovery slot."""
    rank: int = 0
    may_preempt: bool = False
    max_unavailable: int = 0
    evictions: int = 0
    room: dict[str, int] | None = None
    spared: tuple[str, ...] = ()
    """Claims (tenant/claim) that the authority recently refused to evict for this request."""
    template_hash: str = ""
    """Identifies gang members. It is part of every claim, so that a committed claim equals the assumed one."""

    @property
    def gpu_milli(self) -> int:
        return self.amounts.get(GPU, 0)

    @property
    def whole_gpus(self) -> int:
        """Number of whole GPUs; 0 for a share of one."""
        return self.gpu_milli // WHOLE_GPU_MILLI

    @property
    def one_by_one(self) -> bool:
        """Whether each placement must be scored anew, because it changes a node by more than a subtraction."""
        return bool(self.gpu_milli or self.fixed_ports)

    def claim(
        self, node: str, member: Member, devices: tuple[DeviceClaim, ...], victims: tuple[str, ...] = ()
    ) -> Claim:
        """The claim of one member on the node, as it is after its victims are released."""
        return Claim(
            node=node,
            namespace=self.namespace,
            replica_uid=member.uid,
            workload=self.workload,
            template_hash=self.template_hash,
            labels=self.labels,
            amounts=tuple(self.amounts.items()),
            reclaimable=self.reclaimable,
            devices=tuple((d.id, d.milli) for d in devices),
            ports=self.fixed_ports,
            open_ports=self.open_ports,
            rank=self.rank,
            max_unavailable=self.max_unavailable,
            nominated=bool(victims),
            victims=victims,
            keeps_off=keeps_off(self.placement) if self.placement.affinity else (),
            ordinary=not self.draws,
        )


def ask_of(
    request: SchedulingRequest,
    members: tuple[Member, ...] | None = None,
    *,
    bound: int = 0,
    evictions: int = 0,
    room: dict[str, int] | None = None,
    spared: tuple[str, ...] = (),
) -> Ask:
    """Requirements of all members, or of the given pending ones. Recovery work does not use the tenant's headroom."""
    spec = request.spec
    template = spec.template
    draws = spec.purpose is Purpose.RECOVERY and not spec.reclaimable
    fixed = tuple(port.port for port in template.ports if port.port)
    return Ask(
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
        bound=bound,
        gang_min=spec.gang.min_available if spec.gang is not None else 0,
        draws=draws,
        rank=spec.rank,
        may_preempt=spec.may_preempt,
        max_unavailable=spec.max_unavailable,
        evictions=evictions,
        room=None if draws else room,
        spared=spared,
        template_hash=template_hash(template),
    )
