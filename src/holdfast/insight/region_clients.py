"""Clients of a platform's cells for queries: objects at present or at a past revision.

Queries run the planner of the scheduler on the objects that were read. This module never writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import quote

import msgspec

from holdfast.client.sync_api import PAGES_MAX, ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.insight.planned_quota import planned_copies
from holdfast.insight.replay import SNAPSHOT_KINDS, NotReplayable, ReplayResult, ReplayState, replay, required_history
from holdfast.insight.why_not import WhyNotQuery
from holdfast.model.active_policy import ActivePolicy, active_policy
from holdfast.model.decision import Decision
from holdfast.model.kinds import BY_NAME
from holdfast.model.limits import LIST_PAGE_OBJECTS
from holdfast.model.meta import Key, Object
from holdfast.model.override import Override, has_emergency_quota
from holdfast.model.quantity import Amounts
from holdfast.model.quota import Grant
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRules
from holdfast.model.scheduling_request import RequestMember, SchedulingRequest
from holdfast.model.template import template_hash
from holdfast.scheduling.queue_order import dominant_shares, order_requests, raised_priorities
from holdfast.scheduling.quota_headroom import headroom_of
from holdfast.scheduling.replica_requirements import ReplicaRequirements, requirements_of
from holdfast.scheduling.snapshot import Snapshot, SnapshotBuilder

FORBIDDEN_STATUS, GONE_STATUS = 403, 410


class RegionClient:
    """One regional cell. If the caller may not list all tenants, objects of `tenant` are read instead."""

    def __init__(self, api: CellApi | None, name: str, tenant: str = "") -> None:
        self._api = api
        self.name = name
        self._tenant = tenant
        self._builder: SnapshotBuilder | None = None
        self._known: dict[tuple[str, int], list[Any]] = {}

    @classmethod
    def holding(cls, name: str, objects: Mapping[str, list[Any]]) -> RegionClient:
        """A region whose present objects are at hand, by kind, as in its own cell. Nothing is read over the network."""
        found = cls(None, name)
        found._known = {(kind, 0): items for kind, items in objects.items()}
        return found

    @property
    def api(self) -> CellApi:
        assert self._api is not None, f"region {self.name} holds its objects; it is not read over the network"
        return self._api

    def list_objects(self, kind: str, *, at: int = 0) -> list[Any]:
        """All objects of a kind, at present or at revision `at`."""
        if (kind, at) not in self._known:
            entry = BY_NAME[kind]
            query = {"resourceVersion": str(at), "resourceVersionMatch": "Exact"} if at else {}
            try:
                found = list_all(self.api, f"/apis/holdfast.dev/v1/{entry.plural}", query)
            except ApiRefusal as refusal:
                if refusal.status != FORBIDDEN_STATUS or not self._tenant or not entry.namespaced:
                    raise
                found = list_all(
                    self.api, f"/apis/holdfast.dev/v1/namespaces/{quote(self._tenant)}/{entry.plural}", query
                )
            self._known[kind, at] = [msgspec.convert(item, entry.type) for item in found]
        return self._known[kind, at]

    def get_object(self, kind: str, key: Key, *, at: int = 0) -> Any | None:
        if not at:
            return next((item for item in self.list_objects(kind) if item.key == key), None)
        entry = BY_NAME[kind]
        where = f"namespaces/{quote(key.namespace)}/{entry.plural}" if key.namespace else entry.plural
        query = {
            "resourceVersion": str(at),
            "resourceVersionMatch": "Exact",
            "fieldSelector": f"metadata.name={key.name}",
        }
        found = list_all(self.api, f"/apis/holdfast.dev/v1/{where}", query)
        return msgspec.convert(found[0], entry.type) if found else None

    # Present state

    def builder(self) -> SnapshotBuilder:
        if self._builder is None:
            self._builder = SnapshotBuilder(self.name)
            for kind in SNAPSHOT_KINDS:
                for item in self.list_objects(kind):
                    self._builder.upsert(item)
        return self._builder

    def snapshot(self) -> Snapshot:
        return self.builder().freeze(0)

    def policy(self, now: float) -> ActivePolicy:
        revisions: list[PolicyRevision] = self.list_objects("PolicyRevision")
        overrides: list[Override] = self.list_objects("Override")
        return active_policy(revisions, overrides, self.name, now)

    def can_list_all_tenants(self) -> bool:
        """Whether the caller may read all objects that planning needs. A tenant user may not."""
        try:
            self.builder()
        except ApiRefusal as refusal:
            if refusal.status != FORBIDDEN_STATUS:
                raise
            return False
        return True

    def pending_requests(self, now: float) -> list[SchedulingRequest]:
        """Pending requests, in the order in which the scheduler plans them."""
        builder, policy = self.builder(), self.policy(now)
        pending = [r for r in self.list_objects("SchedulingRequest") if self.unplaced_members(r)]
        shares = dominant_shares(builder.tenant_use(), builder.total_capacity())
        return order_requests(
            pending, policy.rules.queue, shares, raised_priorities(builder.overrides(), now, self.name)
        )

    def unplaced_members(self, request: SchedulingRequest) -> tuple[RequestMember, ...]:
        return tuple(m for m in request.spec.members if not self.builder().has_claim(m.uid))

    def why_not_query(self, ask: ReplicaRequirements, now: float, rules: PolicyRules | None = None) -> WhyNotQuery:
        if rules is not None:
            return WhyNotQuery(self.snapshot(), ask, rules, now)
        active = self.policy(now)
        return WhyNotQuery(self.snapshot(), ask, active.rules, now, active.revision)

    def quota_headroom(self, tenant: str, now: float) -> Amounts | None:
        """The tenant's remaining quota in the region, as the scheduler estimates it."""
        builder = self.builder()
        copies = [c for c in self.list_objects("GrantCopy") if c.metadata.namespace == tenant]
        emergency = has_emergency_quota(builder.overrides(), region=self.name, tenant=tenant, now=now)
        return headroom_of(copies, builder.ordinary_use(tenant), now, emergency=emergency)

    def assume_grants(self, planned: Sequence[Grant]) -> None:
        """Lets the region enforce these Grants from now on."""
        copies = planned_copies(planned, self.name, self.list_objects("GrantCopy"))
        for copy in copies:
            self.builder().upsert(copy)
        self._known["GrantCopy", 0] = copies

    def requirements_of(
        self, request: SchedulingRequest, members: tuple[RequestMember, ...], now: float
    ) -> ReplicaRequirements:
        bound = self.builder().retained_claims(
            request.metadata.namespace, request.spec.workload, template_hash(request.spec.template)
        )
        headroom = self.quota_headroom(request.metadata.namespace, now)
        return requirements_of(request, members, bound_members=bound, evictions_left=1_000_000, quota_headroom=headroom)

    # Past state

    def replay(self, decision: Decision, rules: PolicyRules | None = None) -> ReplayResult | NotReplayable:
        try:
            state = self._history(decision)
        except ApiRefusal as refusal:
            if refusal.status == GONE_STATUS:
                return NotReplayable("HistoryCompacted", refusal.why)
            raise
        return replay(self.name, decision, state, rules=rules)

    def _history(self, decision: Decision) -> ReplayState:
        required = required_history(decision)
        objects: list[Object] = []
        for kind, revision in required.kinds.items():
            objects.extend(self.list_objects(kind, at=revision))
        policy = None
        if required.policy:
            key = Key("", required.policy)
            policy = self.get_object("PolicyRevision", key) or self.get_object(
                "PolicyRevision", key, at=required.policy_revision
            )
        return ReplayState(
            objects=tuple(objects),
            newer_objects={
                item: self.get_object(item.kind, item.key, at=item.revision) for item in required.newer_objects
            },
            request=self.get_object("SchedulingRequest", required.request, at=required.request_revision),
            policy=policy,
            decisions=tuple(self.list_objects("Decision")),
        )


def list_all(api: CellApi, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    """All items of a list. All pages are read at the revision of the first page."""
    items: list[dict[str, Any]] = []
    parameters = {"limit": str(LIST_PAGE_OBJECTS), **query}
    for _ in range(PAGES_MAX):
        answer = api.request("GET", path, query=parameters)
        items.extend(answer["items"])
        rest = answer.get("metadata", {}).get("continue", "")
        if not rest:
            return items
        filters = {k: v for k, v in query.items() if not k.startswith("resourceVersion")}
        parameters = {"limit": str(LIST_PAGE_OBJECTS), **filters, "continue": rest}
    plural = path.rpartition("/")[2]
    limit = PAGES_MAX * LIST_PAGE_OBJECTS
    raise CommandError(f"{plural}: too many objects to list (limit {limit})", next_step="select one tenant with -n")


class ObjectNotFound(CommandError):
    """No reachable cell has the object, and every cell was reachable."""


class RegionClients:
    """The cells of a platform: the global cell and all reachable regions."""

    def __init__(self, global_api: CellApi, regions: Sequence[RegionClient]) -> None:
        self.global_api = global_api
        self.all = regions
        self.unreachable: dict[str, str] = {}
        """Unreachable regions with the error. Filled when the reachable regions are first determined."""

    @cached_property
    def reachable(self) -> list[RegionClient]:
        """The reachable regions. An unreachable region does not fail the command."""
        found = []
        for region in self.all:
            try:
                region.api.text("/livez")
                found.append(region)
            except CommandError as stop:
                self.unreachable[region.name] = stop.message
        return found

    def raise_not_found(self, what: str, *, next_step: str) -> NoReturn:
        """Raises `what`. If a region is unreachable, the error says that the object may be there."""
        if self.unreachable:
            text = f"{what} (unreachable, may have it: {', '.join(sorted(self.unreachable))})"
            raise CommandError(text, next_step="holdfast status", code=ExitCode.UNREACHABLE)
        raise ObjectNotFound(what, next_step=next_step)

    def select(self, name: str) -> Iterable[RegionClient]:
        found = [r for r in self.all if name in ("", r.name)]
        if not found:
            known = ", ".join(r.name for r in self.all)
            raise CommandError(f"region {name}: not found (expected one of {known})", code=ExitCode.USAGE)
        return found

    def find_replica(self, key: Key) -> tuple[RegionClient, Replica] | None:
        for region in self.reachable:
            found = region.get_object("Replica", key)
            if found is not None:
                return region, found
        return None


def now_s() -> float:
    return time.time()
