"""Resolves a commit whose outcome is unknown because no answer came: it reads back, and only then decides.

Such a commit has happened, has not happened, or may still happen. What always holds:

- Nothing is repeated before a read shows that its effect is absent.
- A repeat carries the preconditions of the first attempt, so that at most one of the two takes effect.
- If the repeat is refused and the effect is still absent, the first attempt can no longer happen: revisions only rise,
  and so a broken precondition stays broken.
- An outcome that stays unknown is reported as `Ambiguous` and never guessed. The caller decides anew from fresh state.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TypeVar

from prometheus_client import Counter

from holdfast.foundation.ports import Clock
from holdfast.model import limits
from holdfast.model.errors import AlreadyExists, Ambiguous, Conflict, Fault, NotFound, Retryable, StaleToken

T = TypeVar("T")


class NoProof(enum.Enum):
    """What a read shows that does not show the effect."""

    ABSENT = "Absent"
    """The effect is not there, or not yet: the commit may be repeated."""
    REPLACED = "Replaced"
    """Something newer is there. No later read can tell what happened before it."""


async def resolve(
    what: str,
    unknown: Ambiguous,
    look: Callable[[], Awaitable[T | NoProof]],
    repeat: Callable[[], Awaitable[T | None]] | None = None,
    *,
    clock: Clock,
    pause_s: Callable[[], float],
    verdicts: Counter | None = None,
) -> T:
    """The result of the commit, once it is known to have happened.

    `look` reads fresh state. It raises Conflict where the state proves that another write came first. `repeat` sends
    the commit again, and answers None where only another look can tell; without it the caller repeats, or nobody does.
    Raises the refusal when the commit did not happen and no longer can, `Ambiguous` when that stays unknown. Faults
    that may pass are tried again after `pause_s`.
    """

    def counted(verdict: str) -> None:
        if verdicts is not None:
            verdicts.labels(verdict).inc()

    refusal: Fault | None = None
    for _ in range(limits.READ_BACK_ATTEMPTS):
        try:
            found = await look()
        except Conflict:
            counted("refused")
            raise
        except Retryable as fault:
            await clock.sleep(max(pause_s(), fault.retry_after_s))
            continue
        if not isinstance(found, NoProof):
            counted("committed")
            return found
        if found is NoProof.REPLACED or repeat is None:
            break
        if refusal is not None:
            counted("refused")
            raise refusal
        try:
            done = await repeat()
        except (Conflict, AlreadyExists, NotFound, StaleToken) as fault:
            refusal = fault
        except Retryable as fault:
            unknown = fault if isinstance(fault, Ambiguous) else unknown
            await clock.sleep(max(pause_s(), fault.retry_after_s))
        else:
            if done is not None:
                counted("repeated")
                return done
    counted("unknown")
    raise Ambiguous(
        f"{what}: no answer came, and reading back does not show whether it happened; decide again from fresh state "
        f"({unknown.message})",
        facts=unknown.facts,
    )
