"""Mistakes in how repeated, late and foreign things are handled."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.authority.account import NodeAccount
from holdfast.authority.ledger import Ledger
from holdfast.authority.release import Release
from holdfast.fleet import overrides, workload_status
from holdfast.gate import plan, stamp
from holdfast.gate.local import LocalClient
from holdfast.model.assignment import Assignment
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.informer import Informer
from holdfast.runtime.request_queue import NEVER, RequestQueue
from holdfast.runtime.workqueue import Workqueue


def release_repeated(patch: Any) -> None:
    """A release that arrives again is carried out again, on whatever place the replica has by now."""
    one = Release.__dict__["plan"]

    def again(self: Any, item: Any) -> Any:
        replica = self._state.replica(item.namespace, item.replica)
        if replica is not None and replica.uid == item.replica_uid:
            item = msgspec.structs.replace(item, attempt=replica.status.placement.attempt)
        return one(self, item)

    patch.set(Release, "plan", again)


def release_by_name(patch: Any) -> None:
    """A release means whoever bears the name now."""
    one = Release.__dict__["plan"]

    def named(self: Any, item: Any) -> Any:
        replica = self._state.replica(item.namespace, item.replica)
        if replica is not None:
            attempt = replica.status.placement.attempt
            item = msgspec.structs.replace(item, replica_uid=replica.uid, attempt=attempt)
        return one(self, item)

    patch.set(Release, "plan", named)


def override_by_other_clock(patch: Any) -> None:
    """The end of an override is taken from the clock of whoever asked for it, which is fast."""
    patch.set(overrides, "_deadline", lambda override, now: now + override.spec.ttl_seconds + 3600.0)


def status_touches_spec(patch: Any) -> None:
    """A write of a status changes what is wanted, and nobody looks who may."""
    blocks_set = stamp.__dict__["blocks_set"]

    def touching(kind: Any, before: Any, write: Any, *, now: str) -> Any:
        after = blocks_set(kind, before, write, now=now)
        if isinstance(after, Assignment):
            spec = msgspec.structs.replace(after.spec, reason=f"{after.spec.reason} (seen)")
            after = msgspec.structs.replace(after, spec=spec)
        return after

    patch.set(stamp, "blocks_set", touching)
    patch.set(plan, "not_owned", lambda *_, **__: ())


def status_of_the_past(patch: Any) -> None:
    """A status that is about an older generation overwrites a newer one."""
    decide = workload_status.__dict__["decide"]

    def behind(key: Any, view: Any, now: float) -> Any:
        outcome = decide(key, view, now)
        late = int(now) % 2
        writes = tuple(
            msgspec.structs.replace(w, observed_generation=max(1, w.observed_generation - late))
            if getattr(w, "observed_generation", 0)
            else w
            for w in outcome.writes
        )
        return msgspec.structs.replace(outcome, writes=writes)

    blocks_set = stamp.__dict__["blocks_set"]

    def as_said(kind: Any, before: Any, write: Any, *, now: str) -> Any:
        after = blocks_set(kind, before, write, now=now)
        if kind.name == "Workload" and write.observed_generation:
            status = msgspec.structs.replace(after.status, observed_generation=write.observed_generation)
            after = msgspec.structs.replace(after, status=status)
        return after

    patch.set(workload_status, "decide", behind)
    patch.set(stamp, "blocks_set", as_said)
    patch.set(plan, "owners", lambda *_, **__: frozenset())


def watch_crosses_tenants(patch: Any) -> None:
    watch = LocalClient.__dict__["watch"]

    def everything(self: Any, kind: Any, namespace: str = "", *, after: int, fields: Any = None) -> Any:
        return watch(self, kind, "", after=after, fields=fields)

    patch.set(LocalClient, "watch", everything)


def drawn_twice(patch: Any) -> None:
    """A recovery place that someone uses already is given to another as well."""

    def any_place(self: Any, want: Any, allowed: Any) -> tuple[str, ...]:
        known = [name for name in sorted(allowed) if name in self.holds]
        return tuple(known[:1])

    patch.set(NodeAccount, "drawable", any_place)


def retried_without_pause(patch: Any) -> None:
    """Whatever failed is tried again at once, for as long as it takes."""
    patch.set(Backoff, "next_s", lambda self: 0.001)
    retry = Workqueue.__dict__["retry"]

    def at_once(self: Any, key: Any, *, least_s: float = 0.0) -> float:
        retry(self, key)
        self.add(key)
        return 0.0

    patch.set(Workqueue, "retry", at_once)


def wake_up_lost(patch: Any) -> None:
    """Nothing wakes work that waits, and it is not tried again by itself either."""
    patch.set(RequestQueue, "wake", lambda self, events, now: False)
    in_vain = RequestQueue.__dict__["in_vain"]

    def for_ever(self: Any, waiting: Any, refusals: Any, now: float) -> float:
        pause_s = in_vain(self, waiting, refusals, now)
        waiting.due_at = NEVER
        return float(pause_s)

    patch.set(RequestQueue, "in_vain", for_ever)
    patch.set(RequestQueue, "resync", lambda self, now: None)


def older_list_taken(patch: Any) -> None:
    """A list of a member that lags is taken for the truth: what it does not know is forgotten."""
    listing = Informer.__dict__["_list"]

    async def lagging(self: Any, cause: str) -> int:
        found = int(await listing(self, cause))
        stale = getattr(self, "_stale_items", None)
        self._stale_items = tuple(self.cache.list(self.kind))
        if cause in ("resync", "expired") and stale is not None:
            changes = self.cache.start_over(self.kind, stale)
            self._hand_out(changes)
        return found

    patch.set(Informer, "_list", lagging)


def quota_leaked(patch: Any) -> None:
    """What a claim took of the quota is not given back when the claim goes."""
    drop = Ledger.__dict__["drop"]

    def leaking(self: Any, key: str) -> Any:
        gone = drop(self, key)
        if gone is not None:
            self.put(msgspec.structs.replace(gone, amounts=dict(gone.amounts)))
        return gone

    patch.set(Ledger, "drop", leaking)


TABLE = (
    ("release-repeated", "a release that arrives again is carried out again", release_repeated),
    ("release-by-name", "a release means whoever bears the name now", release_by_name),
    ("override-by-other-clock", "an override's end is taken from its requester's clock", override_by_other_clock),
    ("status-touches-spec", "a write of a status changes the spec", status_touches_spec),
    ("status-of-the-past", "a status about an older generation overwrites a newer one", status_of_the_past),
    ("watch-crosses-tenants", "a watch of one namespace is told of all", watch_crosses_tenants),
    ("drawn-twice", "a recovery place is given to two claims", drawn_twice),
    ("retried-without-pause", "failures are retried at once and for ever", retried_without_pause),
    ("wake-up-lost", "nothing wakes work that waits", wake_up_lost),
    ("older-list-taken", "the list of a lagging member is taken for the truth", older_list_taken),
    ("quota-leaked", "the quota of a claim that went is not given back", quota_leaked),
)
