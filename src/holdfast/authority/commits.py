"""Commits under a fencing token: the only path from the authority to the store.

- Every transaction compares the Term, so nothing is written after another authority was elected (S5).
- If a commit gets no response, no other commit starts until reading back shows its outcome.
- If the outcome stays unknown, the authority steps down and never uses that token again, so a late commit cannot
  diverge from the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import FencingToken
from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.foundation.unknown_outcome import NoProof, resolve
from holdfast.gate import audit
from holdfast.gate.audit import AuditLog
from holdfast.model import codec, limits
from holdfast.model.errors import Ambiguous, Conflict, Fault, StaleToken, StoreFailed, Unavailable
from holdfast.model.kinds import BY_NAME, Kind, kind_of_store_key
from holdfast.model.meta import ObjectMeta
from holdfast.model.reasons import Reason
from holdfast.store.contract import Append, Committed, Compare, Put, Remove, Txn
from holdfast.store.objects import Objects

# Wait for the conflicting write to become visible before the authority checks the batch again. After that, it is
# checked anyway and may conflict again, up to COMMIT_ROUNDS_MAX. A write is visible within milliseconds.
AUTHORITY_CONFLICT_WAIT_S = 0.5

_TERM = BY_NAME["Term"]
_log = structlog.get_logger()

CommitTest = Callable[[Any], bool]


class CommitProbe(msgspec.Struct, frozen=True):
    """A test whether a transaction was committed: one object that it writes, and a check of its content."""

    kind: Kind
    namespace: str
    name: str
    is_committed: CommitTest

    @property
    def key(self) -> str:
        return self.kind.store_key(self.namespace, self.name)


def stored(kind: Kind, meta: ObjectMeta, landed: CommitTest | None = None) -> CommitProbe:
    """The transaction created or changed this very object: the same uid, and `landed` is true of it."""
    uid = meta.uid
    return CommitProbe(
        kind, meta.namespace, meta.name, lambda f: f is not None and f.uid == uid and (landed is None or landed(f))
    )


def removed(kind: Kind, meta: ObjectMeta) -> CommitProbe:
    """The transaction removed the object of this name."""
    return CommitProbe(kind, meta.namespace, meta.name, lambda f: f is None)


class Commits:
    def __init__(self, objects: Objects, ports: Ports, trail: AuditLog | None = None) -> None:
        self._objects = objects
        self._clock = ports.clock
        self._trail = trail
        self._store = objects.store_of(_TERM)
        self._token: FencingToken | None = None
        self._unusable_token: FencingToken | None = None
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._exclusive_count = 0
        self.leadership_lost = asyncio.Event()
        """Set when this authority stops leading."""

    @property
    def leading(self) -> bool:
        return self._token is not None

    async def take_token(self, token: FencingToken) -> None:
        """Takes the token once its Term is the current one in the local read state."""
        if token == self._unusable_token:
            raise StaleToken(f"election {token.election}: a commit under token {token.revision} has an unknown outcome")
        if not await self._objects.wait_for(_TERM, token.revision, timeout_s=limits.COMMIT_DEADLINE_S):
            raise Unavailable(f"election {token.election}: term revision {token.revision} is not readable here yet")
        term = self._objects.get(_TERM, "", token.election)
        if term is None or term.revision != token.revision:
            raise StaleToken(
                f"election {token.election}: stale token {token.revision}; another authority leads",
                facts={"token": token.revision, "current": term.revision if term is not None else 0},
            )
        self._token = token
        self.leadership_lost.clear()

    def step_down(self, reason: str) -> None:
        if self._token is not None:
            _log.info("authority_stepped_down", election=self._token.election, reason=reason)
        self._token = None
        self.leadership_lost.set()

    @property
    def token(self) -> FencingToken | None:
        return self._token

    async def wait_ready(self, under: FencingToken | None = None) -> None:
        """Waits until a commit may start. Raises if this process is not the authority, or not `under` that token."""
        while True:
            if self._token is None or (under is not None and under != self._token):
                raise not_leader_error()
            if self._may_start.is_set():
                return
            await self._may_start.wait()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Context in which no other commit starts; commits in flight continue."""
        self._exclusive_count += 1
        self._may_start.clear()
        try:
            yield
        finally:
            self._exclusive_count -= 1
            if not self._exclusive_count:
                self._may_start.set()

    async def commit(
        self,
        compares: dict[str, int],
        writes: list[Put | Remove],
        appends: tuple[Append, ...],
        probe: CommitProbe,
        *,
        under: FencingToken | None = None,
    ) -> Committed:
        """One transaction under the token. Raises Conflict if it was not committed and cannot be."""
        token = self._token
        if token is None or (under is not None and under != token):
            raise not_leader_error()
        term = Compare(_TERM.store_key("", token.election), token.revision)
        records = tuple(audit.with_term(append, token.revision) for append in appends)
        txn = Txn((term, *(Compare(k, r) for k, r in compares.items())), tuple(writes), records)
        try:
            committed = await self._objects.commit(None, txn)
            if self._trail is not None and appends:
                self._trail.note_appended(len(appends))
            return committed
        except Conflict as conflict:
            metrics.AUTHORITY_CONFLICTS.inc()
            if await self._was_replaced(token, conflict):
                raise not_leader_error() from conflict
            raise
        except StoreFailed:
            self.step_down("the store failed")
            raise
        except Ambiguous as unknown:
            _log.warning("commit_outcome_unknown", probe=probe.key, message=unknown.message)
            async with self.exclusive():
                return await self._resolve(txn, probe, token, unknown)

    async def wait_published(self, conflict: Conflict) -> None:
        """Waits briefly until the conflicting revision is readable here."""
        kind = kind_of_store_key(str(conflict.facts.get("key", "")))
        found = int(conflict.facts.get("found") or 0)
        if kind is None or not found:
            await self._clock.sleep(limits.BACKOFF_FIRST_S)
            return
        await self._objects.wait_for(kind, found, timeout_s=AUTHORITY_CONFLICT_WAIT_S)

    async def _resolve(self, txn: Txn, probe: CommitProbe, token: FencingToken, unknown: Ambiguous) -> Committed:
        """Reads back and repeats the same transaction; its compares make the repetition idempotent."""
        # Only one authority leads, so no jitter; and no pause after the last attempt, as every other commit waits.
        doubled = (limits.BACKOFF_FIRST_S * 2**n for n in range(1, limits.READ_BACK_ATTEMPTS))
        pauses = (min(pause_s, limits.BACKOFF_MAX_S) for pause_s in doubled)
        try:
            return await resolve(
                f"commit that writes {probe.key}",
                unknown,
                lambda: self._read_back(probe),
                lambda: self._repeat(txn),
                clock=self._clock,
                pause_s=lambda: next(pauses, 0.0),
                verdicts=metrics.AUTHORITY_READ_BACKS,
            )
        except Conflict as conflict:
            if await self._was_replaced(token, conflict):
                raise not_leader_error() from conflict
            raise
        except StoreFailed:
            self.step_down("the store failed")
            raise
        except Ambiguous:
            self._unusable_token = token
            self.step_down("the outcome of a commit stayed unknown")
            raise

    async def _repeat(self, txn: Txn) -> Committed:
        try:
            return await self._objects.commit(None, txn)
        except Conflict as conflict:
            if await self._compare_failed(txn):
                raise
            raise Unavailable(
                "the conflicting write is not durable yet, and may be this commit; next: retry"
            ) from conflict

    async def _read_back(self, probe: CommitProbe) -> Committed | NoProof:
        entry = await self._store.get(probe.key)
        item = codec.decode(probe.kind, entry.value, entry.revision) if entry is not None else None
        if not probe.is_committed(item):
            return NoProof.ABSENT
        revision = entry.revision if entry is not None else self._store.head
        if not await self._objects.wait_for(probe.kind, revision, timeout_s=limits.COMMIT_DEADLINE_S):
            raise Unavailable(f"{probe.key}: committed, but not readable here yet")
        return Committed(revision, ())

    async def _compare_failed(self, txn: Txn) -> bool:
        """Whether a compare fails against the durable state. Revisions only rise, so it then fails forever."""
        for compare in txn.compares:
            entry = await self._store.get(compare.key)
            if (entry.revision if entry is not None else 0) != compare.revision:
                return True
        return False

    async def _was_replaced(self, token: FencingToken, conflict: Fault) -> bool:
        key = _TERM.store_key("", token.election)
        if conflict.facts.get("key", key) != key:
            return False
        entry = await self._store.get(key)
        if entry is not None and entry.revision == token.revision:
            return False
        if self._token == token:
            self.step_down("another authority was elected")
        return True


def not_leader_error() -> Unavailable:
    return Unavailable(
        "this server is not the region's elected authority; next: repeat the call at the elected one",
        facts={"reason": Reason.NOT_LEADER.value},
    )
