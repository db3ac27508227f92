"""Mutations of leases, fences and watchdogs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.agent import task_decision
from holdfast.agent.registration import Registration
from holdfast.agent.supervisor import TaskSupervisor
from holdfast.agent.task_transitions import ACTIVE_STATES
from holdfast.authority.heartbeats import Heartbeats
from holdfast.authority.lease_book import LeaseBook
from holdfast.model import limits
from holdfast.sim.mutations.patch import Mutation, Patch

FAR_S = 1e9
LATE_S = 20.0
FRESH_S = 60.0


def heartbeat_trusted(patch: Patch) -> None:
    """A node is fenced after one missed heartbeat."""
    patch.set(LeaseBook, "grace_s", property(lambda self: limits.NODE_RENEW_EVERY_S * 1.25 + 2.0))


def no_watchdog(patch: Patch) -> None:
    _replace_task_deadlines(patch, lambda until_mono_s: FAR_S)


def watchdog_late(patch: Patch) -> None:
    """The watchdog stops exclusive tasks twenty seconds after the lease has expired."""
    _replace_task_deadlines(patch, lambda until_mono_s: until_mono_s + LATE_S)


def _replace_task_deadlines(patch: Patch, allowed: Callable[[float], float]) -> None:
    """Watchdogs get another deadline than the lease, and the agent itself does not stop tasks."""

    def permit(self: TaskSupervisor) -> None:
        lease = self._registration.lease
        for driver in self._drivers.values():
            driver.set_lease(lease.epoch, allowed(lease.expires_mono_s))
        for unit in self._units.values():
            end_mono_s = self._tenure_end(unit)
            if end_mono_s is not None and unit.driver is not None and unit.observation.state in ACTIVE_STATES:
                unit.driver.set_run_until(unit.id, allowed(end_mono_s))

    patch.set(TaskSupervisor, "_set_leases", permit)
    patch.set(task_decision, "_decide_leased", lambda *_: task_decision.TaskDecision())


def counted_from_reply(patch: Patch) -> None:
    """The agent measures its lease from the response, and the safety margins of authority and agent are removed."""
    apply_response = Registration.__dict__["_apply_response"]

    def applied_late(self: Registration, answer: Any, sent_mono_s: float) -> Any:
        return apply_response(self, answer, self._clock.monotonic())

    patch.set(Registration, "_apply_response", applied_late)
    patch.set(LeaseBook, "grace_s", property(lambda self: self.ttl_s))
    patch.set(task_decision, "_decide_leased", lambda *_: task_decision.TaskDecision())
    patch.set(task_decision, "WATCHDOG_KILL_LEAD_S", 0.0)


def start_with_fresh_deadline(patch: Patch) -> None:
    """A started task gets a deadline of one minute, whatever remains of the lease."""
    start = TaskSupervisor.__dict__["_start"]

    def of_its_own(self: TaskSupervisor, unit: Any, run: int) -> None:
        start(self, unit, run)
        for driver in self._drivers.values():
            driver.set_lease(self._registration.lease.epoch, self._clock.monotonic() + FRESH_S)

    patch.set(TaskSupervisor, "_start", of_its_own)
    patch.set(task_decision, "_can_start", lambda binding, lease, now: True)


def takeover_fences_at_once(patch: Patch) -> None:
    """A new authority trusts the recorded lease times and fences without waiting a full lease."""
    load = LeaseBook.__dict__["load"]

    def hasty(self: LeaseBook, pages: Any, now_s: float, monotonic_s: float) -> None:
        load(self, pages, now_s, monotonic_s)
        for entry in self.by_node.values():
            entry.counted_from_s = monotonic_s - FAR_S

    patch.set(LeaseBook, "load", hasty)


def removed_node_unnoticed(patch: Patch) -> None:
    patch.set(Heartbeats, "_was_removed", lambda *_: False)
    ensure = Registration.__dict__["_ensure_node"]

    async def once(self: Registration) -> None:
        if self.node is None:
            await ensure(self)

    patch.set(Registration, "_ensure_node", once)


TABLE = (
    Mutation(
        "one-missed-heartbeat-fences",
        "a node is fenced after one missed heartbeat",
        heartbeat_trusted,
        "repair trusts a missed heartbeat",
    ),
    Mutation(
        "no-watchdog",
        "exclusive tasks are not stopped when the lease expires",
        no_watchdog,
        "no watchdog for exclusive work",
    ),
    Mutation(
        "watchdog-late",
        "the watchdog's deadline is later than the lease",
        watchdog_late,
        "watchdog deadline later than the lease",
    ),
    Mutation(
        "lease-counted-from-reply",
        "the lease is measured from the response, without a safety margin",
        counted_from_reply,
        "deadline counted from the reply, not the request",
        scenario="leases-run-out",
    ),
    Mutation(
        "start-with-fresh-deadline",
        "a started task gets its own deadline instead of the lease's",
        start_with_fresh_deadline,
        "start uses a fresh deadline of its own",
    ),
    Mutation("takeover-fences-at-once", "a new authority fences without waiting a full lease", takeover_fences_at_once),
    Mutation("removed-node-not-noticed", "an agent does not notice that its Node was deleted", removed_node_unnoticed),
)
