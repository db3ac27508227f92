"""The placement conversation: what schedulers and agents ask of a region's authority, and what it answers.

Sent to `POST /placement/v1/{reserve,bind,release,renew}`, or in process. Every item gets an answer of its own.
"""

from __future__ import annotations

import enum
from typing import Any

from holdfast.model.binding import DeviceClaim, Intent
from holdfast.model.decision import Decision
from holdfast.model.meta import Part, shown


class Result(enum.StrEnum):
    ACCEPTED = "Accepted"
    ALREADY = "Already"
    REJECTED = "Rejected"


class PlaceItem(Part, frozen=True):
    """One proposal. Amounts come from the replica itself, never from the proposer."""

    namespace: str
    replica: str
    intent: Intent
    node: str
    devices: tuple[DeviceClaim, ...] = ()
    victims: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    policy_revision: str = ""


class ReserveRequest(Part, frozen=True):
    """`bind` asks for both steps in one transaction, the ordinary path. The decision is stored with it; one of which
    nothing was accepted only with `recordRefused`."""

    items: tuple[PlaceItem, ...] = ()
    bind: bool = shown(True)
    decision: Decision | None = None
    record_refused: bool = shown(True)


class BindItem(Part, frozen=True):
    namespace: str
    replica: str
    intent: Intent


class BindRequest(Part, frozen=True):
    items: tuple[BindItem, ...] = ()
    decision: Decision | None = None


class ReleaseAction(enum.StrEnum):
    """STOP tells the agent to stop the work. FREE gives the claims back, as far as the evidence allows."""

    STOP = "Stop"
    FREE = "Free"


class ReleaseItem(Part, frozen=True):
    """Names an identity: replica uid and attempt. A delayed duplicate for an older attempt is refused."""

    namespace: str
    replica: str
    replica_uid: str
    attempt: int
    action: ReleaseAction
    reason: str = ""
    grace_seconds: float = 0.0


class ReleaseRequest(Part, frozen=True):
    items: tuple[ReleaseItem, ...] = ()


class RenewItem(Part, frozen=True):
    """A heartbeat. Epoch 0 registers: the answer carries the epoch to use from then on, which is higher than `above`,
    the last one that the agent knows to be over."""

    node: str
    epoch: int = shown(0)
    above: int = 0


class RenewRequest(Part, frozen=True):
    items: tuple[RenewItem, ...] = ()


class Answer(Part, frozen=True):
    """`facts` hold what the refusal rests on: the winner's claim, the shortfall, the limit.

    To a renewal, `tenures` says how many seconds from its sending the node's exclusive work of scope Global may run on,
    by the binding's uid.
    """

    result: Result
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


class Answers(Part, frozen=True):
    """One answer per item, in order; all durable when this is sent. To renewals, `incarnation` says which life of the
    cell answers: agents remember the highest, and take no lease from a lower one."""

    answers: tuple[Answer, ...] = ()
    revision: int = shown(0)
    incarnation: int = 0
