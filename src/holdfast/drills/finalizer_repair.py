"""Removes one stale finalizer, when a person has approved it: the repair of a deletion that `FinalizerStuck` reports.

- A finalizer of Holdfast is removed only if nothing is left that its owner would clean up. Otherwise the finding says
  what is left. A finalizer with an unknown owner cannot be checked; the caller must vouch for its work (`foreign`).
- The removal names the revision that was checked, so a change in between is refused and nothing is lost.
- Without `approved` the server checks the same request and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.kinds import BY_NAME, Home, Kind
from holdfast.model.ownership import ASSIGNMENTS_FINALIZER, FINALIZERS, RELEASE_FINALIZER, TENANT_CONTENTS
from holdfast.model.times import parse_time
from holdfast.scheduling.eviction.stuck_finalizers import UNKNOWN_FINALIZER_DEADLINE_S, UNKNOWN_OWNER

# Names of objects that a message lists as left over. The rest is counted.
LEFT_NAMED_MAX = 3
MERGE_PATCH = "application/merge-patch+json"
_NOT_CONTENTS = frozenset({"Event", "Lease", "Term"})


class CellReads(Protocol):
    """What the repair needs of a cell's API."""

    def list(self, plural: str, namespace: str = "", **query: str) -> list[dict[str, Any]]: ...

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any: ...


class FinalizerRepair(msgspec.Struct, frozen=True, rename="camel"):
    """The finding and what was done. `left`: what the owner would still have to clean up."""

    cell: str
    object: str
    finalizer: str
    owner: str
    left: tuple[str, ...] = ()
    removed: bool = False


def repair_finalizer(
    api: CellReads,
    cell: str,
    kind: Kind,
    key: tuple[str, str],
    finalizer: str,
    *,
    now: float,
    foreign: bool = False,
    approved: bool = False,
) -> FinalizerRepair:
    """Checks the finalizer of the object `key` (namespace, name) and removes it if `approved`."""
    namespace, name = key
    path = f"{kind.api_path}/{f'namespaces/{namespace}/' if namespace else ''}{kind.plural}/{name}"
    item = api.request("GET", path)
    meta = item["metadata"]
    shown = f"{kind.name} {namespace}/{name}" if namespace else f"{kind.name} {name}"
    owner, deadline_s = FINALIZERS.get(finalizer, ("", UNKNOWN_FINALIZER_DEADLINE_S))
    _refuse_if_not_stuck(shown, meta, finalizer, deadline_s, now)
    left = tuple(_left(api, cell, kind, item, finalizer))
    found = FinalizerRepair(cell, shown, finalizer, owner or UNKNOWN_OWNER, left)
    if left:
        return found
    if not owner and not foreign:
        raise CommandError(
            f"{shown}: nobody here owns finalizer {finalizer}, so nothing shows that its work is done",
            next_step="ask its author; if the work is done, add --foreign",
            code=ExitCode.CONFLICT,
        )
    patch = {
        "metadata": {
            "resourceVersion": meta["resourceVersion"],
            "finalizers": [other for other in meta["finalizers"] if other != finalizer],
        }
    }
    query = {"fieldManager": "holdfast-repair", **({} if approved else {"dryRun": "All"})}
    api.request("PATCH", path, patch, query=query, content_type=MERGE_PATCH)
    return msgspec.structs.replace(found, removed=approved)


def _refuse_if_not_stuck(shown: str, meta: dict[str, Any], finalizer: str, deadline_s: float, now: float) -> None:
    problem = ""
    if not meta.get("deletionTimestamp"):
        problem = "it is not being deleted"
    elif finalizer not in meta.get("finalizers", ()):
        problem = f"it has no finalizer {finalizer} (found {', '.join(meta.get('finalizers', ())) or 'none'})"
    elif (passed_s := now - parse_time(meta["deletionTimestamp"])) <= deadline_s:
        problem = f"{finalizer} is not overdue (deadline {deadline_s:.0f} s after the deletion, found {passed_s:.0f} s)"
    if problem:
        raise CommandError(f"{shown}: {problem}", next_step="holdfast repair list", code=ExitCode.CONFLICT)


def _left(api: CellReads, cell: str, kind: Kind, item: dict[str, Any], finalizer: str) -> Iterator[str]:
    """What the owner of a known finalizer would still have to clean up. Stored objects alone count."""
    uid, name = item["metadata"]["uid"], item["metadata"]["name"]
    if finalizer == ASSIGNMENTS_FINALIZER:
        yield from _named("Assignment", (a for a in api.list("assignments") if a["spec"]["workloadUid"] == uid))
    elif finalizer == "holdfast.dev/region-assignments":
        yield from _named("Assignment", (a for a in api.list("assignments") if a["spec"]["region"] == name))
    elif finalizer == RELEASE_FINALIZER:
        for claim in ("Binding", "Reservation"):
            held = api.list(BY_NAME[claim].plural)
            yield from _named(claim, (c for c in held if c["spec"]["intent"]["replicaUid"] == uid))
    elif finalizer == TENANT_CONTENTS:
        for other in _kinds_here(cell):
            if other.namespaced and other.name not in _NOT_CONTENTS:
                yield from _named(other.name, api.list(other.plural, name))
    elif finalizer in FINALIZERS:
        for other in _kinds_here(cell):
            owned = (o for o in api.list(other.plural) if _is_owned_by(o, uid))
            yield from _named(other.name, owned)


def _is_owned_by(item: dict[str, Any], uid: str) -> bool:
    return any(reference["uid"] == uid for reference in item["metadata"].get("ownerReferences", ()))


def _named(kind: str, items: Iterable[dict[str, Any]]) -> Iterator[str]:
    found = [f"{kind} {i['metadata'].get('namespace', '')}/{i['metadata']['name']}".replace(" /", " ") for i in items]
    yield from found[:LEFT_NAMED_MAX]
    if len(found) > LEFT_NAMED_MAX:
        yield f"{len(found) - LEFT_NAMED_MAX} further {kind} objects"


def _kinds_here(cell: str) -> list[Kind]:
    other = Home.REGION if cell == "global" else Home.GLOBAL
    return [kind for kind in BY_NAME.values() if kind.home is not other and kind.name not in _NOT_CONTENTS]
