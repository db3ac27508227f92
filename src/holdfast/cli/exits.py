"""How commands end: the exit codes, and the one error that becomes a message and a code.

A message says what happened, why, and what to do next. Scripts may rely on the codes; they never change meaning.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    PLAN_CHANGES = 3
    PLAN_NOT_PLACEABLE = 4
    TIMED_OUT = 5
    CONFLICT = 6
    DENIED = 7
    UNREACHABLE = 8
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "success, or nothing to change",
    Exit.FAILED: "it failed; the message says why",
    Exit.USAGE: "the command line was wrong",
    Exit.PLAN_CHANGES: "a plan found changes",
    Exit.PLAN_NOT_PLACEABLE: "a plan found changes that cannot all be placed",
    Exit.TIMED_OUT: "waiting timed out; part of it may have happened",
    Exit.CONFLICT: "someone or something else is in the way",
    Exit.DENIED: "not authenticated, or not allowed",
    Exit.UNREACHABLE: "the platform could not be reached",
    Exit.INTERRUPTED: "interrupted",
}


class Stop(Exception):
    """Ends the command with a message for a person and a code for a script."""

    def __init__(self, what: str, *, why: str = "", next_step: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step
        self.code = code

    def lines(self) -> list[str]:
        told = [f"error: {self.what}"]
        if self.why:
            told.append(f"  why:  {self.why}")
        if self.next_step:
            told.append(f"  next: {self.next_step}")
        return told
