"""Records every committed change of the relevant kinds in all cells while a drill runs.

- One watch per cell and kind, from the revision at which the drill began. After a crash of the cell the watch resumes
  at its last revision, so that no commit is missed.
- Until the audit log is read (`audited_writers.py`), the writer of a change follows from the ownership table, which the
  gate enforces (S6).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.drills.platform_observer import Item
from holdfast.foundation.exit_codes import CommandError
from holdfast.model.kinds import BY_NAME
from holdfast.model.override import break_glass_prefix
from holdfast.model.ownership import OWNERS, deleters, owners
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.layout import Layout, Platform

GLOBAL_KINDS = (
    "Workload",
    "Assignment",
    "Region",
    "Recovery",
    "RecoveryBudget",
    "SchedulerPolicy",
    "PolicyRevision",
    "Override",
    "Quota",
    "Grant",
)
REGIONAL_KINDS = (
    "Region",
    "Node",
    "Replica",
    "SchedulingRequest",
    "Reservation",
    "Binding",
    "Decision",
    "RecoverySlot",
    "GrantCopy",
    "Term",
    "Override",
)
"""Of the Overrides in a region only its own break-glass overrides are recorded. The others are copies."""
WATCH_S = 300
RECONNECT_AFTER_S = 0.3
# Maximum recorded changes. Later changes are only counted.
CHANGES_MAX = 50_000
GONE_STATUS = 410
METADATA_FIELDS = ("labels", "annotations", "finalizers", "deletionTimestamp")
"""Metadata fields that writers set. The server sets the others."""


class RecordedChange(msgspec.Struct, frozen=True):
    """One change of one object. `groups` are the changed field groups, `roles` their possible writers. If `audited`,
    there is one writer, and `requested_by` is the role that asked the authority for it."""

    at_s: float
    cell: str
    revision: int
    kind: str
    namespace: str
    name: str
    op: str
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    before: Item | None = None
    after: Item | None = None
    requested_by: str = ""
    audited: bool = False
    lineage: int = 0
    """How often the cell's store was replaced before. Revisions of two lineages do not compare. Objects that a new
    store lacks are `lost`, those that it adds are `found`."""

    @property
    def subject(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


class ChangeRecorder:
    """Records object changes from `start` to `stop`. Times are seconds since `start`."""

    def __init__(self, layout: Layout, platform: Platform) -> None:
        self._layout = layout
        self._platform = platform
        self._lock = threading.Lock()
        self._steps: list[RecordedChange] = []
        self._omitted = 0
        self._lineages: dict[tuple[str, str], int] = {}
        """How often the store of a cell was replaced by another one, as the watch of each kind has seen it."""
        self._ended = threading.Event()
        self._began_mono_s = 0.0
        self._began_at = 0.0

    @property
    def began_at(self) -> float:
        return self._began_at

    def start(self) -> None:
        """Starts all watches. Every change after the return is recorded."""
        self._began_mono_s, self._began_at = time.monotonic(), time.time()
        for cell, _ in self._platform.cells:
            for kind in GLOBAL_KINDS if cell == "global" else REGIONAL_KINDS:
                api = connect_cell(self._layout, self._platform, cell)
                known, revision = _listed(api, kind)
                follow = threading.Thread(
                    target=self._follow, args=(api, cell, kind, known, revision), name=f"{cell} {kind}", daemon=True
                )
                follow.start()

    def stop(self) -> None:
        self._ended.set()

    def now_s(self) -> float:
        return time.monotonic() - self._began_mono_s

    def changes(self, *, since_s: float = 0.0) -> list[RecordedChange]:
        """Recorded changes: within a cell in commit order, between cells in the order of arrival."""
        with self._lock:
            found = in_commit_order(self._steps)
        return [step for step in found if step.at_s >= since_s]

    @property
    def omitted(self) -> int:
        return self._omitted

    def _follow(self, api: CellApi, cell: str, kind: str, known: dict[str, Item], revision: int) -> None:
        plural = BY_NAME[kind].plural
        while not self._ended.is_set():
            query = {"resourceVersion": str(revision), "timeoutSeconds": str(WATCH_S)}
            try:
                for event in api.watch(f"/apis/holdfast.dev/v1/{plural}", query, silence_s=WATCH_S + 10.0):
                    if self._ended.is_set():
                        return
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        revision = self._note(cell, kind, known, event)
                    elif event["type"] == "ERROR":
                        revision = self._list_again(api, cell, kind, known, revision)
                        break
                revision = self._after_reconnection(api, cell, kind, known, revision)
            except ApiRefusal as refusal:
                if refusal.status == GONE_STATUS:
                    revision = self._list_again(api, cell, kind, known, revision)
            except CommandError:
                with contextlib.suppress(CommandError):
                    revision = self._after_reconnection(api, cell, kind, known, revision)
            self._ended.wait(RECONNECT_AFTER_S)

    def _after_reconnection(self, api: CellApi, cell: str, kind: str, known: dict[str, Item], revision: int) -> int:
        """The revision to watch from. A store that was replaced by an older one has fewer revisions."""
        path = f"/apis/holdfast.dev/v1/{BY_NAME[kind].plural}"
        head = int(api.request("GET", path, query={"limit": "1"})["metadata"]["resourceVersion"])
        return revision if head >= revision else self._list_again(api, cell, kind, known, revision)

    def _list_again(self, api: CellApi, cell: str, kind: str, known: dict[str, Item], revision: int) -> int:
        """Records the differences between the known and the listed objects. Their writers and order are unknown."""
        try:
            listed, revision = _listed(api, kind)
        except CommandError:
            return revision
        with self._lock:
            self._lineages[cell, kind] = self._lineages.get((cell, kind), 0) + 1
        for uid, item in list(known.items()):
            if uid not in listed:
                known.pop(uid)
                self._add(cell, kind, revision, _ChangeParts("lost", item, None))
        for uid, item in listed.items():
            if item != known.get(uid):
                op = "found" if uid not in known else "changed"
                groups = tuple(changed_groups(kind, known.get(uid), item))
                self._add(cell, kind, revision, _ChangeParts(op, known.get(uid), item, groups))
            known[uid] = item
        return revision

    def _note(self, cell: str, kind: str, known: dict[str, Item], event: Item) -> int:
        item = event["object"]
        meta = item["metadata"]
        uid, revision = meta["uid"], int(meta["resourceVersion"])
        before = known.get(uid)
        after: Item | None = item
        if event["type"] == "DELETED":
            known.pop(uid, None)
            after = None
            groups: tuple[str, ...] = ()
            roles = tuple(sorted(deleters(kind) - {"operator", "collect"})) or ("collect",)
            op = "deleted"
        else:
            known[uid] = item
            op = "created" if before is None else "changed"
            groups = tuple(changed_groups(kind, before, item))
            roles = writer_roles(kind, groups, before, item, op=op)
        self._add(cell, kind, revision, _ChangeParts(op, before, after, groups, roles))
        return revision

    def _add(self, cell: str, kind: str, revision: int, change: _ChangeParts) -> None:
        meta = (change.after or change.before or {})["metadata"]
        if kind == "Override" and cell != "global" and not meta["name"].startswith(break_glass_prefix(cell)):
            return
        step = RecordedChange(
            round(self.now_s(), 3),
            cell,
            revision,
            kind,
            meta.get("namespace", ""),
            meta["name"],
            change.op,
            change.groups,
            change.roles,
            change.before,
            change.after,
            lineage=self._lineages.get((cell, kind), 0),
        )
        with self._lock:
            if len(self._steps) < CHANGES_MAX:
                self._steps.append(step)
            else:
                self._omitted += 1


class _ChangeParts(msgspec.Struct, frozen=True):
    op: str
    before: Item | None
    after: Item | None
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


def in_commit_order(steps: Sequence[RecordedChange]) -> list[RecordedChange]:
    """Sorts changes into commit order. Watches of different kinds race, so a change gets at most the time of a later
    revision of its cell."""
    found: list[RecordedChange] = []
    for cell in sorted({(step.cell, step.lineage) for step in steps}):
        latest_s = float("inf")
        for step in sorted((s for s in steps if (s.cell, s.lineage) == cell), key=lambda s: -s.revision):
            latest_s = min(latest_s, step.at_s)
            found.append(step if step.at_s == latest_s else msgspec.structs.replace(step, at_s=latest_s))
    return sorted(found, key=lambda s: (s.at_s, s.cell, s.lineage, s.revision))


def _listed(api: CellApi, kind: str) -> tuple[dict[str, Item], int]:
    path, query = f"/apis/holdfast.dev/v1/{BY_NAME[kind].plural}", {"limit": "500"}
    known: dict[str, Item] = {}
    revision = 0
    while True:
        answer = api.request("GET", path, query=query)
        known.update({item["metadata"]["uid"]: item for item in answer["items"]})
        revision = revision or int(answer["metadata"]["resourceVersion"])
        if not answer["metadata"].get("continue"):
            return known, revision
        query["continue"] = answer["metadata"]["continue"]


def changed_groups(kind: str, before: Item | None, after: Item) -> Iterator[str]:
    """The field groups in which two versions of an object differ."""
    for group in sorted(OWNERS.get(kind, {"spec": frozenset(), "status": frozenset()})):
        if group_value(kind, before or {}, group) != group_value(kind, after, group):
            yield group


def group_value(kind: str, item: Item, group: str) -> Any:
    """The value of a field group, without nested groups, which have their own owners."""
    if group == "metadata":
        return {m: item.get("metadata", {}).get(m) for m in METADATA_FIELDS}
    value: Any = item
    for name in group.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, dict):
        inner = {g[len(group) + 1 :].split(".")[0] for g in OWNERS.get(kind, {}) if g.startswith(group + ".")}
        return {k: v for k, v in value.items() if k not in inner and k != "observedGeneration"} or None
    return value


def writer_roles(kind: str, groups: tuple[str, ...], before: Item | None, after: Item, *, op: str) -> tuple[str, ...]:
    """The roles that may have written these groups. Shared groups are resolved by the content of the object."""
    if kind == "Term":
        return ("election",)
    if kind == "Assignment" and ({"spec", "metadata"} & set(groups)):
        spec, old_spec = after["spec"], (before or {}).get("spec", {})
        paused = before is not None and spec.get("suspended") != old_spec.get("suspended")
        return ("recover",) if paused or spec.get("purpose") == "Recovery" else ("assign",)
    chosen = groups if op == "changed" else tuple(g for g in groups if g == "spec") or groups
    found: list[str] = []
    for group in chosen:
        for role in sorted(owners(kind, group)):
            if role not in found:
                found.append(role)
    return tuple(found)
