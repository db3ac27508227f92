"""Runs one controller: queues the keys its watches wake, calls `decide`, applies the outcomes.

- One worker decides all keys from the cache. After a commit it decides again only when the cache holds the written
  objects, so a decision never repeats its own effect. (Commits to the peer cell return no objects; there a decision may
  repeat and must be idempotent.)
- All writes of one decision are one commit. Releases and events follow it.
- With an election it decides and writes only while leading, under the fencing token. Before its first decision as
  leader it lists everything it reads.
- A failed key is retried with backoff; no failure stops the controller or another key.
- A link controller batches keys of `LINK_FLUSH_EVERY_S`: reports always, copies in a burst. It pauses as a whole while
  a cell does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from holdfast.client.contract import Client, FencingToken
from holdfast.controllers.apply_outcome import KeyOutcome, OutcomeApplier
from holdfast.controllers.cache import CacheChange
from holdfast.controllers.controller import Controller, Wake
from holdfast.controllers.declared_view import DeclaredView
from holdfast.controllers.informer import Informers
from holdfast.controllers.leader_election import Election
from holdfast.controllers.lifetime import STOP_DEADLINE_S
from holdfast.controllers.workqueue import QueueClosed, Workqueue
from holdfast.foundation import metrics
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.ports import Ports
from holdfast.foundation.tasks import cancel_and_wait
from holdfast.model import limits
from holdfast.model.errors import Fault, StaleToken
from holdfast.model.meta import Key

# Keys that the link delivers in one transaction. The rest follows in the next one.
LINK_BATCH_MAX = limits.BATCH_WRITES_MAX
# Keys per second that a periodic resync queues. With more keys than that in `resync_s`, a resync takes longer.
RESYNC_KEYS_PER_S = 500


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
        """`client` belongs to the cell that the controller writes to; `peer` follows the other cell of the link."""
        self.controller = controller
        self._resync_s = controller.resync_s
        if controller.resync_s >= limits.RESYNC_S:  # a shorter interval is a matter of time, not of lost events
            self._resync_s = max(controller.resync_s, informers.resync_s)
        self._is_link = bool(controller.peer_wakes)
        self.queue = Workqueue(
            controller.name,
            ports,
            max_s=limits.RECONNECT_MAX_S if self._is_link else limits.BACKOFF_MAX_S,
            min_interval_s=controller.min_interval_s,
            debounce_s=controller.debounce_s,
            settle_s=controller.settle_s,
            batch_delay_s=limits.LINK_FLUSH_EVERY_S if self._is_link else 0.0,
            batches_always=controller.writes_peer,  # reports follow each other; copies are waited for
        )
        self._ports = ports
        self._election = election
        self._informers = informers
        self._reads: tuple[type[Any], ...] = tuple(dict.fromkeys((*controller.wakes, *controller.reads)))
        self._view = DeclaredView(
            controller.name,
            informers.cache,
            frozenset(self._reads),
            sees_earlier_statuses=controller.sees_earlier_statuses,
        )
        if peer is not None:
            self._view.attach_peer(DeclaredView(controller.name, peer.cache, frozenset(controller.peer_wakes)))
        self._target_view = self._view.peer if controller.writes_peer else self._view
        """The view of the cell that the controller writes to."""
        target = peer if controller.writes_peer and peer is not None else informers
        self._log = structlog.get_logger().bind(controller=controller.name, cell=client.cell)
        self._applier = OutcomeApplier(
            controller.name,
            client=client,
            informers=target,
            queue=self.queue,
            ports=ports,
            token=self._token,
            token_rejected=self._token_rejected,
            is_link=self._is_link,
            brief=controller.writes_peer,
        )
        self._active = False
        """Whether wake-ups are queued. Not while another process leads: a new leader queues all keys anyway."""
        self._run_task: asyncio.Task[None] | None = None
        self._decisions = metrics.CONTROLLER_DECISIONS.labels(controller.name)
        self._duration = metrics.CONTROLLER_DURATION.labels(controller.name)
        self._panics = metrics.CONTROLLER_ERRORS.labels(controller.name, "Panic")
        for kind in self._reads:
            informers.of(kind)
        for kind, wake in controller.wakes.items():
            informers.of(kind).on_change(self._change_handler(wake))
        if peer is not None:
            for kind, wake in controller.peer_wakes.items():
                peer.of(kind).on_change(self._change_handler(wake))

    async def start(self) -> None:
        """Starts in the background; decides as soon as the caches are synced and the election is won."""
        if self._run_task is None:
            self._run_task = asyncio.create_task(self.run(), name=f"runner {self.controller.name}")

    async def stop(self) -> None:
        """Waits for commits in flight, within a deadline, and stops."""
        self._active = False
        self.queue.clear()
        deadline = self._ports.clock.monotonic() + STOP_DEADLINE_S
        while self._run_task is not None and not self.queue.idle and self._ports.clock.monotonic() < deadline:
            await self._ports.clock.sleep(0.01)
        task, self._run_task = self._run_task, None
        await cancel_and_wait(task)
        self.queue.close()

    # Leadership

    def _token(self) -> FencingToken | None:
        """The fencing token. Raises StaleToken if this process does not lead."""
        if self._election is None:
            return None
        token = self._election.token
        if token is None:
            raise StaleToken(f"controller {self.controller.name}: this process does not lead {self._election.name}")
        return token

    def _token_rejected(self, token: FencingToken | None) -> None:
        if self._election is not None and token is not None:
            self._election.token_rejected(token)

    async def run(self) -> None:
        """Runs in the foreground until cancelled. The link calls it instead of `start`, on each connection."""
        await self._informers.synced()
        if self._election is None:
            await self._run_term()
        else:
            await self._election.while_leading(self._lead)

    async def _lead(self, token: FencingToken) -> None:
        await self._refresh_caches()
        await self._run_term()

    async def _run_term(self) -> None:
        """One term of leadership: queues all keys, then follows changes."""
        self._active = True
        self.resync_now()
        worker = asyncio.create_task(self._work(), name=f"worker {self.controller.name}")
        try:
            while True:
                await self._ports.clock.sleep(jittered_s(self._resync_s, self._ports.random))
                await self._resync()
        finally:
            self._active = False
            self.queue.clear()
            # A commit in flight may still land; its token decides whether it counts, and the next term lists first.
            await cancel_and_wait(worker)

    async def _refresh_caches(self) -> None:
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

    def _change_handler(self, wake: Wake) -> Any:
        add = self.queue.add

        def on_changes(changes: Sequence[CacheChange[Any]]) -> None:
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

        return on_changes

    def resync_now(self) -> None:
        """Queues all keys."""
        self.queue.add_all(self._keys())

    async def _resync(self) -> None:
        """Queues all keys, RESYNC_KEYS_PER_S in a second, so that those of a large cell delay no change."""
        keys = list(self._keys())
        for start in range(0, len(keys), RESYNC_KEYS_PER_S):
            if start:
                await self._ports.clock.sleep(1.0)
            self.queue.add_all(keys[start : start + RESYNC_KEYS_PER_S])

    def _keys(self) -> Iterable[Key]:
        try:
            return self.controller.keys(self._view)
        except Exception:
            self._panics.inc()
            self._log.exception("resync_failed")
            return ()

    # Working

    async def _work(self) -> None:
        most = LINK_BATCH_MAX if self._is_link else limits.PLACEMENT_BATCH_MAX if self.controller.batch else 1
        clock = self._ports.clock
        backoff = Backoff(self._ports.random, max_s=limits.RECONNECT_MAX_S)
        while True:
            unanswered = self._applier.unanswered
            try:
                keys = await self.queue.take(most)
            except QueueClosed:
                return
            started = clock.monotonic()
            try:
                self._target_view.begin_pass()
                outcomes = [outcome_of_key for key in keys if (outcome_of_key := await self._decide(key)) is not None]
                await self._applier.apply(outcomes)
            except Exception:
                # A bug of the runtime, not of a decision; the keys are retried.
                self._panics.inc()
                self._log.exception("pass_failed", keys=len(keys))
                for key in keys:
                    self.queue.retry(key)
            finally:
                pause_s = self.controller.pause_per_pass * (clock.monotonic() - started)
                for key in keys:
                    self.queue.done(key, pause_s=pause_s)
            self._duration.observe(max(0.0, clock.monotonic() - started))
            if not outcomes or not any(outcome_of_key.outcome.writes for outcome_of_key in outcomes):
                # A pass without a commit does not await anything: yield to other tasks.
                await asyncio.sleep(0)
            if self._applier.unanswered == unanswered:
                backoff.reset()
            elif self._is_link:
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
