"""A commit of unknown outcome is repeated only when its effect is absent, and its outcome is never guessed."""

from __future__ import annotations

from typing import TypeVar

import pytest
from tests.controllers.virtual import VirtualPorts, run

from holdfast.foundation.unknown_outcome import NoProof, resolve
from holdfast.model import limits
from holdfast.model.errors import Ambiguous, Conflict, Overloaded, Unavailable

T = TypeVar("T")
_DONE = "done"


class Script:
    """Scripted results of reads and repeats; the last entry is repeated."""

    def __init__(self, reads: list[str | NoProof | Exception], repeats: list[str | Exception | None]) -> None:
        self.reads, self.repeats = reads, repeats
        self.looked = self.repeated = 0
        self.took_s = 0.0
        self.ports = VirtualPorts()

    async def read(self) -> str | NoProof:
        self.looked += 1
        entry = _next(self.reads)
        if isinstance(entry, Exception):
            raise entry
        return entry

    async def repeat(self) -> str | None:
        self.repeated += 1
        entry = _next(self.repeats)
        if isinstance(entry, Exception):
            raise entry
        return entry

    async def _resolve(self, *, repeats: bool) -> str:
        began_s = self.ports.clock.monotonic()
        try:
            return await resolve(
                "commit",
                Ambiguous("lost"),
                self.read,
                self.repeat if repeats else None,
                clock=self.ports.clock,
                pause_s=lambda: 1.0,
            )
        finally:
            self.took_s = self.ports.clock.monotonic() - began_s

    def outcome(self, *, repeats: bool = True) -> str:
        found: list[str] = []

        async def main() -> None:
            found.append(await self._resolve(repeats=repeats))

        run(main)
        return found[0]


def _next(entries: list[T]) -> T:
    return entries.pop(0) if len(entries) > 1 else entries[0]


def test_observed_effect_is_not_repeated() -> None:
    script = Script([Unavailable(), _DONE], [])
    assert script.outcome() == _DONE and script.repeated == 0


def test_absent_effect_is_repeated() -> None:
    assert Script([NoProof.ABSENT], [_DONE]).outcome() == _DONE


def test_refused_repeat_is_read_back_before_refusal_is_raised() -> None:
    arrived_late = Script([NoProof.ABSENT, _DONE], [Conflict("moved")])
    assert arrived_late.outcome() == _DONE
    with pytest.raises(Conflict, match="moved"):
        Script([NoProof.ABSENT], [Conflict("moved")]).outcome()


def test_replaced_effect_stays_unknown_and_is_not_repeated() -> None:
    script = Script([NoProof.REPLACED], [_DONE])
    with pytest.raises(Ambiguous, match=r"reading back does not show.*lost"):
        script.outcome()
    assert (script.looked, script.repeated) == (1, 0)


def test_absent_effect_without_repeat_stays_unknown() -> None:
    with pytest.raises(Ambiguous):
        Script([NoProof.ABSENT], []).outcome(repeats=False)


def test_read_back_that_proves_another_write_raises_conflict() -> None:
    with pytest.raises(Conflict, match="another"):
        Script([Conflict("another")], []).outcome()


def test_outcome_after_last_failed_attempt_is_ambiguous() -> None:
    script = Script([NoProof.ABSENT], [Overloaded(retry_after_s=2.0)])
    with pytest.raises(Ambiguous):
        script.outcome()
    assert script.repeated == limits.READ_BACK_ATTEMPTS
    assert script.took_s >= 2.0 * limits.READ_BACK_ATTEMPTS
