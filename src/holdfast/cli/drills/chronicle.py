"""What really happened while a drill ran: every change of the objects that matter, in every cell, as it was committed.

Owns the recording: one watch per cell and kind, from the revision at which the drill began. A cell that dies is taken
up again where its history was left, so that nothing committed is missed. Who made a change follows from the table of
ownership, which the gate enforces (S6): nothing here guesses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.cli.drills.world import Item
from holdfast.cli.exits import Stop
from holdfast.cli.http import Api, Refusal
from holdfast.cli.platform.layout import Layout, Platform
from holdfast.cli.platform.survey import connect
from holdfast.model.kinds import BY_NAME
from holdfast.model.ownership import OWNERS, deleters, owners

GLOBAL_KINDS = (
    "Workload", "Assignment", "Region", "Recovery", "RecoveryBudget", "SchedulerPolicy", "PolicyRevision", "Override",
    "Quota", "Grant",
)  # fmt: skip
REGIONAL_KINDS = (
    "Node", "Replica", "SchedulingRequest", "Reservation", "Binding", "Decision", "Hold", "GrantCopy", "Term",
)  # fmt: skip
WATCH_S = 300
AGAIN_S = 0.3
STEPS_KEPT = 50_000
GONE = 410
MARKS = ("labels", "annotations", "finalizers", "deletionTimestamp")
"""What of an object's metadata is said by somebody; the rest the server counts."""


class Step(msgspec.Struct, frozen=True):
    """One change of one object. `groups` are the field groups that changed, `roles` who owns them."""

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

    @property
    def subject(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


class Chronicle:
    """Records from `begin` until `end`. Times are seconds after `begin`."""

    def __init__(self, layout: Layout, platform: Platform) -> None:
        self._layout = layout
        self._platform = platform
        self._lock = threading.Lock()
        self._steps: list[Step] = []
        self._omitted = 0
        self._ended = threading.Event()
        self._began_mono_s = 0.0
        self._began_at = 0.0

    @property
    def began_at(self) -> float:
        return self._began_at

    def begin(self) -> None:
        """Returns when every watch has its starting point, so that whatever happens from now on is recorded."""
        self._began_mono_s, self._began_at = time.monotonic(), time.time()
        for cell, _ in self._platform.cells:
            for kind in GLOBAL_KINDS if cell == "global" else REGIONAL_KINDS:
                api = connect(self._layout, self._platform, cell)
                known, revision = _listed(api, kind)
                follow = threading.Thread(
                    target=self._follow, args=(api, cell, kind, known, revision), name=f"{cell} {kind}", daemon=True
                )
                follow.start()

    def end(self) -> None:
        self._ended.set()

    def now_s(self) -> float:
        return time.monotonic() - self._began_mono_s

    def steps(self, *, since_s: float = 0.0) -> list[Step]:
        """Those of one cell in the order of their commits; between cells in the order they were seen."""
        with self._lock:
            found = in_order(self._steps)
        return [step for step in found if step.at_s >= since_s]

    @property
    def omitted(self) -> int:
        return self._omitted

    def _follow(self, api: Api, cell: str, kind: str, known: dict[str, Item], revision: int) -> None:
        plural = BY_NAME[kind].plural
        while not self._ended.is_set():
            query = {"resourceVersion": str(revision), "timeoutSeconds": str(WATCH_S)}
            try:
                for event in api.watch(f"/apis/holdfast.dev/v1/{plural}", query, silence_s=WATCH_S + 10.0):
                    if self._ended.is_set():
                        return
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        revision = self._note(cell, kind, known, event)
            except Refusal as refusal:
                if refusal.status == GONE:
                    return
            except Stop:
                pass
            self._ended.wait(AGAIN_S)

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
            roles = roles_of(kind, groups, before, item, op=op)
        step = Step(
            round(self.now_s(), 3), cell, revision, kind, meta.get("namespace", ""), meta["name"], op, groups, roles,
            before, after,
        )  # fmt: skip
        with self._lock:
            if len(self._steps) < STEPS_KEPT:
                self._steps.append(step)
            else:
                self._omitted += 1
        return revision


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Watches of different kinds race: a commit was there at the latest when a later one of its cell was seen."""
    found: list[Step] = []
    for cell in sorted({step.cell for step in steps}):
        latest_s = float("inf")
        for step in sorted((s for s in steps if s.cell == cell), key=lambda s: -s.revision):
            latest_s = min(latest_s, step.at_s)
            found.append(step if step.at_s == latest_s else msgspec.structs.replace(step, at_s=latest_s))
    return sorted(found, key=lambda s: (s.at_s, s.cell, s.revision))


def _listed(api: Api, kind: str) -> tuple[dict[str, Item], int]:
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
    """The owned groups in which two versions of an object differ."""
    for group in sorted(OWNERS.get(kind, {"spec": frozenset(), "status": frozenset()})):
        if part_of(kind, before or {}, group) != part_of(kind, after, group):
            yield group


def part_of(kind: str, item: Item, group: str) -> Any:
    """A group's value without the groups inside of it, which have owners of their own."""
    if group == "metadata":
        return {m: item.get("metadata", {}).get(m) for m in MARKS}
    value: Any = item
    for name in group.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, dict):
        inner = {g[len(group) + 1 :].split(".")[0] for g in OWNERS.get(kind, {}) if g.startswith(group + ".")}
        return {k: v for k, v in value.items() if k not in inner and k != "observedGeneration"} or None
    return value


def roles_of(kind: str, groups: tuple[str, ...], before: Item | None, after: Item, *, op: str) -> tuple[str, ...]:
    """Who may have written these groups. Where two share one, the object itself says which of them it was."""
    if kind == "Term":
        return ("election",)
    if kind == "Assignment" and ({"spec", "metadata"} & set(groups)):
        spec, was = after["spec"], (before or {}).get("spec", {})
        paused = before is not None and spec.get("suspended") != was.get("suspended")
        return ("recover",) if paused or spec.get("purpose") == "Recovery" else ("assign",)
    chosen = groups if op == "changed" else tuple(g for g in groups if g == "spec") or groups
    found: list[str] = []
    for group in chosen:
        for role in sorted(owners(kind, group)):
            if role not in found:
                found.append(role)
    return tuple(found)
