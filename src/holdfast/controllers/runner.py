"""Runs one controller: wakes it, lets it decide, and carries out what it decided.

What always holds:

- One worker decides all keys, from the cache, and after a commit never again before the cache holds what
  that commit wrote: a decision is not repeated because its own effect was not seen yet. (A commit to the peer cell
  answers without objects, to save the link: there a decision may be repeated, and must be harmless.)
- All writes of one decision are one commit. Releases and notices follow only after it.
- With an election it decides and writes only while the election is won, and under its token; before its first decision
  as leader it lists everything it reads, so that it builds on what its predecessor committed.
- A failed key is tried again with a pause that grows; no failure stops the controller or another key.
- A controller of the link (`peer_wakes`) decides keys that come within `limits.LINK_FLUSH_EVERY_S` together, at most
  `limits.LINK_BATCH` at a time, and pauses as a whole while a cell does not answer, up to `limits.RECONNECT_MAX_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from holdfast.client.contract import Client, FencingToken
from holdfast.controllers.apply_outcome import KeyOutcome, OutcomeApplier
from holdfast.controllers.cache import CacheChange
from holdfast.controllers.controller import Controller, Wake
from holdfast.controllers.declared_view import DeclaredView
from holdfast.controllers.informer import Informers
from holdfast.controllers.leader_election import Election
from holdfast.controllers.workqueue import QueueClosed, Workqueue
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.errors import Fault, StaleToken
from holdfast.model.meta import Key


class Runner:
    def __init__(
        self,
        controller: Controller,
        client: Client,
        informers: Informers,
        ports: Ports,
        election: Election | None = None,
        *,
        peer: Informers | None = None,
    ) -> None:
        """`client` writes to the cell that the controller writes to; `peer` follows the other cell of a link."""
        self.controller = controller
        self._resync_s = controller.resync_s
        if controller.resync_s >= limits.RESYNC_S:  # what looks more often does so for the sake of time
            self._resync_s = max(controller.resync_s, informers.resync_s)
        self._linked = bool(controller.peer_wakes)
        self.queue = Workqueue(
            controller.name,
            ports,
            max_s=limits.RECONNECT_MAX_S if self._linked else limits.BACKOFF_MAX_S,
            pace_s=controller.min_interval_s,
            calm_s=controller.debounce_s,
            gather_s=limits.LINK_FLUSH_EVERY_S if self._linked else 0.0,
        )
        self._ports = ports
        self._election = election
        self._informers = informers
        self._reads: tuple[type[Any], ...] = tuple(dict.fromkeys((*controller.wakes, *controller.reads)))
        self._view = DeclaredView(
            controller.name, informers.cache, frozenset(self._reads), ordered=controller.sees_earlier_statuses
        )  # fmt: skip
        if peer is not None:
            self._view.attach_peer(DeclaredView(controller.name, peer.cache, frozenset(controller.peer_wakes)))
        self._target_view = self._view.peer if controller.writes_peer else self._view
        """The view of the cell that it writes to."""
        target = peer if controller.writes_peer and peer is not None else informers
        self._log = structlog.get_logger().bind(controller=controller.name, cell=client.cell)
        self._carrier = OutcomeApplier(
            controller.name, client=client, informers=target, queue=self.queue, ports=ports,
            token=self._token, refuted=self._refuted, linked=self._linked, brief=controller.writes_peer,
        )  # fmt: skip
        self._active = False
        """Whether wake-ups are taken. While another process leads they are not: winning looks at every key anyway."""
        self._run_task: asyncio.Task[None] | None = None
        self._decisions = metrics.CONTROLLER_DECISIONS.labels(controller.name)
        self._duration = metrics.CONTROLLER_DURATION.labels(controller.name)
        self._panics = metrics.CONTROLLER_ERRORS.labels(controller.name, "Panic")
        for kind in self._reads:
            informers.of(kind)
        for kind, wake in controller.wakes.items():
            informers.of(kind).on_change(self._waker(wake))
        if peer is not None:
            for kind, wake in controller.peer_wakes.items():
                peer.of(kind).on_change(self._waker(wake))

    async def start(self) -> None:
        """Starts in the background; decides as soon as the caches are filled and the election is won."""
        if self._run_task is None:
            self._run_task = asyncio.create_task(self.run(), name=f"runner {self.controller.name}")

    async def stop(self) -> None:
        """Lets commits under way end, within a deadline, and stops."""
        self._active = False
        self.queue.clear()
        deadline = self._ports.clock.monotonic() + limits.STOP_DEADLINE_S
        while self._run_task is not None and not self.queue.idle and self._ports.clock.monotonic() < deadline:
            await self._ports.clock.sleep(0.01)
        task, self._run_task = self._run_task, None
        await cancel_and_wait(task)
        self.queue.close()

    # Terms of office

    def _token(self) -> FencingToken | None:
        """What to write under. Raises StaleToken when this process does not lead (any more)."""
        if self._election is None:
            return None
        token = self._election.token
        if token is None:
            raise StaleToken(f"{self.controller.name}: this process does not lead {self._election.name} at the moment")
        return token

    def _refuted(self, token: FencingToken | None) -> None:
        if self._election is not None and token is not None:
            self._election.token_rejected(token)

    async def run(self) -> None:
        """Runs until cancelled, in the foreground. The link calls it in place of `start`, each time it comes up."""
        await self._informers.synced()
        if self._election is None:
            await self._act()
        else:
            await self._election.while_leading(self._lead)

    async def _lead(self, token: FencingToken) -> None:
        await self._catch_up()
        await self._act()

    async def _act(self) -> None:
        """One term: look at everything, then follow."""
        self._active = True
        self.resync_now()
        worker = asyncio.create_task(self._work(), name=f"worker {self.controller.name}")
        try:
            while True:
                await self._ports.clock.sleep(jittered_s(self._resync_s, self._ports.random))
                self.resync_now()
        finally:
            self._active = False
            self.queue.clear()
            # A commit under way may still arrive; its token says whether it counts, and the next term lists first.
            await cancel_and_wait(worker)

    async def _catch_up(self) -> None:
        backoff = Backoff(self._ports.random, max_s=limits.RECONNECT_MAX_S)
        while True:
            try:
                await self._informers.refresh(self._reads)
            except Fault as fault:
                self._log.info("catch_up_failed", reason=fault.reason, message=fault.message)
            except Exception:
                self._log.exception("catch_up_failed", reason="Failed")
            else:
                return
            await self._ports.clock.sleep(backoff.next_s())

    # Waking

    def _waker(self, wake: Wake) -> Any:
        add = self.queue.add

        def woken(changes: Sequence[CacheChange[Any]]) -> None:
            if not self._active:
                return
            for new, old in changes:
                try:
                    for key in wake(new, old, self._view):
                        add(key)
                except Exception:
                    item = new if new is not None else old
                    self._panics.inc()
                    self._log.exception("wake_function_failed", object=str(item.key) if item is not None else "")

        return woken

    def resync_now(self) -> None:
        """Adds every key, as a resync does."""
        try:
            self.queue.add_all(self.controller.keys(self._view))
        except Exception:
            self._panics.inc()
            self._log.exception("resync_failed")

    # Working

    async def _work(self) -> None:
        most = limits.LINK_BATCH_MAX if self._linked else limits.PLACEMENT_BATCH_MAX if self.controller.batch else 1
        clock = self._ports.clock
        backoff = Backoff(self._ports.random, max_s=limits.RECONNECT_MAX_S)
        while True:
            unanswered = self._carrier.unanswered
            try:
                keys = await self.queue.take(most)
            except QueueClosed:
                return
            began = clock.monotonic()
            try:
                self._target_view.begin_pass()
                decided = [made for key in keys if (made := await self._decide(key)) is not None]
                await self._carrier.apply(decided)
            except Exception:
                # Not a decision's mistake but ours; the keys are not lost for it.
                self._panics.inc()
                self._log.exception("pass_failed", keys=len(keys))
                for key in keys:
                    self.queue.retry(key)
            finally:
                for key in keys:
                    self.queue.done(key)
            self._duration.observe(max(0.0, clock.monotonic() - began))
            if not decided or not any(made.outcome.writes for made in decided):
                # A pass without a commit never waits: let others have the loop.
                await asyncio.sleep(0)
            if self._carrier.unanswered == unanswered:
                backoff.reset()
            elif self._linked:
                await clock.sleep(backoff.next_s())

    async def _decide(self, key: Key) -> KeyOutcome | None:
        self._decisions.inc()
        try:
            if self.controller.prepare is not None:
                await self.controller.prepare(key)
        except Fault as fault:
            pause_s = self.queue.retry(key)
            facts = {"reason": fault.reason, "message": fault.message, "again_in_s": round(pause_s, 3)}
            self._log.info("decision_put_off", object=str(key), **facts)
            return None
        try:
            outcome = self.controller.decide(key, self._view, self._ports.clock.now())
            self._target_view.assume(outcome.writes)
            return KeyOutcome(key, outcome)
        except Exception:
            self._panics.inc()
            pause_s = self.queue.retry(key)
            self._log.exception("decision_failed", object=str(key), again_in_s=round(pause_s, 3))
            return None
