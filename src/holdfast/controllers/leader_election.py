"""Leader election: one process at a time acts as the authority or runs the singleton controllers.

- A leader counts its lease from sending the renewal, on a clock that includes suspend, and stops leading a margin
  before any other process may start.
- A contender takes over only after it has observed the Lease unchanged for a full TTL plus clock drift.
- A takeover rewrites the Term in the same commit as the Lease. The Term's revision is the leader's fencing token, so
  late writes of a paused leader are refused, whatever its clock says (S5).
- Only a clean `stop` releases the Lease; a crash does not. The same identity may take its own Lease again at once; the
  Term fences its older process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

import msgspec
import structlog

from holdfast.client.contract import Client, FencingToken
from holdfast.foundation import metrics
from holdfast.foundation.backoff import jittered_s
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.errors import Ambiguous, Conflict, Fault, StaleToken
from holdfast.model.meta import ObjectMeta
from holdfast.model.times import micro_text
from holdfast.model.writes import Create, Update, Write

# Interval at which a leader renews its lease. One third of the lease, so that two renewals may be lost.
LEADER_RENEW_EVERY_S = 5.0

NAMESPACE = "holdfast-system"

_MARGIN = 0.1
"""Fraction of the TTL, besides drift, by which a leader stops before others may start."""

_SLEEP_MIN_S = 0.001
"""Minimum sleep. A remaining lease time below the clock's resolution would otherwise make a busy loop."""


class Election:
    def __init__(
        self,
        client: Client,
        name: str,
        identity: str,
        ports: Ports,
        *,
        ttl_s: float = limits.LEADER_TTL_S,
        renew_every_s: float = LEADER_RENEW_EVERY_S,
    ) -> None:
        if renew_every_s * 2 > ttl_s:
            raise ValueError(f"election {name}: renew interval {renew_every_s} s allows no second try in {ttl_s} s")
        self.name = name
        self.identity = identity
        self._client = client
        self._clock = ports.clock
        self._chance = ports.random
        self._ttl_s = ttl_s
        self._renew_every_s = renew_every_s
        self._valid_until = 0.0
        """On the monotonic clock. Nothing is written under the token after this time."""
        self._token: FencingToken | None = None
        self._lease: Lease | None = None
        self._observed = (-1, 0.0)
        """The observed revision of the Lease, and since when it is unchanged."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger().bind(election=name, identity=identity, cell=client.cell)

    # Queries

    @property
    def leading(self) -> bool:
        return self.token is not None

    @property
    def token(self) -> FencingToken | None:
        """The fencing token, or None if this process does not lead. Checks the clock on each call, so that a stalled
        process stops at once."""
        if self._token is None or self._clock.monotonic() >= self._valid_until:
            return None
        return self._token

    async def wait_until_leading(self) -> FencingToken:
        """Waits until this process leads."""
        while (token := self.token) is None:
            await self._next_change()
        return token

    async def wait_until_not_leading(self) -> None:
        """Waits until this process does not lead."""
        while self.token is not None:
            await self._next_change()

    async def while_leading(self, work: Callable[[FencingToken], Coroutine[Any, Any, None]]) -> None:
        """Runs `work` once per term of leadership, until cancelled. The end of a term cancels `work`; the next term
        begins after `work` has ended. Exceptions of `work` are raised here."""
        while True:
            token = await self.wait_until_leading()
            work_task = asyncio.create_task(work(token), name=f"term {self.name}")
            lost_task = asyncio.create_task(self.wait_until_not_leading(), name=f"end of term {self.name}")
            try:
                await asyncio.wait({work_task, lost_task}, return_when=asyncio.FIRST_COMPLETED)
                if work_task.done():
                    work_task.result()
                    await lost_task
            finally:
                await cancel_and_wait(None if work_task.done() else work_task, lost_task)

    def token_rejected(self, token: FencingToken) -> None:
        """A write under this token was refused as stale: another process leads."""
        if token == self._token:
            self._lose("StaleToken")

    async def start(self) -> None:
        if self._task is None:
            # Not before: a process that does not contend, such as the global cell for `authority`, has no series.
            metrics.ELECTION_LEADING.labels(self.name).set(0)
            self._task = asyncio.create_task(self._run(), name=f"election {self.name}")

    async def stop(self) -> None:
        """Stops contending. A leader releases its Lease, so that the next leader need not wait for the TTL."""
        task, self._task = self._task, None
        await cancel_and_wait(task)
        token, lease = self.token, self._lease
        self._lose("stopped")
        if token is None or lease is None:
            return
        spec = msgspec.structs.replace(lease.spec, holder_identity="", renew_time=micro_text(self._clock.now()))
        try:
            await self._client.commit([Update(msgspec.structs.replace(lease, spec=spec))], token=token)
        except Fault as fault:
            self._log.info("lease_release_failed", reason=fault.reason, message=fault.message)

    async def __aenter__(self) -> Election:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.stop()
        else:
            # After a failure, work may be incomplete: let the Lease expire.
            await cancel_and_wait(self._task)

    # Holding and contending

    async def _run(self) -> None:
        while True:
            try:
                pause_s = await self._step()
            except Fault as fault:
                if isinstance(fault, StaleToken):
                    self._lose(fault.reason)
                else:
                    self._log.info("election_step_failed", reason=fault.reason, message=fault.message)
                pause_s = self._renew_every_s / 5
            except Exception:
                self._log.exception("election_step_failed", reason="Failed")
                pause_s = self._renew_every_s / 2
            pause_s = jittered_s(pause_s, self._chance)
            if self._token is not None:
                # Wake up when the lease expires, to notify waiters.
                remaining_s = self._valid_until - self._clock.monotonic()
                if remaining_s <= 0.0:
                    self._lose("ran out")
                pause_s = min(pause_s, max(remaining_s, _SLEEP_MIN_S))
            await self._clock.sleep(pause_s)

    async def _step(self) -> float:
        """One renewal, or one check of the Lease. Returns the delay until the next step."""
        token = self._token
        if token is not None and self._lease is not None:
            if self.token is None:
                self._lose("ran out")
                return 0.0
            try:
                async with asyncio.timeout(min(self._remaining_s(), self._renew_every_s)):
                    await self._renew(self._lease, token)
            except (TimeoutError, Conflict, Ambiguous):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._remaining_s())):
                        await self._read_lease(token)
                return self._renew_every_s / 5
            return self._renew_every_s
        if await self._may_take_over():
            await self._take_over()
            return self._renew_every_s
        return self._renew_every_s / 2

    async def _renew(self, lease: Lease, token: FencingToken) -> None:
        sent = self._clock.monotonic()
        spec = msgspec.structs.replace(lease.spec, renew_time=micro_text(self._clock.now()))
        committed = await self._client.commit([Update(msgspec.structs.replace(lease, spec=spec))], token=token)
        renewed = committed.objects[0]
        assert isinstance(renewed, Lease)
        if self.token is None:
            # The response came after the lease expired: callers already saw no token, so this term is over.
            self._lose("renewed too late")
            return
        self._lease = renewed
        self._valid_until = sent + self._lease_duration_s()

    async def _read_lease(self, token: FencingToken) -> None:
        """Reads the Lease after a renewal was unanswered or conflicted, perhaps with its own write. Does not extend the
        lease."""
        lease = await self._client.get(Lease, self.name, NAMESPACE)
        term = await self._client.get(Term, self.name)
        is_holder = lease is not None and lease.spec.holder_identity == self.identity
        if not is_holder or term is None or term.revision != token.revision:
            self._lose("taken")
        else:
            self._lease = lease

    async def _may_take_over(self) -> bool:
        """Whether the Lease is free, held by this identity, or was observed unchanged for a full TTL."""
        self._lease = lease = await self._client.get(Lease, self.name, NAMESPACE)
        if lease is None or lease.spec.holder_identity in ("", self.identity):
            return True
        now = self._clock.monotonic()
        revision, since = self._observed
        if revision != lease.revision:
            self._observed = (lease.revision, now)
            return False
        ttl_s = max(self._ttl_s, float(lease.spec.lease_duration_seconds))
        return now - since >= ttl_s * (1.0 + limits.CLOCK_DRIFT)

    async def _take_over(self) -> None:
        term = await self._client.get(Term, self.name)
        lease, at = self._lease, micro_text(self._clock.now())
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=math.ceil(self._ttl_s),
            acquire_time=at,
            renew_time=at,
            lease_transitions=0 if lease is None else lease.spec.lease_transitions + 1,
        )
        writes: list[Write] = []
        if lease is None:
            writes.append(Create(Lease(metadata=ObjectMeta(name=self.name, namespace=NAMESPACE), spec=spec)))
        else:
            writes.append(Update(msgspec.structs.replace(lease, spec=spec)))
        if term is None:
            writes.append(Create(Term(metadata=ObjectMeta(name=self.name), spec=TermSpec(holder=self.identity))))
        else:
            next_term_spec = TermSpec(holder=self.identity, term=term.spec.term + 1)
            writes.append(Update(msgspec.structs.replace(term, spec=next_term_spec)))
        sent = self._clock.monotonic()
        committed = await self._client.commit(writes)
        new_lease, next_term = committed.objects
        assert isinstance(new_lease, Lease) and isinstance(next_term, Term)
        self._lease, self._token = new_lease, FencingToken(self.name, next_term.revision)
        self._valid_until = sent + self._lease_duration_s()
        self._observed = (-1, 0.0)
        if self.token is not None:
            self._log.info("election_won", term=next_term.spec.term, token=next_term.revision)
            metrics.ELECTION_CHANGES.labels(self.name, "won").inc()
            self._notify(self._token)

    def _lease_duration_s(self) -> float:
        return self._ttl_s * (1.0 - limits.CLOCK_DRIFT - _MARGIN)

    def _remaining_s(self) -> float:
        return self._valid_until - self._clock.monotonic()

    def _lose(self, why: str) -> None:
        if self._token is None:
            return
        self._token, self._lease = None, None
        self._log.info("election_lost", why=why)
        metrics.ELECTION_CHANGES.labels(self.name, "lost").inc()
        self._notify(None)

    def _notify(self, token: FencingToken | None) -> None:
        metrics.ELECTION_LEADING.labels(self.name).set(0 if token is None else 1)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _next_change(self) -> None:
        """Waits until the election is won or lost, including by expiry."""
        await self._changed.wait()
