"""Progress display of `holdfast up`: a live table on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.platform.layout import Platform
from holdfast.platform.output import print_note, wants_colour

if TYPE_CHECKING:
    from holdfast.platform.platform_status import PlatformStatus, WorkloadView


class Display(Protocol):
    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, status: PlatformStatus) -> None: ...

    def say(self, line: str) -> None: ...


def make_display(platform: Platform, *, quiet: bool) -> Display:
    if quiet:
        return QuietDisplay()
    return LiveDisplay(platform) if wants_colour() else LineDisplay(platform)


def progress_rows(platform: Platform, status: PlatformStatus) -> list[tuple[str, str, bool]]:
    """Rows of the display: subject, progress, and whether it is ready."""
    ready = [cell.name for cell in status.cells if cell.ready]
    nodes_wanted = sum(len(region.agents) for region in platform.regions)
    nodes_ready = sum(node.schedulable for node in status.nodes)
    rows = [
        ("cells ready", f"{len(ready)} of {len(status.cells)}", len(ready) == len(status.cells)),
        ("nodes ready", f"{nodes_ready} of {nodes_wanted}", nodes_ready >= nodes_wanted),
    ]
    rows.extend((f"{w.tenant}/{w.name}", workload_progress(w), w.done) for w in status.workloads)
    rows.extend(
        (p.name, f"{p.last_exit}, restarted {p.restarts} times; see {p.log}", False)
        for p in status.processes
        if p.restarts
    )
    return rows


def workload_progress(workload: WorkloadView) -> str:
    if workload.type == "Batch":
        running = sum(workload.stages.get(s, 0) for s in ("Starting", "Running", "Ready", "Serving"))
        return f"{running} running, {workload.succeeded} of {workload.wanted} succeeded"
    text = f"{workload.serving} of {workload.wanted} serving"
    where = ", ".join(f"{region} {count}" for region, count in workload.regions.items())
    return f"{text} ({where})" if where else text


class QuietDisplay:
    """No output (--quiet)."""

    def __enter__(self) -> QuietDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, status: PlatformStatus) -> None:
        return None

    def say(self, line: str) -> None:
        return None


class LineDisplay(QuietDisplay):
    """One line per change, with the seconds since the start."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._shown: dict[str, str] = {}
        self._began = time.monotonic()

    def show(self, status: PlatformStatus) -> None:
        for what, how, _ in progress_rows(self._platform, status):
            if self._shown.get(what) != how:
                self._shown[what] = how
                self.say(f"{what}: {how}")

    def say(self, line: str) -> None:
        print_note(f"[{time.monotonic() - self._began:5.1f} s] {line}")


class LiveDisplay(QuietDisplay):
    """A table that is redrawn in place. Remarks scroll above it."""

    def __init__(self, platform: Platform) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._platform = platform
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._live = RichLive(console=self._console, refresh_per_second=8, transient=False)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, status: PlatformStatus) -> None:
        self._live.update(self._table(progress_rows(self._platform, status)))

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def _table(self, rows: list[tuple[str, str, bool]]) -> Any:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for what, how, ready in rows:
            mark = "[green]✓[/]" if ready else "[yellow]…[/]"
            table.add_row(mark, what, f"[dim]{how}[/]" if ready else how)
        table.add_row("", "", f"[dim]{time.monotonic() - self._began:.0f} s[/]")
        return table
