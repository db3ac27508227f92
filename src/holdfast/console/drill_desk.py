"""Where the console hands drills to the supervisor of the platform on the same machine: a folder with one request, one
run, its progress and its report.

The global cell must not run a drill itself: several drills kill it. At most one drill is asked for or runs at a time.
The supervisor holds a lock while it takes drills, so that the console offers them only where one can run.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.model.errors import Conflict, Unavailable

# Newest lines of a drill's progress that a page shows.
PROGRESS_LINES_MAX = 200
# Size of the part of a report that a page shows. The rest is printed by `holdfast drill show`.
REPORT_BYTES_MAX = 256 * 1024
# Length of the name of a drill or region in a request.
DRILL_NAME_CHARS_MAX = 63
# Results of drills that are kept for notifications.
DRILL_RESULTS_KEPT = 50


T = TypeVar("T")


class DrillEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A drill of the catalog, as `holdfast drill list -o json` prints it."""

    name: str
    failure: str
    description: str
    typical_seconds: int = 0


class DrillRequest(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    name: str
    region: str
    user: str
    scheduled: bool = False
    """Started by a schedule: only if the fleet is healthy."""


class DrillState(msgspec.Struct, frozen=True, rename="camel"):
    """The newest drill. `phase` is Running, Passed, Failed or Interrupted; a failed one may have no report."""

    request: DrillRequest
    phase: str
    started_at: float
    ended_at: float = 0.0


class DrillResult(msgspec.Struct, frozen=True, rename="camel"):
    """How a drill ended, or why a scheduled one was not started. `id` is that of its kept report, if it has one.

    A drill that was left out for planned maintenance counts as passed."""

    id: str
    drill: str
    region: str
    passed: bool
    ended_at_s: float
    failure: str = ""


class DrillDesk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog_file = folder / "catalog.json"
        self.progress_file = folder / "progress.log"
        self.report_file = folder / "report.txt"
        self._request, self._state, self._lock = folder / "request.json", folder / "state.json", folder / "taker.lock"
        self._results = folder / "results.json"

    # The console's side --------------------------------------------------------------------------------------------

    def refusal_reason(self) -> str:
        """Why no drill can be started now; empty if one can."""
        if not self._is_attended():
            return "the supervisor of this platform does not run; next: holdfast up"
        if self._request.exists():
            return "a drill has been asked for and starts soon"
        state = self.state()
        if state is not None and state.phase == "Running":
            return f"drill {state.request.name} in {state.request.region} is running"
        return ""

    def catalog(self) -> tuple[DrillEntry, ...]:
        return _read(self.catalog_file, tuple[DrillEntry, ...]) or ()

    def ask(self, request: DrillRequest) -> None:
        """Asks the supervisor to run a drill. Raises Conflict if one is asked for or runs."""
        if (why := self.refusal_reason()) != "":
            raise Conflict(f"drill {request.name}: not started ({why})")
        new = self._request.with_name(f".{request.id}.new")
        try:
            new.write_bytes(msgspec.json.encode(request))
            os.link(new, self._request)  # fails if another request came first
        except FileExistsError:
            raise Conflict(f"drill {request.name}: another drill was asked for at the same time") from None
        except OSError as error:
            raise Unavailable(f"drill {request.name}: not asked for ({error.strerror})") from error
        finally:
            new.unlink(missing_ok=True)

    def state(self) -> DrillState | None:
        return _read(self._state, DrillState)

    def results(self) -> tuple[DrillResult, ...]:
        """The newest results, oldest first, of every drill on this platform, however it was started."""
        return _read(self._results, tuple[DrillResult, ...]) or ()

    def progress(self) -> list[str]:
        return _tail(self.progress_file)[-PROGRESS_LINES_MAX:]

    def report(self) -> str:
        return "\n".join(_tail(self.report_file))

    def _is_attended(self) -> bool:
        try:
            handle = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    # The supervisor's side -----------------------------------------------------------------------------------------

    def attend(self) -> int:
        """Marks the desk as attended until the returned handle is closed, or the process ends."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle

    def take(self) -> DrillRequest | None:
        """The request, which is then gone. One that names something unknown is dropped."""
        found = _read(self._request, DrillRequest)
        if self._request.exists():
            self._request.unlink(missing_ok=True)
        return found

    def add_result(self, result: DrillResult) -> None:
        """Notes how a drill ended, for notifications. The report itself is kept elsewhere."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = [known for known in self.results() if known.id != result.id][-(DRILL_RESULTS_KEPT - 1) :]
        new = self._results.with_name(".results.new")
        new.write_bytes(msgspec.json.encode((*kept, result)))
        os.replace(new, self._results)

    def record(self, state: DrillState) -> None:
        new = self._state.with_name(".state.new")
        new.write_bytes(msgspec.json.encode(state))
        os.replace(new, self._state)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - REPORT_BYTES_MAX))
            return file.read(REPORT_BYTES_MAX).decode(errors="replace").splitlines()
    except OSError:
        return []
