"""Records of runs: one JSON file per run, written atomically before and after each step.

They are kept in the platform's directory, or for a remote platform in the user's state directory (XDG_STATE_HOME).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout, write_atomically

RUNS_MAX = 500
"""Records kept. The oldest finished ones are deleted."""
OUTPUT_CHARS_MAX = 4_000
"""Output of a command that the record keeps: its end."""


class StepRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What happened at one step. `outcome`: started, done, skipped, declined, failed, waits."""

    number: int
    title: str
    outcome: str
    at: str
    command: str = ""
    exit_code: int | None = None
    output: str = ""
    by: str = ""


class RunRecord(msgspec.Struct, rename="camel"):
    """One run. `next_step` is the step that comes next, from 0."""

    id: str
    runbook: str
    started_at: str
    values: dict[str, str]
    next_step: int = 0
    state: str = "Running"
    """Running, Waiting (for a person), Finished, Failed or Declined."""
    steps: list[StepRecord] = []

    @property
    def ended(self) -> bool:
        return self.state == "Finished"


class RunArchive:
    def __init__(self, layout: Layout) -> None:
        if layout.remote:
            home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
            self._folder = Path(home) / "holdfast" / "runbooks"
        else:
            self._folder = layout.root / "runbooks"

    def save(self, record: RunRecord) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / f"{record.id}.json", msgspec.json.encode(record))
        self._prune()

    def all(self) -> list[RunRecord]:
        """Newest first. A file that cannot be read is skipped."""
        return sorted(self._read(), key=lambda record: record.id, reverse=True)

    def find(self, run_id: str) -> RunRecord:
        """The run with this identifier, or the only one that starts with it. `last` is the newest."""
        every = self.all()
        found = every[:1] if run_id == "last" else [r for r in every if r.id == run_id]
        found = found or [r for r in every if r.id.startswith(run_id)]
        if len(found) != 1:
            problem = "not found" if not found else f"ambiguous ({len(found)} runs start with it)"
            raise CommandError(f"run {run_id}: {problem}", next_step="holdfast runbook history", code=ExitCode.USAGE)
        return found[0]

    def _read(self) -> Iterator[RunRecord]:
        for path in self._folder.glob("*.json"):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=RunRecord)
            except (OSError, msgspec.MsgspecError):
                continue

    def _prune(self) -> None:
        files = sorted(self._folder.glob("*.json"))
        if len(files) <= RUNS_MAX:
            return
        ended = [record.id for record in sorted(self._read(), key=lambda r: r.id) if record.ended]
        for run_id in ended[: len(files) - RUNS_MAX]:
            (self._folder / f"{run_id}.json").unlink(missing_ok=True)
