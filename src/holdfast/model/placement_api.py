"""The placement API: requests of schedulers and agents to a region's authority, and its responses.

Served at `POST /placement/v1/{reserve,bind,release,renew}` and in process. Every item gets its own result.
"""

from __future__ import annotations

import enum
from typing import Any

from holdfast.model.binding import DeviceClaim, Intent
from holdfast.model.decision import Decision
from holdfast.model.meta import ApiStruct, visible_default


class PlacementOutcome(enum.StrEnum):
    ACCEPTED = "Accepted"
    ALREADY = "Already"
    REJECTED = "Rejected"


class ReserveItem(ApiStruct, frozen=True):
    """One proposal. The authority takes the resource amounts from the replica, not from the proposal."""

    namespace: str
    replica: str
    intent: Intent
    node: str
    devices: tuple[DeviceClaim, ...] = ()
    victims: tuple[str, ...] = ()
    recovery_slots: tuple[str, ...] = ()
    policy_revision: str = ""


class ReserveRequest(ApiStruct, frozen=True):
    """With `bind` (the usual case) the authority reserves and binds in one transaction and stores the decision with it.
    A decision of which nothing was accepted is stored only with `recordRefused`."""

    items: tuple[ReserveItem, ...] = ()
    bind: bool = visible_default(True)
    decision: Decision | None = None
    record_refused: bool = visible_default(True)


class BindItem(ApiStruct, frozen=True):
    namespace: str
    replica: str
    intent: Intent


class BindRequest(ApiStruct, frozen=True):
    items: tuple[BindItem, ...] = ()
    decision: Decision | None = None


class ReleaseAction(enum.StrEnum):
    """STOP tells the agent to stop the task. FREE releases the claims once the stop is confirmed."""

    STOP = "Stop"
    FREE = "Free"


class ReleaseItem(ApiStruct, frozen=True):
    """Identified by replica uid and attempt. A delayed duplicate for an older attempt is refused."""

    namespace: str
    replica: str
    replica_uid: str
    attempt: int
    action: ReleaseAction
    reason: str = ""
    grace_seconds: float = 0.0


class ReleaseRequest(ApiStruct, frozen=True):
    items: tuple[ReleaseItem, ...] = ()


class RenewItem(ApiStruct, frozen=True):
    """A heartbeat. Epoch 0 registers the node: the response carries its new epoch, which is higher than
    `fencedEpoch`, the last epoch that the agent knows is fenced."""

    node: str
    epoch: int = visible_default(0)
    fenced_epoch: int = 0


class RenewRequest(ApiStruct, frozen=True):
    items: tuple[RenewItem, ...] = ()


class PlacementResult(ApiStruct, frozen=True):
    """Result of one item. `facts` explain a refusal: the conflicting claim, the shortfall, the limit.

    For a renewal, `tenures` maps the uid of each Binding with exclusive work of scope Global to the seconds it may run,
    counted from when the renewal was sent.
    """

    result: PlacementOutcome
    reason: str = ""
    message: str = ""
    facts: dict[str, Any] = {}
    node: str = ""
    devices: tuple[DeviceClaim, ...] = ()
    ports: dict[str, int] = {}
    reservation: str = ""
    binding: str = ""
    attempt: int = 0
    epoch: int = 0
    ttl_seconds: float = 0.0
    tenures: dict[str, float] = {}


class PlacementResponse(ApiStruct, frozen=True):
    """One result per item, in order. All are durable. For renewals, `incarnation` is the cell's restore counter: agents
    remember the highest and accept no lease from a lower one. `identity` is that of the region's cell: agents hold
    their tasks if it changes, unless `confirmsDeletion` says that an override accepts the new cell."""

    results: tuple[PlacementResult, ...] = ()
    revision: int = visible_default(0)
    incarnation: int = 0
    identity: str = ""
    confirms_deletion: bool = False
