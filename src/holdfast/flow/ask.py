"""What like replicas ask of a node, read once from their SchedulingRequest: amounts, rules, and who needs a place."""

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
    """`bound` is how many members of the request have a place already; gangs count them. `evictions` is how many
    victims its tenant may still cause, `room` what it may still spend here; None where that is not known."""

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
    """Recovery work may take what is kept for recovery; the authority says which place."""
    rank: int = 0
    may_preempt: bool = False
    max_unavailable: int = 0
    evictions: int = 0
    room: dict[str, int] | None = None
    spared: tuple[str, ...] = ()
    """Claims (tenant/claim) that the authority would not let go for it a moment ago."""
    template_hash: str = ""
    """What a gang's members are counted by, and part of every claim: one on record must equal what was assumed."""

    @property
    def gpu_milli(self) -> int:
        return self.amounts.get(GPU, 0)

    @property
    def whole_gpus(self) -> int:
        """How many whole GPUs; 0 for a share of one."""
        return self.gpu_milli // WHOLE_GPU_MILLI

    @property
    def one_by_one(self) -> bool:
        """Whether a placement changes a node by more than a plain subtraction, so that nothing is scored ahead."""
        return bool(self.gpu_milli or self.fixed_ports)

    def claim(
        self, node: str, member: Member, devices: tuple[DeviceClaim, ...], victims: tuple[str, ...] = ()
    ) -> Claim:
        """What one member would take from a node, once its victims are gone."""
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
    """The ask of all members, or of those given (the ones without a place). Recovery work has a room of its own."""
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
