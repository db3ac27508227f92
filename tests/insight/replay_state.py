"""Loads from a cell's store what a replay needs: each kind as of the revision that the decision saw."""

from __future__ import annotations

from typing import Any, cast

from holdfast.insight.replay import NotReplayable, ReplayState, RequiredHistory, required_history
from holdfast.model import codec
from holdfast.model.decision import Decision
from holdfast.model.errors import Expired
from holdfast.model.kinds import BY_NAME, Kind, kind_of
from holdfast.model.meta import Key, Object
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.store.objects import Objects


async def fetch(objects: Objects, decision: Decision) -> ReplayState | NotReplayable:
    """Everything the decision rests on, or why that is no longer there."""
    required = required_history(decision)
    try:
        return await _fetch(objects, required)
    except Expired as gone:
        return NotReplayable("HistoryCompacted", gone.message)


async def _fetch(objects: Objects, required: RequiredHistory) -> ReplayState:
    items: list[Object] = []
    for name, revision in required.kinds.items():
        items.extend((await objects.page(BY_NAME[name], at=revision, after="", limit=0)).items)
    ahead = {item: await _at(objects, BY_NAME[item.kind], item.key, item.revision) for item in required.newer_objects}
    request = await _at(objects, kind_of(SchedulingRequest), required.request, required.request_revision)
    policy = None
    if required.policy:
        kind = kind_of(PolicyRevision)
        policy = objects.get(kind, "", required.policy) or await _at(
            objects, kind, Key("", required.policy), required.policy_revision
        )
    return ReplayState(
        objects=tuple(items),
        newer_objects=ahead,
        request=cast("SchedulingRequest | None", request),
        policy=cast("PolicyRevision | None", policy),
        decisions=tuple(cast("list[Decision]", objects.list(kind_of(Decision))[0])),
    )


async def _at(objects: Objects, kind: Kind, key: Key, revision: int) -> Any:
    entry = await objects.store_of(kind).get(kind.store_key(key.namespace, key.name), at=revision)
    return codec.decode(kind, entry.value, entry.revision) if entry is not None else None
