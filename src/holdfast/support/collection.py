"""Reads the facts of a support bundle: from the cells' APIs, from a local platform's files, and from this machine.

Reads only. A source that cannot be read is named in the manifest with the reason; it never fails the bundle.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.client import cell_access
from holdfast.client.sync_api import CellApi
from holdfast.drills.platform_observer import PlatformObserver
from holdfast.drills.stuck_objects import find_stuck_objects
from holdfast.drills.unreturned_resources import unreturned_resources
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.foundation.state_format import VERSION_FILE
from holdfast.model.errors import StoreFailed
from holdfast.model.kinds import ALL, Home, Kind
from holdfast.model.limits import LIST_PAGE_OBJECTS
from holdfast.model.times import seconds_text
from holdfast.platform.layout import Layout, Platform, RegionPlan
from holdfast.platform.platform_status import PlatformStatusReader
from holdfast.store.backup_record import read_backup_record
from holdfast.store.scrubber import check_file
from holdfast.support.archive import BundleManifest, SupportArchive
from holdfast.support.host_facts import host_facts
from holdfast.support.redaction import LEFT_OUT_KINDS, Redaction

OBJECTS_PER_KIND_MAX = 5_000
"""Objects of one kind of one cell. The rest is cut: a fault shows in fewer, and a list costs the cell."""
EVENTS_MAX = 1_000
"""Events of one cell. The cell keeps more for a short time only."""
AUDIT_PAGES_MAX = 20
"""Pages of the audit log that are summarised, from the oldest kept record on."""
METRICS_CHARACTERS_MAX = 4 * 1024 * 1024
"""Metrics of one cell. The rest is cut: it would be a label with too many values, which the beginning shows as well."""
TAIL_BYTES = 256 * 1024
"""End of each log. A fault that ended a process stands there."""
LOGS_MAX = 200
"""Log files of processes. A local platform has one per cell and agent."""


class BundleCollection:
    """One bundle of a platform."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._redaction = Redaction()
        self._archive = SupportArchive(self._redaction)
        self._platform = self._load()

    def write(self, target: Path) -> BundleManifest:
        observer = PlatformObserver(self._layout, self._platform)
        try:
            for cell, _ in self._platform.cells:
                self._cell(cell, observer.api(cell))
            self._part("repair-list.json", "what `holdfast repair list` prints", lambda: find_stuck_objects(observer))
            self._part(
                "cleanup-check.json", "what `holdfast cleanup-check` prints", lambda: unreturned_resources(observer)
            )
        finally:
            observer.close()
        self._part("status.json", "what `holdfast status` prints", self._status)
        self._part("host.json", "kernel, memory, disk and clock of this machine", lambda: host_facts(self._layout.root))
        if self._layout.remote:
            self._archive.leave_out("logs, backups, store checks", "the platform is remote; run beside its directory")
        else:
            self._local_files()
        self._archive.leave_out(", ".join(sorted(LEFT_OUT_KINDS)), "these kinds hold secrets; they were not read")
        self._archive.leave_out("pki, tokens, kubeconfig", "keys and tokens are not read")
        self._archive.leave_out("output of tasks", "it belongs to tenants; see `holdfast logs`")
        return self._archive.write(target, made_at=seconds_text(time.time()), version=__version__)

    def _load(self) -> Platform:
        """The platform. If it is remote and its global cell is down, the cells that the kubeconfig names."""
        try:
            return self._layout.load()
        except CommandError as stop:
            if not self._layout.remote or stop.code is not ExitCode.UNREACHABLE:
                raise
            self._archive.leave_out("regions without a context in the kubeconfig", stop.message)
            contexts = cell_access.contexts(self._layout.root)
            regions = tuple(
                RegionPlan(name=name, zones=(), residency=(), port=0, agents=(), endpoint=access.url)
                for name, access in contexts.items()
                if name != cell_access.GLOBAL and access.url != contexts[cell_access.GLOBAL].url
            )
            url = contexts[cell_access.GLOBAL].url
            return Platform(port_base=0, regions=regions, agents_per_region=0, samples=False, endpoint=url)

    # Cells

    def _cell(self, cell: str, api: CellApi) -> None:
        folder = f"cells/{cell}"
        self._part(f"{folder}/release.json", "the cell's release", lambda: api.get("/version"), cell)
        if cell in self._archive.unreachable:
            return
        self._part(f"{folder}/readyz.txt", "the cell's own checks", lambda: api.text("/readyz?verbose")[1], cell)
        self._part(f"{folder}/metrics.txt", "the cell's metrics", lambda: _metrics(api), cell)
        self._part(f"{folder}/audit.json", "audit records by principal, verb, result", lambda: _audit(api), cell)
        for kind in ALL:
            if kind.name in LEFT_OUT_KINDS or not _is_in(kind, cell) or cell in self._archive.unreachable:
                continue
            self._objects(f"{folder}/objects/{kind.plural}.json", kind, api)

    def _objects(self, path: str, kind: Kind, api: CellApi) -> None:
        largest = EVENTS_MAX if kind.name == "Event" else OBJECTS_PER_KIND_MAX
        try:
            items, more = _list(api, kind, largest)
        except CommandError as stop:
            self._failed(path, stop, api.name)
            return
        if items:
            cut = f"only {len(items)} objects; the cell has more" if more else ""
            self._archive.add(path, items, f"{kind.name} objects", cut=cut)

    def _part(self, path: str, about: str, read: Callable[[], Any], cell: str = "") -> None:
        try:
            self._archive.add(path, read(), about)
        except CommandError as stop:
            self._failed(path, stop, cell)

    def _failed(self, path: str, stop: CommandError, cell: str) -> None:
        if cell and stop.code is ExitCode.UNREACHABLE:
            self._archive.unreachable[cell] = stop.message
        self._archive.leave_out(path, stop.message)

    def _status(self) -> Any:
        reader = PlatformStatusReader(self._layout, self._platform)
        try:
            return msgspec.to_builtins(reader.read())
        finally:
            reader.close()

    # A local platform's files

    def _local_files(self) -> None:
        self._archive.add("platform.json", msgspec.to_builtins(self._platform), "the platform's recorded design")
        for cell, _ in self._platform.cells:
            state = self._layout.cell(cell)
            record = msgspec.to_builtins(read_backup_record(state))
            self._archive.add(f"cells/{cell}/backups.json", record, "the last backup and restore")
            self._text_file(f"cells/{cell}/{VERSION_FILE}", state / VERSION_FILE, "format of the state directory")
        for folder in sorted(self._layout.agent("any").parent.glob("*")):
            name = f"agents/{folder.name}/{VERSION_FILE}"
            self._text_file(name, folder / VERSION_FILE, "format of the state directory")
        for cell, _ in self._platform.cells:
            if cell in self._platform.etcd_cells:
                self._archive.leave_out(f"cells/{cell}/store.json", "the cell is stored in etcd")
            else:
                checked = _store_check(self._layout.cell(cell))
                self._archive.add(f"cells/{cell}/store.json", checked, "every page of the store, verified")
        logs = sorted(self._layout.logs.glob("*.log"))
        for path in logs[:LOGS_MAX]:
            self._text_file(f"logs/{path.name}", path, "log of a process")
        for path in logs[LOGS_MAX:]:
            self._archive.leave_out(f"logs/{path.name}", f"more than {LOGS_MAX} logs")

    def _text_file(self, name: str, path: Path, about: str) -> None:
        try:
            text, cut = text_tail(path)
        except OSError as error:
            self._archive.leave_out(name, str(error.strerror))
            return
        self._archive.add(name, text, about, cut=cut)


def text_tail(path: Path) -> tuple[str, str]:
    """The last whole lines, and what is missing. A cut line is dropped: half a token is not recognised as one."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        data = file.read(TAIL_BYTES)
    if size <= TAIL_BYTES:
        return data.decode(errors="replace"), ""
    whole = data.partition(b"\n")[2]
    return whole.decode(errors="replace"), f"the last {len(whole)} bytes of {size}"


def _is_in(kind: Kind, cell: str) -> bool:
    if kind.internal:
        return False
    region = cell != cell_access.GLOBAL
    return kind.home is Home.CELL or kind.mirrored or (kind.home is Home.REGION) == region


def _list(api: CellApi, kind: Kind, largest: int) -> tuple[list[Any], bool]:
    """The first objects of a kind, and whether there are more."""
    path = f"/apis/{kind.api_version}/{kind.plural}" if kind.group else f"/api/v1/{kind.plural}"
    items: list[Any] = []
    query = {"limit": str(min(LIST_PAGE_OBJECTS, largest))}
    while True:
        answer = api.request("GET", path, query=query)
        items.extend(answer["items"])
        rest = answer.get("metadata", {}).get("continue", "")
        if not rest or len(items) >= largest:
            return items[:largest], bool(rest) or len(items) > largest
        query["continue"] = rest


def _metrics(api: CellApi) -> str:
    status, text = api.text("/metrics")
    if status != 200:
        raise CommandError(f"metrics of {api.name}: refused with {status}", code=ExitCode.DENIED)
    return text[:METRICS_CHARACTERS_MAX]


def _audit(api: CellApi) -> dict[str, Any]:
    """Counts of records, without the objects' content, which the audit log does not have either."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    first = last = ""
    after, more, pages = 0, True, 0
    while more and pages < AUDIT_PAGES_MAX:
        page = api.get("/audit/v1", after=str(after))
        for record in page["records"]:
            first, last = first or record["time"], record["time"]
            key = (record["principal"], record["verb"], record["result"], record.get("reason", ""))
            counts[key] += record.get("count", 1) or 1
        after, more, pages = page["next"], page["more"], pages + 1
    rows = [
        {"principal": principal, "verb": verb, "result": result, "reason": reason, "count": count}
        for (principal, verb, result, reason), count in counts.most_common()
    ]
    return {"from": first, "to": last, "more": more, "counts": rows}


def _store_check(state: Path) -> dict[str, Any]:
    try:
        return {"rows": check_file(state / "store.sqlite"), "damage": ""}
    except StoreFailed as fault:
        return {"damage": fault.message}
