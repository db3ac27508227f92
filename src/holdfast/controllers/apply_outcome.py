"""Carries out what controllers decided: commit, own writes into the cache, releases, notices, and when to look again.

Decisions of one pass are committed together. When that is refused, halves are tried, down to single decisions, so that
one that is wrong or late costs the others little. Nothing here decides what to write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import Client, CommitReceipt, FencingToken
from holdfast.client.readback import named
from holdfast.controllers.informer import Informers
from holdfast.controllers.workqueue import Workqueue
from holdfast.foundation import metrics
from holdfast.foundation.batches import batches, send_divided
from holdfast.foundation.ports import Ports
from holdfast.foundation.unknown_outcome import resolve
from holdfast.model import limits
from holdfast.model.errors import (
    AlreadyExists,
    Ambiguous,
    Conflict,
    Fault,
    Final,
    NotFound,
    Retryable,
    StaleToken,
)
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key
from holdfast.model.placement_api import PlacementOutcome, ReleaseItem, ReleaseRequest
from holdfast.model.trace_ids import trace_of
from holdfast.model.writes import Create, Delete, Notice, Outcome, SetStatus, Update, Write

_STALE_VIEW = (Conflict, AlreadyExists, NotFound)
"""Refusals that only say that the view was old: nobody's mistake, decide again."""


class KeyOutcome(msgspec.Struct, frozen=True, gc=False):
    key: Key
    outcome: Outcome


class OutcomeApplier:
    """`token` answers what to write under, or raises StaleToken; `refuted` is told when a token was refused. `linked`:
    two cells move apart, so no refusal is a mistake of the decision. `brief`: commits answer without objects."""

    def __init__(
        self,
        name: str,
        *,
        client: Client,
        informers: Informers,
        queue: Workqueue,
        ports: Ports,
        token: Callable[[], FencingToken | None],
        refuted: Callable[[FencingToken | None], None],
        linked: bool = False,
        brief: bool = False,
    ) -> None:
        self._name = name
        self._client = client
        self._informers = informers
        self._queue = queue
        self._ports = ports
        self._token = token
        self._refuted = refuted
        self._linked = linked
        self._brief = brief
        self.unanswered = 0
        """How many commits the cell did not answer, or was too busy for."""
        self._log = structlog.get_logger().bind(controller=name, cell=client.cell)
        self._writes = metrics.CONTROLLER_WRITES.labels(name)
        self._commits = metrics.CONTROLLER_COMMITS.labels(name)
        self._conflicts = metrics.CONTROLLER_CONFLICTS.labels(name)

    async def apply(self, decided: Sequence[KeyOutcome]) -> None:
        """Everything these decisions ask for. Whatever fails puts its own keys back, and raises nothing."""
        done = [made for made in decided if not made.outcome.writes]

        async def commit(group: Sequence[KeyOutcome]) -> None:
            done.extend(await self._commit(group))

        alone = self._apart([made for made in decided if made.outcome.writes])
        for group in batches(alone, limits.CONTROLLER_BATCH_WRITES_MAX, lambda made: len(made.outcome.writes)):
            await send_divided(group, commit, self._after_refusal, (*_STALE_VIEW, Final))
        asked = [(made.key, item) for made in done for item in made.outcome.releases]
        refused = await self._release(asked) if asked else ()
        await self._notify(done)
        for made in done:
            if made.key not in refused:
                self._queue.forget(made.key)
            if made.outcome.requeue_after_s is not None:
                self._queue.add_after(made.key, made.outcome.requeue_after_s)

    def _apart(self, decided: Sequence[KeyOutcome]) -> list[KeyOutcome]:
        """The decisions that write different objects. A second decision about an object is made again after the first
        is committed."""
        apart: list[KeyOutcome] = []
        written: set[tuple[str, Key]] = set()
        for made in decided:
            touched = {(kind.name, key) for kind, key in map(named, made.outcome.writes) if key.name}
            if touched.isdisjoint(written):
                written |= touched
                apart.append(made)
            else:
                self._queue.add(made.key)
        return apart

    # Committing

    async def _commit(self, group: Sequence[KeyOutcome]) -> Sequence[KeyOutcome]:
        """Commits a group; answers the decisions that are now durable. Raises a refusal that one of them may cause."""
        writes = [write for made in group for write in made.outcome.writes]
        token: FencingToken | None = None
        try:
            token = self._token()
            committed = await self._client.commit(writes, token=token, brief=self._brief)
        except StaleToken as fault:
            # Someone else leads now and decides about these keys. Should it be us again, they are still there.
            self._refuted(token)
            self._count(fault)
            self._log.info("writes_dropped", keys=len(group), reason=fault.reason, message=fault.message)
            for made in group:
                self._queue.retry(made.key)
            return []
        except Ambiguous as fault:
            self.unanswered += 1
            await self._after_doubt(group, writes, fault)
            return []
        except (*_STALE_VIEW, Final):
            raise
        except Retryable as fault:
            self.unanswered += 1
            self._count(fault)
            self._put_back(group, fault)
            return []
        self._commits.inc()
        self._writes.inc(len(writes))
        if not self._brief:
            self._see_own(writes, committed)
        return group

    def _see_own(self, writes: Sequence[Write], committed: CommitReceipt) -> None:
        """What we wrote is in the cache before anything is decided again, however late the watch is."""
        kept: dict[type[Any], list[Any]] = {}
        gone: dict[type[Any], list[Key]] = {}
        for write, item in zip(writes, committed.objects, strict=True):
            kind, key = named(write)
            if item is not None:
                kept.setdefault(kind.type, []).append(item)
            else:
                gone.setdefault(kind.type, []).append(key)
        for type_ in {**kept, **gone}:
            informer = self._informers.find(type_)
            if informer is not None:
                informer.apply_commit(kept.get(type_, ()), gone.get(type_, ()), revision=committed.revision)

    def _after_refusal(self, made: KeyOutcome, fault: Fault) -> None:
        self._count(fault)
        facts = {"object": str(made.key), "reason": fault.reason, "message": fault.message}
        if isinstance(fault, _STALE_VIEW) or self._linked:
            self._conflicts.inc()
            pause_s = self._queue.retry(made.key)
            say = self._log.debug if isinstance(fault, _STALE_VIEW) else self._log.info
            say("commit_conflicted", again_in_s=round(pause_s, 3), **facts)
            return
        # A decision that breaks the rules is a bug: it would be made the same way again at once.
        self._queue.add_after(made.key, limits.INVALID_OUTCOME_BACKOFF_S)
        self._log.error(
            "decision_refused",
            again_in_s=limits.INVALID_OUTCOME_BACKOFF_S,
            writes=[_short(w) for w in made.outcome.writes],
            **facts,
        )

    async def _after_doubt(self, group: Sequence[KeyOutcome], writes: Sequence[Write], fault: Ambiguous) -> None:
        """Nobody knows whether it happened: the keys come back only after the cache shows what is there now."""
        self._count(fault)
        self._log.warning("commit_unanswered", keys=len(group), first=str(group[0].key), message=fault.message)
        kinds = list(dict.fromkeys(named(write)[0].type for write in writes))

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
        self._put_back(group, fault)

    def _put_back(self, group: Sequence[KeyOutcome], fault: Fault) -> None:
        pause_s = max(self._queue.retry(made.key, least_s=fault.retry_after_s) for made in group)
        self._log.info(
            "decisions_put_back", keys=len(group), first=str(group[0].key), reason=fault.reason, message=fault.message,
            again_in_s=round(pause_s, 3),
        )  # fmt: skip

    def _count(self, fault: Fault) -> None:
        metrics.CONTROLLER_ERRORS.labels(self._name, fault.reason).inc()

    # Releases and notices

    async def _release(self, asked: Sequence[tuple[Key, ReleaseItem]]) -> set[Key]:
        """Asks for all releases. Answers the keys that were put back, as something of theirs was not accepted."""
        refused: set[Key] = set()
        for some in batches(asked, limits.PLACEMENT_BATCH_MAX):
            refused |= await self._release_some(some)
        return refused

    async def _release_some(self, asked: Sequence[tuple[Key, ReleaseItem]]) -> set[Key]:
        keys = {key for key, _ in asked}
        token: FencingToken | None = None
        try:
            token = self._token()
            answers = await self._client.release(ReleaseRequest(items=tuple(item for _, item in asked)), token=token)
        except StaleToken as fault:
            self._refuted(token)
            self._count(fault)
            return keys
        except Fault as fault:
            # A release names replica and attempt: asking again can do no harm.
            self._count(fault)
            self._log.info("release_failed", items=len(asked), reason=fault.reason, message=fault.message)
            for key in dict.fromkeys(key for key, _ in asked):
                self._queue.retry(key, least_s=fault.retry_after_s)
            return keys
        refused: set[Key] = set()
        for (key, item), answer in zip(asked, answers.results, strict=True):
            if answer.result is PlacementOutcome.REJECTED:
                refused.add(key)
                pause_s = self._queue.retry(key, least_s=limits.RELEASE_RETRY_MIN_S)
                self._log.info(
                    "release_refused", object=str(key), replica=item.replica, attempt=item.attempt, action=item.action,
                    reason=answer.reason, message=answer.message, again_in_s=round(pause_s, 3),
                )  # fmt: skip
        return refused

    async def _notify(self, done: Sequence[KeyOutcome]) -> None:
        notices = [notice for made in done for notice in made.outcome.notices]
        if not notices:
            return
        self._tell(notices)
        try:
            await self._client.notify(notices, component=self._name)
        except Fault as fault:
            self._log.debug("notices_dropped", count=len(notices), reason=fault.reason, message=fault.message)

    def _tell(self, notices: Sequence[Notice]) -> None:
        """What people are told is also in the log, with the trace of the workload it belongs to."""
        for notice in notices[: limits.EVENTS_LOGGED_PER_PASS_MAX]:
            about = notice.about
            say = self._log.warning if notice.warning else self._log.info
            say(
                "transition_made", kind=kind_of(about).name, object=str(about.key), reason=str(notice.reason),
                message=notice.message, generation=about.metadata.generation, trace=trace_of(about),
            )  # fmt: skip
        if len(notices) > limits.EVENTS_LOGGED_PER_PASS_MAX:
            self._log.info("transitions_not_logged", more=len(notices) - limits.EVENTS_LOGGED_PER_PASS_MAX)


def _short(write: Write) -> str:
    """A write in a word, for a log line."""
    kind, key = named(write)
    match write:
        case Create():
            return f"create {kind.name} {key}"
        case Update():
            return f"update {kind.name} {key} generation {write.object.metadata.generation}"
        case SetStatus():
            return f"set status of {kind.name} {key}: {', '.join(sorted(write.blocks)) or 'conditions'}"
        case Delete():
            return f"delete {kind.name} {key}"
