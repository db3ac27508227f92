"""Mutations of retries, duplicates, stale data and identities."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority.claims import grant_class
from holdfast.authority.ledger import Ledger
from holdfast.authority.node_account import NodeAccount
from holdfast.authority.release import ReleaseHandler
from holdfast.controllers.informer import Informer
from holdfast.controllers.workqueue import Workqueue
from holdfast.fleet import overrides, workload_status
from holdfast.foundation.backoff import Backoff
from holdfast.gate import stamp, write_plan
from holdfast.gate.local_client import LocalClient
from holdfast.link.override_expiry import OverrideExpiry
from holdfast.model.assignment import Assignment
from holdfast.model.errors import Refused
from holdfast.model.quantity import add
from holdfast.model.workload import Workload
from holdfast.scheduler.request_queue import NEVER, RequestQueue
from holdfast.scheduling import quota_headroom
from holdfast.scheduling.refusal_summary import RetryEvent
from holdfast.sim.mutations.patch import Mutation, Patch

CLIENT_FAST_S = 30.0
FAR_S = 1e6


def release_repeated(patch: Patch) -> None:
    """A repeated release is applied to the replica's current attempt."""
    plan_release = ReleaseHandler.__dict__["plan"]

    def again(self: ReleaseHandler, item: Any) -> Any:
        replica = self._state.replica(item.namespace, item.replica)
        if replica is not None and replica.uid == item.replica_uid:
            item = msgspec.structs.replace(item, attempt=replica.status.placement.attempt)
        return plan_release(self, item)

    patch.set(ReleaseHandler, "plan", again)


def release_by_name(patch: Patch) -> None:
    """A release is applied by name, whatever the uid."""
    plan_release = ReleaseHandler.__dict__["plan"]

    def named(self: ReleaseHandler, item: Any) -> Any:
        replica = self._state.replica(item.namespace, item.replica)
        if replica is not None:
            attempt = replica.status.placement.attempt
            item = msgspec.structs.replace(item, replica_uid=replica.uid, attempt=attempt)
        return plan_release(self, item)

    patch.set(ReleaseHandler, "plan", named)


def override_by_other_clock(patch: Patch) -> None:
    """The expiry of an override is computed on the requester's clock, which is half a minute fast."""
    patch.set(overrides, "_deadline", lambda override, now: now + override.spec.ttl_seconds + CLIENT_FAST_S)


def override_by_wall_clock(patch: Patch) -> None:
    """A region copies the expiry of an override and compares it with its own wall clock."""
    patch.set(OverrideExpiry, "mirrored_override", lambda self, source, copy: source)
    patch.set(OverrideExpiry, "due_writes", lambda self: [])


def status_touches_spec(patch: Patch) -> None:
    """A status write changes the spec, and the ownership check is disabled."""
    blocks_set = stamp.__dict__["set_blocks"]

    def touching(kind: Any, before: Any, write: Any, *, now: str) -> Any:
        after = blocks_set(kind, before, write, now=now)
        if isinstance(after, Assignment):
            spec = msgspec.structs.replace(after.spec, reason="seen", epoch=after.spec.epoch + 1)
            after = msgspec.structs.replace(after, spec=spec)
        return after

    patch.set(stamp, "set_blocks", touching)
    patch.set(write_plan, "unowned_changes", lambda *_, **__: ())
    patch.set(write_plan.WritePlan, "_status_only", lambda *_: None)


class _Behind:
    """A view with one workload at its previous generation."""

    def __init__(self, view: Any, former: Workload) -> None:
        self._view = view
        self._former = former

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        return self._former if kind is Workload else self._view.get(kind, name, namespace)


def status_of_the_past(patch: Patch) -> None:
    """A status of an older generation overwrites a newer one, as with two writers of which one has a stale cache. The
    check that refuses older statuses is disabled."""
    decide = workload_status.__dict__["decide"]
    known: dict[Any, tuple[Workload, Workload]] = {}
    """By uid: the newest object, and the newest object of the generation before."""
    looks = [0]

    def behind(key: Any, view: Any, now: float) -> Any:
        found = view.get(Workload, key.name, key.namespace)
        if found is None:
            return decide(key, view, now)
        newest, former = known.get(found.uid, (found, found))
        if found.metadata.generation > newest.metadata.generation:
            former = newest
        known[found.uid] = (found, former)
        looks[0] += 1
        return decide(key, _Behind(view, former) if looks[0] % 2 else view, now)

    blocks_set = stamp.__dict__["set_blocks"]

    def as_said(kind: Any, before: Any, write: Any, *, now: str) -> Any:
        after = blocks_set(kind, before, write, now=now)
        if kind.name == "Workload" and write.observed_generation:
            status = msgspec.structs.replace(after.status, observed_generation=write.observed_generation)
            after = msgspec.structs.replace(after, status=status)
        return after

    patch.set(workload_status, "decide", behind)
    patch.set(stamp, "set_blocks", as_said)
    patch.set(write_plan, "owners", lambda *_, **__: frozenset())


def watch_crosses_tenants(patch: Patch) -> None:
    watch = LocalClient.__dict__["watch"]

    def everything(self: LocalClient, kind: Any, namespace: str = "", *, after: int, fields: Any = None) -> Any:
        return watch(self, kind, "", after=after, fields=fields)

    patch.set(LocalClient, "watch", everything)


def drawn_twice(patch: Patch) -> None:
    """A consumed recovery slot is given to another claim."""

    def any_place(self: NodeAccount, request: Any, allowed: Any) -> tuple[str, ...]:
        known = [name for name in sorted(allowed) if name in self.recovery_slots]
        return tuple(known[:1])

    patch.set(NodeAccount, "choose_slots", any_place)


def retried_without_pause(patch: Patch) -> None:
    """Failures are retried at once, without backoff and without end."""
    patch.set(Backoff, "next_s", lambda self: 0.001)
    retry = Workqueue.__dict__["retry"]

    def at_once(self: Workqueue, key: Any, *, least_s: float = 0.0) -> float:
        retry(self, key)
        self.add(key)
        return 0.0

    patch.set(Workqueue, "retry", at_once)


def wake_up_lost(patch: Patch) -> None:
    """Free quota does not wake requests that are pending for quota, and they are not retried by time. Other events
    still wake them."""
    in_vain = RequestQueue.__dict__["record_failure"]

    def record_without_quota_wakeup(
        self: Any, waiting: Any, refusals: Any, now: float, *, retry_on: tuple[str, ...] = (), **more: Any
    ) -> float:
        waits_for_quota = RetryEvent.GRANT_CHANGED in retry_on
        if waits_for_quota:
            retry_on = tuple(
                event for event in retry_on if event not in (RetryEvent.GRANT_CHANGED, RetryEvent.CAPACITY_FREED)
            )
        pause_s = in_vain(self, waiting, refusals, now, retry_on=retry_on, **more)
        if waits_for_quota:
            self._set_due(waiting, now + FAR_S)
        return float(pause_s)

    patch.set(RequestQueue, "record_failure", record_without_quota_wakeup)


def nobody_woken(patch: Patch) -> None:
    """No event wakes pending requests, and they are not retried by time."""
    patch.set(RequestQueue, "retry_on_events", lambda self, events, now: False)
    in_vain = RequestQueue.__dict__["record_failure"]

    def for_ever(self: RequestQueue, waiting: Any, refusals: Any, now: float, **more: Any) -> float:
        pause_s = in_vain(self, waiting, refusals, now, **more)
        waiting.due_at = NEVER
        return float(pause_s)

    patch.set(RequestQueue, "record_failure", for_ever)
    patch.set(RequestQueue, "resync", lambda self, now: None)


def older_list_taken(patch: Patch) -> None:
    """The list of a lagging store member is accepted: newer objects are dropped from the cache."""
    listing = Informer.__dict__["_list"]

    async def lagging(self: Any, cause: str) -> int:
        found = int(await listing(self, cause))
        stale = getattr(self, "_stale_items", None)
        self._stale_items = tuple(self.cache.list(self.kind))
        if cause in ("resync", "expired") and stale is not None:
            changes = self.cache.reset_kind(self.kind, stale)
            self._emit(changes)
        return found

    patch.set(Informer, "_list", lagging)


def quota_leaked(patch: Patch) -> None:
    """The quota of a removed claim is not released."""
    drop = Ledger.__dict__["drop"]

    def leaking(self: Ledger, key: str) -> Any:
        dropped = drop(self, key)
        if dropped is not None:
            self.put(msgspec.structs.replace(dropped, amounts=dict(dropped.amounts)))
        return dropped

    patch.set(Ledger, "drop", leaking)


def quota_leaked_on_refusal(patch: Patch) -> None:
    """A refused reserve does not release its quota. The planner's quota check is disabled, so that refusals happen."""
    check = Ledger.__dict__["check"]

    def leaking(self: Ledger, node: Any, request: Any, limit: Any) -> Any:
        found = check(self, node, request, limit)
        if isinstance(found, Refused):
            add(self.used.setdefault((request.namespace, grant_class(request.capacity_class)), {}), request.amounts)
        return found

    patch.set(Ledger, "check", leaking)
    patch.set(quota_headroom, "affordable_members", lambda ask: len(ask.members))


TABLE = (
    Mutation(
        "release-repeated",
        "a repeated release is applied again",
        release_repeated,
        "non-idempotent release",
        scenario="drained-in-turn",
    ),
    Mutation(
        "release-by-name",
        "a release is applied by name instead of uid",
        release_by_name,
        "release by name, not identity",
        scenario="drained-in-turn",
    ),
    Mutation(
        "override-by-other-clock",
        "an override's expiry is computed on its requester's clock",
        override_by_other_clock,
        "override TTL by the client's clock",
    ),
    Mutation(
        "override-by-wall-clock",
        "an override's expiry is compared with a region's wall clock",
        override_by_wall_clock,
        scenario="override-by-skewed-clock",
    ),
    Mutation(
        "status-touches-spec", "a status write changes the spec", status_touches_spec, "status write touches spec"
    ),
    Mutation(
        "stale-status-overwrites",
        "a status of an older generation overwrites a newer one",
        status_of_the_past,
        "stale observedGeneration overwrite",
    ),
    Mutation(
        "watch-crosses-tenants",
        "a watch of one namespace delivers all namespaces",
        watch_crosses_tenants,
        "watch crosses tenants",
    ),
    Mutation(
        "slot-consumed-twice",
        "a recovery slot is given to two claims",
        drawn_twice,
        "recovery slot consumed twice",
        scenario="recovery-crowded",
    ),
    Mutation("retry-without-backoff", "failures are retried without backoff", retried_without_pause, "unbounded retry"),
    Mutation(
        "quota-wakeup-lost", "free quota does not wake pending requests", wake_up_lost, "wake-up lost on quota release"
    ),
    Mutation("no-wakeups", "no event wakes pending requests", nobody_woken),
    Mutation(
        "stale-list-accepted",
        "the list of a lagging store member is accepted",
        older_list_taken,
        "list from a lagging member after restart",
    ),
    Mutation("quota-leaked", "the quota of a removed claim is not released", quota_leaked),
    Mutation(
        "quota-leaked-on-refusal",
        "the quota of a refused reserve is not released",
        quota_leaked_on_refusal,
        "quota leaked on a rejected reserve",
    ),
)
