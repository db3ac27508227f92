"""Clients of the regional cells for commands: objects at present or at a past revision.

Queries run the planner of the scheduler on the objects that were read. This module never writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import quote

import msgspec

from holdfast.cli.exits import Exit, Stop
from holdfast.cli.http import MAX_PAGES, PAGE, Api, Refusal
from holdfast.cli.output import note
from holdfast.cli.platform.layout import Layout
from holdfast.cli.platform.survey import connect
from holdfast.flow.active_policy import ActivePolicy, active_policy
from holdfast.flow.ask import Ask, ask_of
from holdfast.flow.queue_order import dominant_shares, in_order, raised_ranks
from holdfast.flow.replay import SNAPSHOT_KINDS, NotReplayable, Past, Replayed, reads, replay
from holdfast.flow.snapshot import Snapshot, SnapshotBuilder
from holdfast.flow.why_not import Question
from holdfast.model.decision import Decision
from holdfast.model.kinds import BY_NAME, kind_of
from holdfast.model.meta import Key, Object
from holdfast.model.override import Override
from holdfast.model.replica import Replica
from holdfast.model.scheduler_policy import PolicyRevision, Rules
from holdfast.model.scheduling_request import Member, SchedulingRequest
from holdfast.model.template import template_hash

FORBIDDEN, GONE = 403, 410


class Region:
    """One regional cell. If the caller may not list all tenants, objects of `tenant` are read instead."""

    def __init__(self, api: Api, name: str, tenant: str = "") -> None:
        self.api = api
        self.name = name
        self._tenant = tenant
        self._builder: SnapshotBuilder | None = None
        self._known: dict[tuple[str, int], list[Any]] = {}

    def every(self, kind: str, *, at: int = 0) -> list[Any]:
        """All objects of a kind, at present or at revision `at`."""
        if (kind, at) not in self._known:
            entry = BY_NAME[kind]
            query = {"resourceVersion": str(at), "resourceVersionMatch": "Exact"} if at else {}
            try:
                found = pages(self.api, f"/apis/holdfast.dev/v1/{entry.plural}", query)
            except Refusal as refusal:
                if refusal.status != FORBIDDEN or not self._tenant or not entry.namespaced:
                    raise
                found = pages(self.api, f"/apis/holdfast.dev/v1/namespaces/{quote(self._tenant)}/{entry.plural}", query)
            self._known[kind, at] = [msgspec.convert(item, entry.type) for item in found]
        return self._known[kind, at]

    def one(self, kind: str, key: Key, *, at: int = 0) -> Any | None:
        if not at:
            return next((item for item in self.every(kind) if item.key == key), None)
        entry = BY_NAME[kind]
        where = f"namespaces/{quote(key.namespace)}/{entry.plural}" if key.namespace else entry.plural
        query = {
            "resourceVersion": str(at), "resourceVersionMatch": "Exact", "fieldSelector": f"metadata.name={key.name}",
        }  # fmt: skip
        found = pages(self.api, f"/apis/holdfast.dev/v1/{where}", query)
        return msgspec.convert(found[0], entry.type) if found else None

    # Present state

    def builder(self) -> SnapshotBuilder:
        if self._builder is None:
            self._builder = SnapshotBuilder(self.name)
            for kind in SNAPSHOT_KINDS:
                for item in self.every(kind):
                    self._builder.upsert(item)
        return self._builder

    def snapshot(self) -> Snapshot:
        return self.builder().freeze(0)

    def policy(self, now: float) -> ActivePolicy:
        revisions: list[PolicyRevision] = self.every("PolicyRevision")
        overrides: list[Override] = self.every("Override")
        return active_policy(revisions, overrides, self.name, now)

    def open_to_us(self) -> bool:
        """Whether the caller may read all objects that planning needs. A tenant user may not."""
        try:
            self.builder()
        except Refusal as refusal:
            if refusal.status != FORBIDDEN:
                raise
            return False
        return True

    def waiting(self, now: float) -> list[SchedulingRequest]:
        """Pending requests, in the order in which the scheduler plans them."""
        builder, policy = self.builder(), self.policy(now)
        pending = [r for r in self.every("SchedulingRequest") if self.unplaced(r)]
        shares = dominant_shares(builder.tenant_use(), builder.total_capacity())
        return in_order(pending, policy.rules.queue, shares, raised_ranks(builder.overrides(), now, self.name))

    def unplaced(self, request: SchedulingRequest) -> tuple[Member, ...]:
        return tuple(m for m in request.spec.members if not self.builder().has_claim(m.uid))

    def question(self, ask: Ask, now: float, rules: Rules | None = None) -> Question:
        return Question(self.snapshot(), ask, rules or self.policy(now).rules, now)

    def ask_for(self, request: SchedulingRequest, members: tuple[Member, ...]) -> Ask:
        bound = self.builder().claims_of(
            request.metadata.namespace, request.spec.workload, template_hash(request.spec.template)
        )
        return ask_of(request, members, bound=bound, evictions=1_000_000)

    # Past state

    def replay(self, decision: Decision, rules: Rules | None = None) -> Replayed | NotReplayable:
        try:
            past = self._past(decision)
        except Refusal as refusal:
            if refusal.status == GONE:
                return NotReplayable("HistoryCompacted", refusal.why)
            raise
        return replay(self.name, decision, past, rules=rules)

    def _past(self, decision: Decision) -> Past:
        wanted = reads(decision)
        objects: list[Object] = []
        for kind, revision in wanted.kinds.items():
            objects.extend(self.every(kind, at=revision))
        policy = None
        if wanted.policy:
            key = Key("", wanted.policy)
            policy = self.one("PolicyRevision", key) or self.one("PolicyRevision", key, at=wanted.policy_at)
        return Past(
            objects=tuple(objects),
            ahead={item: self.one(item.kind, item.key, at=item.revision) for item in wanted.ahead},
            request=self.one("SchedulingRequest", wanted.request, at=wanted.request_revision),
            policy=policy,
            decisions=tuple(self.every("Decision")),
        )


def pages(api: Api, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    """All items of a list. All pages are read at the revision of the first page."""
    items: list[dict[str, Any]] = []
    asked = {"limit": str(PAGE), **query}
    for _ in range(MAX_PAGES):
        answer = api.request("GET", path, query=asked)
        items.extend(answer["items"])
        rest = answer.get("metadata", {}).get("continue", "")
        if not rest:
            return items
        kept = {k: v for k, v in query.items() if not k.startswith("resourceVersion")}
        asked = {"limit": str(PAGE), **kept, "continue": rest}
    plural = path.rpartition("/")[2]
    raise Stop(f"{plural}: too many objects to list (limit {MAX_PAGES * PAGE})", next_step="select one tenant with -n")


class Regions:
    """The cells of a platform: the global cell and all reachable regions."""

    def __init__(self, state: str, *, tenant: str = "") -> None:
        layout = Layout(state)
        platform = layout.load()
        self.layout = layout
        self.global_api = connect(layout, platform, "global")
        self.all = [Region(connect(layout, platform, r.name), r.name, tenant) for r in platform.regions]
        self.silent: dict[str, str] = {}
        """Unreachable regions with the error. Filled when the reachable regions are first determined."""

    @cached_property
    def heard(self) -> list[Region]:
        """The reachable regions. An unreachable region does not fail the command."""
        found = []
        for region in self.all:
            try:
                region.api.text("/livez")
                found.append(region)
            except Stop as stop:
                self.silent[region.name] = stop.what
        return found

    def tell_silent(self) -> None:
        for _, why in sorted(self.silent.items()):
            note(f"{why}; its objects are missing from this output")

    def missing(self, what: str, *, next_step: str) -> NoReturn:
        """Raises `what`. If a region is unreachable, the error says that the object may be there."""
        if self.silent:
            text = f"{what} (unreachable, may have it: {', '.join(sorted(self.silent))})"
            raise Stop(text, next_step="holdfast status", code=Exit.UNREACHABLE)
        raise Stop(what, next_step=next_step)

    def named(self, name: str) -> Iterable[Region]:
        found = [r for r in self.all if name in ("", r.name)]
        if not found:
            known = ", ".join(r.name for r in self.all)
            raise Stop(f"region {name}: not found (expected one of {known})", code=Exit.USAGE)
        return found

    def replica(self, key: Key) -> tuple[Region, Replica] | None:
        for region in self.heard:
            found = region.one("Replica", key)
            if found is not None:
                return region, found
        return None


def now_s() -> float:
    return time.time()


_EXAMPLES = {"REPLICA": "payments/risk-api-us-east-0", "DECISION": "payments/risk-api-us-east-1a2b3c-0123456789"}


def parse_subject(text: str, what: str = "WORKLOAD|REPLICA") -> Key:
    tenant, _, name = text.partition("/")
    if not tenant or not name:
        example = _EXAMPLES.get(what, "payments/risk-api")
        raise Stop(f"{text}: the tenant is missing (expected TENANT/{what}, such as {example})", code=Exit.USAGE)
    return Key(tenant, name)


__all__ = ["Region", "Regions", "kind_of", "now_s", "pages", "parse_subject"]
