"""Exit codes, and the error that ends a command with a message and a code.

A message has two lines: `error:` names the object and what is wrong with it, `next:` is a command or an edit that
helps. Scripts rely on the codes: their meaning never changes.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
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


EXIT_CODE_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "success, or nothing to change",
    ExitCode.FAILED: "the command failed; the error line says why",
    ExitCode.USAGE: "the command line is invalid",
    ExitCode.PLAN_CHANGES: "a plan contains changes",
    ExitCode.PLAN_NOT_PLACEABLE: "a plan contains replicas that cannot be scheduled, or a loss it cannot recover from",
    ExitCode.TIMED_OUT: "a wait timed out; the operation continues",
    ExitCode.CONFLICT: "the object or the platform is in a conflicting state",
    ExitCode.DENIED: "not authenticated, or not authorized",
    ExitCode.UNREACHABLE: "a cell is unreachable",
    ExitCode.INTERRUPTED: "interrupted",
}


class CommandError(Exception):
    """Ends the command. `what` becomes the `error:` line, `next_step` the `next:` line, `code` the exit code."""

    def __init__(self, what: str, *, next_step: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(what)
        self.message = what
        self.next_step = next_step
        self.code = code

    def lines(self) -> list[str]:
        return [f"error: {self.message}", *([f"next: {self.next_step}"] if self.next_step else [])]
