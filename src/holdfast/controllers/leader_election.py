"""Elections: one process at a time acts as the authority or runs the singleton controllers.

What always holds:

- A leader counts its lease from the moment it *sent* the renewal, on a clock that runs through suspend, and stops
  leading a margin before anyone else may start.
- A contender takes over only after it has itself watched the lease stay unchanged for a whole TTL and the drift.
- Taking over rewrites the election's Term in the same commit as its Lease. The Term's revision is the token of every
  commit the leader makes, so that a paused leader's late writes are refused whatever its clock says (S5).
- A crash releases nothing; only a clean `stop` does. The same identity may take its own lease again at once: whoever
  starts two processes under one identity gets the newer one, fenced from the older by the Term.
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

NAMESPACE = "holdfast-system"

_MARGIN = 0.1
"""The part of the TTL, besides drift, by which a leader stops before others may start."""

_MOMENT_S = 0.001
"""Sleeps are not shorter than this: of what is left of a lease, rounding may leave less than any clock can tell."""


class Election:
    def __init__(
        self,
        client: Client,
        name: str,
        identity: str,
        ports: Ports,
        *,
        ttl_s: float = limits.LEADER_TTL_S,
        renew_every_s: float = limits.LEADER_RENEW_EVERY_S,
    ) -> None:
        if renew_every_s * 2 > ttl_s:
            raise ValueError(f"election {name}: renewing every {renew_every_s} s leaves no second try in {ttl_s} s")
        self.name = name
        self.identity = identity
        self._client = client
        self._clock = ports.clock
        self._chance = ports.random
        self._ttl_s = ttl_s
        self._renew_every_s = renew_every_s
        self._valid_until = 0.0
        """On our monotonic clock. Whatever else is believed, nothing is written under the token after this."""
        self._token: FencingToken | None = None
        self._lease: Lease | None = None
        self._observed = (-1, 0.0)
        """A contender's evidence: the lease's revision, and since when we know it unchanged."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger().bind(election=name, identity=identity, cell=client.cell)
        self._flag = metrics.ELECTION_LEADING.labels(name)

    # What others ask

    @property
    def leading(self) -> bool:
        return self.token is not None

    @property
    def token(self) -> FencingToken | None:
        """The token to write under, or None. Looks at the clock each time: a stalled process stops at once."""
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
        """Runs `work` once in every term of this process, until cancelled. The end of the term cancels `work`; the next
        term begins after `work` has ended. What `work` raises is raised here."""
        while True:
            token = await self.wait_until_leading()
            working = asyncio.create_task(work(token), name=f"term {self.name}")
            lost = asyncio.create_task(self.wait_until_not_leading(), name=f"end of term {self.name}")
            try:
                await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    working.result()
                    await lost
            finally:
                await cancel_and_wait(None if working.done() else working, lost)

    def token_rejected(self, token: FencingToken) -> None:
        """A write under this token was refused as stale: someone else leads."""
        if token == self._token:
            self._lose("StaleToken")

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"election {self.name}")

    async def stop(self) -> None:
        """Stops contending; a leader first gives its lease back, so that the next need not wait for its TTL."""
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
            # Whatever failed may have left work half done under this lease: let it run out.
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
                # Wake at the latest when the lease runs out, to tell everyone who waits for it.
                left_s = self._valid_until - self._clock.monotonic()
                if left_s <= 0.0:
                    self._lose("ran out")
                pause_s = min(pause_s, max(left_s, _MOMENT_S))
            await self._clock.sleep(pause_s)

    async def _step(self) -> float:
        """One renewal or one look at the lease. Answers how long to wait before the next."""
        token = self._token
        if token is not None and self._lease is not None:
            if self.token is None:
                self._lose("ran out")
                return 0.0
            try:
                async with asyncio.timeout(min(self._left_s(), self._renew_every_s)):
                    await self._renew(self._lease, token)
            except (TimeoutError, Conflict, Ambiguous):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._left_s())):
                        await self._look_again(token)
                return self._renew_every_s / 5
            return self._renew_every_s
        if await self._may_take_over():
            await self._take_over()
            return self._renew_every_s
        return self._renew_every_s / 2

    async def _renew(self, lease: Lease, token: FencingToken) -> None:
        sent = self._clock.monotonic()
        spec = msgspec.structs.replace(lease.spec, renew_time=micro_text(self._clock.now()))
        done = await self._client.commit([Update(msgspec.structs.replace(lease, spec=spec))], token=token)
        renewed = done.objects[0]
        assert isinstance(renewed, Lease)
        if self.token is None:
            # Answered too late: work was refused for want of a token already, so this term is over for everyone here.
            self._lose("renewed too late")
            return
        self._lease = renewed
        self._valid_until = sent + self._held_s()

    async def _look_again(self, token: FencingToken) -> None:
        """A renewal went unanswered, or met another revision: perhaps our own. Extends nothing by itself."""
        lease = await self._client.get(Lease, self.name, NAMESPACE)
        term = await self._client.get(Term, self.name)
        holds = lease is not None and lease.spec.holder_identity == self.identity
        if not holds or term is None or term.revision != token.revision:
            self._lose("taken")
        else:
            self._lease = lease

    async def _may_take_over(self) -> bool:
        """Whether the lease is free, ours from before, or has been unchanged for a whole TTL while we looked."""
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
            holder_identity=self.identity, lease_duration_seconds=math.ceil(self._ttl_s),
            acquire_time=at, renew_time=at,
            lease_transitions=0 if lease is None else lease.spec.lease_transitions + 1,
        )  # fmt: skip
        writes: list[Write] = []
        if lease is None:
            writes.append(Create(Lease(metadata=ObjectMeta(name=self.name, namespace=NAMESPACE), spec=spec)))
        else:
            writes.append(Update(msgspec.structs.replace(lease, spec=spec)))
        if term is None:
            writes.append(Create(Term(metadata=ObjectMeta(name=self.name), spec=TermSpec(holder=self.identity))))
        else:
            risen = TermSpec(holder=self.identity, term=term.spec.term + 1)
            writes.append(Update(msgspec.structs.replace(term, spec=risen)))
        sent = self._clock.monotonic()
        done = await self._client.commit(writes)
        taken, risen_term = done.objects
        assert isinstance(taken, Lease) and isinstance(risen_term, Term)
        self._lease, self._token = taken, FencingToken(self.name, risen_term.revision)
        self._valid_until = sent + self._held_s()
        self._observed = (-1, 0.0)
        if self.token is not None:
            self._log.info("election_won", term=risen_term.spec.term, token=risen_term.revision)
            metrics.ELECTION_CHANGES.labels(self.name, "won").inc()
            self._tell(self._token)

    def _held_s(self) -> float:
        return self._ttl_s * (1.0 - limits.CLOCK_DRIFT - _MARGIN)

    def _left_s(self) -> float:
        return self._valid_until - self._clock.monotonic()

    def _lose(self, why: str) -> None:
        if self._token is None:
            return
        self._token, self._lease = None, None
        self._log.info("election_lost", why=why)
        metrics.ELECTION_CHANGES.labels(self.name, "lost").inc()
        self._tell(None)

    def _tell(self, token: FencingToken | None) -> None:
        self._flag.set(0 if token is None else 1)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _next_change(self) -> None:
        """Waits until the election is won or lost. A lease that runs out is told of in time: no step outlasts it."""
        await self._changed.wait()
