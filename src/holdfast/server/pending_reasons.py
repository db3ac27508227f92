"""Why a queued replica is pending, for the table of replicas.

The scheduler writes the reason once for all replicas of a request (SchedulingRequest.status), not into each Replica: a
full region would write thousands of them at every retry.
"""

from __future__ import annotations

from typing import cast

from holdfast.model.kinds import BY_NAME
from holdfast.model.lifecycle import Stage, stage
from holdfast.model.meta import Object
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.store.objects import Objects

_REQUEST = BY_NAME["SchedulingRequest"]


class PendingReasons:
    """Looks up reasons for the rows of one list or watch."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._known: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {}
        """By assignment: the revisions of its requests, and the reason of each member by uid."""

    def of(self, item: Object) -> str:
        """The first reason of the replica's request; empty if it is not queued or was not tried yet."""
        if not isinstance(item, Replica) or stage(item) is not Stage.QUEUED:
            return ""
        assignment = f"{item.metadata.namespace}/{item.spec.assignment}"
        found, _ = self._objects.list(_REQUEST, item.metadata.namespace, fields={"assignment": assignment})
        requests = cast("list[SchedulingRequest]", found)
        revisions = tuple(request.revision for request in requests)
        known = self._known.get(assignment)
        if known is None or known[0] != revisions:
            reasons = {
                member.uid: str(request.status.reasons[0].reason)
                for request in requests
                if request.status.reasons
                for member in request.spec.members
            }
            known = self._known[assignment] = (revisions, reasons)
        return known[1].get(item.uid, "")
