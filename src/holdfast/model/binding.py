"""Reservation and Binding: the two records of a claim.

The authority writes both. The agent only acknowledges in the status of a Binding.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.meta import ApiStruct, Condition, Object, visible_default
from holdfast.model.placement_rules import AffinityRule
from holdfast.model.quantity import Amount
from holdfast.model.replica import ExitStatus, Phase
from holdfast.model.template import Template
from holdfast.model.validation import Causes, forbidden
from holdfast.model.volume import BoundVolume
from holdfast.model.workload import Exclusivity


class Intent(ApiStruct, frozen=True):
    """Identity of a placement request. Repeating a request is harmless; an older attempt is refused."""

    replica_uid: str
    template_hash: str
    attempt: int


class CapacityClass(enum.StrEnum):
    FIRM = "Firm"
    RECLAIMABLE = "Reclaimable"
    RECOVERY = "Recovery"


class DeviceClaim(ApiStruct, frozen=True):
    """A whole device (1000 thousandths), or a share of one."""

    id: str
    milli: int = visible_default(1000)


class ReservationPhase(enum.StrEnum):
    NOMINATED = "Nominated"
    FIRM = "Firm"
    CONSUMED = "Consumed"
    RELEASED = "Released"


class ReservationSpec(ApiStruct, frozen=True):
    """A claim on a node that is not bound yet. `workload`, `labels` and `priority` move to the Binding.

    With `autoBind` the authority binds the claim once its victims have stopped and its gang is complete.
    """

    replica: str
    intent: Intent
    node: str
    resources: dict[str, Amount] = {}
    capacity_class: CapacityClass = visible_default(CapacityClass.FIRM)
    devices: tuple[DeviceClaim, ...] = ()
    ports: dict[str, int] = {}
    udp_ports: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    recovery_slots: tuple[str, ...] = ()
    workload: str = ""
    labels: dict[str, str] = {}
    priority: int = 0
    anti_affinity: tuple[AffinityRule, ...] = ()
    auto_bind: bool = False
    policy_revision: str = ""
    expires_at: str = ""


class ReservationStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: ReservationPhase = visible_default(ReservationPhase.FIRM)


class Reservation(Object, frozen=True):
    spec: ReservationSpec
    status: ReservationStatus = msgspec.field(default_factory=ReservationStatus)


class DesiredRunState(enum.StrEnum):
    RUN = "Run"
    STOP = "Stop"


class BindingSpec(ApiStruct, frozen=True):
    """Everything that an agent needs to run the replica, and the resources claimed for it."""

    replica: str
    intent: Intent
    node: str
    template: Template
    zone: str = ""
    workload: str = ""
    revision: str = ""
    resources: dict[str, Amount] = {}
    capacity_class: CapacityClass = visible_default(CapacityClass.FIRM)
    devices: tuple[DeviceClaim, ...] = ()
    ports: dict[str, int] = {}
    exclusive: Exclusivity | None = None
    priority: int = 0
    max_unavailable: int = 0
    anti_affinity: tuple[AffinityRule, ...] = ()
    gang_min: int = 0
    epoch: int = visible_default(1)
    node_epoch: int = visible_default(0)
    decision: str = ""
    policy_revision: str = ""
    run_until: str = ""
    desired: DesiredRunState = visible_default(DesiredRunState.RUN)
    stop_reason: str = ""
    stop_grace_seconds: float = 0.0
    quota_released: bool = False
    fencing_token: str = ""
    """`fencingToken` of exclusive work rises with every placement of its ordinal (`HOLDFAST_FENCING_TOKEN`)."""
    index: int | None = None
    """`index` of a job array (`HOLDFAST_INDEX`)."""
    volumes: tuple[BoundVolume, ...] = ()
    """`volumes` are the replica's persistent volumes on this node."""


class BindingStatus(ApiStruct, frozen=True):
    """The agent's acknowledgement that the task has stopped or never started."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    phase: Phase | None = None
    last_exit: ExitStatus | None = None
    acknowledged_at: str = ""


class Binding(Object, frozen=True):
    spec: BindingSpec
    status: BindingStatus = msgspec.field(default_factory=BindingStatus)


def claim_name(replica: str, attempt: int) -> str:
    """Name of the Reservation and of the Binding of one attempt. A repeated create therefore finds the first."""
    return f"{replica}.{attempt}"


def replica_of_claim(name: str) -> str:
    """Name of the replica whose claim has this name."""
    return name.rpartition(".")[0]


def validate_reservation(reservation: Reservation, old: Reservation | None) -> Causes:
    if old is not None and old.spec.intent != reservation.spec.intent:
        yield forbidden("spec.intent", "immutable")


def validate_binding(binding: Binding, old: Binding | None) -> Causes:
    if old is None:
        return
    for name in ("intent", "node", "replica", "devices", "template"):
        if getattr(old.spec, name) != getattr(binding.spec, name):
            yield forbidden(f"spec.{name}", "immutable; release the Binding and create another")
