"""Applies controller outcomes: commits the writes, updates the cache with them, then sends releases and events and
requeues.

All outcomes of one pass are one commit. If the commit is refused, it is split in halves, down to single outcomes, so
that one invalid or stale outcome does not block the others. This module never changes what is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import Client, CommitReceipt, FencingToken
from holdfast.client.readback import write_target
from holdfast.controllers.informer import Informers
from holdfast.controllers.workqueue import Workqueue
from holdfast.foundation import metrics
from holdfast.foundation.batches import batches, send_divided
from holdfast.foundation.ports import Ports
from holdfast.foundation.unknown_outcome import resolve
from holdfast.model import limits
from holdfast.model.errors import AlreadyExists, Ambiguous, Conflict, Fault, Final, NotFound, Retryable, StaleToken
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key
from holdfast.model.placement_api import PlacementOutcome, ReleaseItem, ReleaseRequest
from holdfast.model.trace_ids import trace_of
from holdfast.model.writes import Create, Delete, Notice, Outcome, SetStatus, Update, Write

# Events that one pass of a controller writes to the log. The rest is only counted there; all are recorded as Events.
EVENTS_LOGGED_PER_PASS_MAX = 20
# Pause after the gate rejects an outcome as invalid. That is a bug, and an immediate retry would fail the same way.
INVALID_OUTCOME_BACKOFF_S = 60.0
# Writes of several controller outcomes that are committed together.
CONTROLLER_BATCH_WRITES_MAX = limits.BATCH_WRITES_MAX
# Minimum pause before a rejected release is sent again. Most wait for a node to stop its work.
RELEASE_RETRY_MIN_S = 1.0

_STALE_VIEW = (Conflict, AlreadyExists, NotFound)
"""Refusals caused by a stale view; the key is decided again."""


class KeyOutcome(msgspec.Struct, frozen=True, gc=False):
    key: Key
    outcome: Outcome


class OutcomeApplier:
    """`token` returns the fencing token or raises StaleToken; `token_rejected` is called when a token was refused.
    `is_link`: the two cells differ in time, so no refusal is a bug of the decision. `brief`: commits return no
    objects."""

    def __init__(
        self,
        name: str,
        *,
        client: Client,
        informers: Informers,
        queue: Workqueue,
        ports: Ports,
        token: Callable[[], FencingToken | None],
        token_rejected: Callable[[FencingToken | None], None],
        is_link: bool = False,
        brief: bool = False,
    ) -> None:
        self._name = name
        self._client = client
        self._informers = informers
        self._queue = queue
        self._ports = ports
        self._token = token
        self._token_rejected = token_rejected
        self._is_link = is_link
        self._brief = brief
        self.unanswered = 0
        """Commits without a response, or refused because the cell was overloaded."""
        self._log = structlog.get_logger().bind(controller=name, cell=client.cell)
        self._writes = metrics.CONTROLLER_WRITES.labels(name)
        self._commits = metrics.CONTROLLER_COMMITS.labels(name)
        self._conflicts = metrics.CONTROLLER_CONFLICTS.labels(name)

    async def apply(self, outcomes: Sequence[KeyOutcome]) -> None:
        """Applies these outcomes. A failure requeues its own keys and raises nothing."""
        done = [outcome_of_key for outcome_of_key in outcomes if not outcome_of_key.outcome.writes]

        async def commit(group: Sequence[KeyOutcome]) -> None:
            done.extend(await self._commit(group))

        distinct_outcomes = self._distinct(
            [outcome_of_key for outcome_of_key in outcomes if outcome_of_key.outcome.writes]
        )
        for group in batches(
            distinct_outcomes, CONTROLLER_BATCH_WRITES_MAX, lambda outcome_of_key: len(outcome_of_key.outcome.writes)
        ):
            await send_divided(group, commit, self._after_refusal, (*_STALE_VIEW, Final))
        releases = [(outcome_of_key.key, item) for outcome_of_key in done for item in outcome_of_key.outcome.releases]
        refused = await self._release(releases) if releases else ()
        await self._notify(done)
        for outcome_of_key in done:
            if outcome_of_key.key not in refused:
                self._queue.forget(outcome_of_key.key)
            if outcome_of_key.outcome.requeue_after_s is not None:
                self._queue.add_after(outcome_of_key.key, outcome_of_key.outcome.requeue_after_s)

    def _distinct(self, outcomes: Sequence[KeyOutcome]) -> list[KeyOutcome]:
        """The outcomes that write different objects. A second outcome for an object is decided again after the first
        commit."""
        distinct: list[KeyOutcome] = []
        written: set[tuple[str, Key]] = set()
        for outcome_of_key in outcomes:
            touched = {(kind.name, key) for kind, key in map(write_target, outcome_of_key.outcome.writes) if key.name}
            if touched.isdisjoint(written):
                written |= touched
                distinct.append(outcome_of_key)
            else:
                self._queue.add(outcome_of_key.key)
        return distinct

    # Committing

    async def _commit(self, group: Sequence[KeyOutcome]) -> Sequence[KeyOutcome]:
        """Commits a group; returns the outcomes that are now durable. Raises a refusal that one of them may cause."""
        writes = [write for outcome_of_key in group for write in outcome_of_key.outcome.writes]
        token: FencingToken | None = None
        try:
            token = self._token()
            committed = await self._client.commit(writes, token=token, brief=self._brief)
        except StaleToken as fault:
            # Another process leads and decides these keys. They stay queued in case this process leads again.
            self._token_rejected(token)
            self._count(fault)
            self._log.info("writes_dropped", keys=len(group), reason=fault.reason, message=fault.message)
            for outcome_of_key in group:
                self._queue.retry(outcome_of_key.key)
            return []
        except Ambiguous as fault:
            self.unanswered += 1
            await self._after_unknown(group, writes, fault)
            return []
        except (*_STALE_VIEW, Final):
            raise
        except Retryable as fault:
            self.unanswered += 1
            self._count(fault)
            self._requeue(group, fault)
            return []
        self._commits.inc()
        self._writes.inc(len(writes))
        if not self._brief:
            self._cache_own_writes(writes, committed)
        return group

    def _cache_own_writes(self, writes: Sequence[Write], committed: CommitReceipt) -> None:
        """Puts the written objects into the cache before the next decision, however late the watch is."""
        written: dict[type[Any], list[Any]] = {}
        deleted: dict[type[Any], list[Key]] = {}
        for write, item in zip(writes, committed.objects, strict=True):
            kind, key = write_target(write)
            if item is not None:
                written.setdefault(kind.type, []).append(item)
            else:
                deleted.setdefault(kind.type, []).append(key)
        for type_ in {**written, **deleted}:
            informer = self._informers.find(type_)
            if informer is not None:
                informer.apply_commit(written.get(type_, ()), deleted.get(type_, ()), revision=committed.revision)

    def _after_refusal(self, outcome_of_key: KeyOutcome, fault: Fault) -> None:
        self._count(fault)
        facts = {"object": str(outcome_of_key.key), "reason": fault.reason, "message": fault.message}
        if isinstance(fault, _STALE_VIEW) or self._is_link:
            self._conflicts.inc()
            pause_s = self._queue.retry(outcome_of_key.key)
            log = self._log.debug if isinstance(fault, _STALE_VIEW) else self._log.info
            log("commit_conflicted", again_in_s=round(pause_s, 3), **facts)
            return
        # A refused decision is a bug: an immediate retry would decide the same.
        self._queue.add_after(outcome_of_key.key, INVALID_OUTCOME_BACKOFF_S)
        self._log.error(
            "decision_refused",
            again_in_s=INVALID_OUTCOME_BACKOFF_S,
            writes=[_short(w) for w in outcome_of_key.outcome.writes],
            **facts,
        )

    async def _after_unknown(self, group: Sequence[KeyOutcome], writes: Sequence[Write], fault: Ambiguous) -> None:
        """The outcome of the commit is unknown: refreshes the cache before the keys are requeued."""
        self._count(fault)
        self._log.warning("commit_unanswered", keys=len(group), first=str(group[0].key), message=fault.message)
        kinds = list(dict.fromkeys(write_target(write)[0].type for write in writes))

        async def refreshed() -> bool:
            await self._informers.refresh(kinds)
            return True

        with contextlib.suppress(Fault):
            await resolve(
                f"commit of {len(writes)} writes",
                fault,
                refreshed,
                clock=self._ports.clock,
                pause_s=lambda: self._queue.next_backoff_s(group[0].key),
            )
        self._requeue(group, fault)

    def _requeue(self, group: Sequence[KeyOutcome], fault: Fault) -> None:
        pause_s = max(self._queue.retry(outcome_of_key.key, least_s=fault.retry_after_s) for outcome_of_key in group)
        self._log.info(
            "decisions_put_back",
            keys=len(group),
            first=str(group[0].key),
            reason=fault.reason,
            message=fault.message,
            again_in_s=round(pause_s, 3),
        )

    def _count(self, fault: Fault) -> None:
        metrics.CONTROLLER_ERRORS.labels(self._name, fault.reason).inc()

    # Releases and notices

    async def _release(self, releases: Sequence[tuple[Key, ReleaseItem]]) -> set[Key]:
        """Sends all releases. Returns the keys that were requeued because a release was not accepted."""
        refused: set[Key] = set()
        for some in batches(releases, limits.PLACEMENT_BATCH_MAX):
            refused |= await self._release_some(some)
        return refused

    async def _release_some(self, releases: Sequence[tuple[Key, ReleaseItem]]) -> set[Key]:
        keys = {key for key, _ in releases}
        token: FencingToken | None = None
        try:
            token = self._token()
            answers = await self._client.release(ReleaseRequest(items=tuple(item for _, item in releases)), token=token)
        except StaleToken as fault:
            self._token_rejected(token)
            self._count(fault)
            return keys
        except Fault as fault:
            # A release names replica and attempt, so repeating it is safe.
            self._count(fault)
            self._log.info("release_failed", items=len(releases), reason=fault.reason, message=fault.message)
            for key in dict.fromkeys(key for key, _ in releases):
                self._queue.retry(key, least_s=fault.retry_after_s)
            return keys
        refused: set[Key] = set()
        for (key, item), answer in zip(releases, answers.results, strict=True):
            if answer.result is PlacementOutcome.REJECTED:
                refused.add(key)
                pause_s = self._queue.retry(key, least_s=RELEASE_RETRY_MIN_S)
                self._log.info(
                    "release_refused",
                    object=str(key),
                    replica=item.replica,
                    attempt=item.attempt,
                    action=item.action,
                    reason=answer.reason,
                    message=answer.message,
                    again_in_s=round(pause_s, 3),
                )
        return refused

    async def _notify(self, done: Sequence[KeyOutcome]) -> None:
        notices = [notice for outcome_of_key in done for notice in outcome_of_key.outcome.notices]
        if not notices:
            return
        self._log_events(notices)
        try:
            await self._client.notify(notices, component=self._name)
        except Fault as fault:
            self._log.debug("notices_dropped", count=len(notices), reason=fault.reason, message=fault.message)

    def _log_events(self, notices: Sequence[Notice]) -> None:
        """Logs the events too, with the trace of their workload."""
        for notice in notices[:EVENTS_LOGGED_PER_PASS_MAX]:
            object_ = notice.about
            log = self._log.warning if notice.warning else self._log.info
            log(
                "transition_made",
                kind=kind_of(object_).name,
                object=str(object_.key),
                reason=str(notice.reason),
                message=notice.message,
                generation=object_.metadata.generation,
                trace=trace_of(object_),
            )
        if len(notices) > EVENTS_LOGGED_PER_PASS_MAX:
            self._log.info("transitions_not_logged", more=len(notices) - EVENTS_LOGGED_PER_PASS_MAX)


def _short(write: Write) -> str:
    """A short description of a write, for log lines."""
    kind, key = write_target(write)
    match write:
        case Create():
            return f"create {kind.name} {key}"
        case Update():
            return f"update {kind.name} {key} generation {write.object.metadata.generation}"
        case SetStatus():
            return f"set status of {kind.name} {key}: {', '.join(sorted(write.blocks)) or 'conditions'}"
        case Delete():
            return f"delete {kind.name} {key}"
