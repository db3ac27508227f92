"""Finds out whether a commit without a response took effect: it did, it did not, or it still may.

- A commit is repeated only after a read shows that its effect is absent.
- The repeat has the preconditions of the first attempt, so at most one of them takes effect.
- If the repeat is refused and the effect is still absent, the first attempt can no longer happen: revisions only rise,
  so a failed precondition stays failed.
- An outcome that stays unknown raises `Ambiguous`; it is never guessed. The caller decides again from fresh state.
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
    """Result of a read that does not show the effect of the commit."""

    ABSENT = "Absent"
    """The effect is absent, perhaps not yet there: the commit may be repeated."""
    REPLACED = "Replaced"
    """A newer state is there. No later read can tell what happened before it."""


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
    """Returns the result of the commit if it happened.

    `look` reads fresh state; it raises Conflict if the state proves that another write came first. `repeat` sends the
    commit again; it returns None if only another read can tell. Raises the refusal if the commit did not happen and no
    longer can, `Ambiguous` if that stays unknown. Retryable faults are retried after `pause_s`.
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
