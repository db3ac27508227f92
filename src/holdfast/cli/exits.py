"""Exit codes, and the error that ends a command with a message and a code.

A message has two lines: `error:` names the object and what is wrong with it, `next:` is a command or an edit that
helps. Scripts rely on the codes: their meaning never changes.
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
    Exit.FAILED: "the command failed; the error line says why",
    Exit.USAGE: "the command line is invalid",
    Exit.PLAN_CHANGES: "a plan contains changes",
    Exit.PLAN_NOT_PLACEABLE: "a plan contains replicas that cannot be scheduled, or a loss it cannot recover from",
    Exit.TIMED_OUT: "a wait timed out; the operation continues",
    Exit.CONFLICT: "the object or the platform is in a conflicting state",
    Exit.DENIED: "not authenticated, or not authorized",
    Exit.UNREACHABLE: "a cell is unreachable",
    Exit.INTERRUPTED: "interrupted",
}


class Stop(Exception):
    """Ends the command. `what` becomes the `error:` line, `next_step` the `next:` line, `code` the exit code."""

    def __init__(self, what: str, *, next_step: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step
        self.code = code

    def lines(self) -> list[str]:
        return [f"error: {self.what}", *([f"next: {self.next_step}"] if self.next_step else [])]
