"""What a tenant may still spend in the region on ordinary work, as far as the scheduler knows: its grants less its use.

A hint, so that a request the authority would refuse for its quota is told so at once, and does not stand in the plan
before others. What always holds: it bounds nothing where the authority would judge by more than the sum (grants whose
lease has ended, recovery work); and only the authority spends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.flow.ask import Ask
from holdfast.model.decision import Asked
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.grant_limit import limit_of
from holdfast.model.quantity import CPU, Amounts, amounts, amounts_text, shortfall
from holdfast.model.quota import GrantClass
from holdfast.model.reasons import Reason
from holdfast.model.scheduling_request import RefusalCount


def room_of(
    copies: Iterable[GrantCopy], used: Mapping[str, int], now: float, *, emergency: bool = True
) -> Amounts | None:
    """What is left, by resource: nothing at all without a grant, None where the authority alone can tell."""
    limit = limit_of(copies, GrantClass.NORMAL, now, emergency=emergency)
    if not limit.copies:
        return {}
    if limit.over or shortfall(limit.held, limit.spendable):
        return None
    return {CPU: 0, **{name: max(0, amount - used.get(name, 0)) for name, amount in limit.spendable.items()}}


def recorded(asked: Asked) -> Amounts | None:
    """The room a decision was made with. Zero amounts are not written, and a grant that is used up is still one."""
    if not asked.limited:
        return None
    return {CPU: 0, **amounts(asked.room)} if asked.granted else {}


def affordable(ask: Ask) -> int:
    """How many members the tenant can pay for."""
    if ask.room is None:
        return len(ask.members)
    if not ask.room:
        return 0
    wanted = len(ask.members)
    each = (ask.room.get(name, 0) // amount for name, amount in ask.amounts.items() if amount)
    return min((wanted, *each))


def spent(ask: Ask, placed: int) -> Amounts:
    """What so many of its members take from the tenant's room."""
    return {name: amount * placed for name, amount in ask.amounts.items()} if not ask.draws else {}


def less(room: Amounts | None, taken: Mapping[str, int]) -> Amounts | None:
    if not room or not taken:
        return room
    return {name: max(0, amount - taken.get(name, 0)) for name, amount in room.items()}


def refusal(ask: Ask) -> RefusalCount:
    """Why the next member cannot be paid for, in the authority's words."""
    room = ask.room or {}
    if not room:
        message = f"this region holds no Normal grant for tenant {ask.namespace}; an operator sets a Quota"
        return RefusalCount(reason=Reason.NO_GRANT, message=message)
    over = {name: amount - room.get(name, 0) for name, amount in ask.amounts.items() if amount > room.get(name, 0)}
    named = ", ".join(f"{name} by {text}" for name, text in amounts_text(over).items())
    message = f"tenant {ask.namespace} would exceed its limit here: {named or 'by what was planned before it'}"
    return RefusalCount(reason=Reason.QUOTA_EXCEEDED, message=message)
