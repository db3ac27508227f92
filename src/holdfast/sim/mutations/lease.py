"""Mistakes with leases, fences and watchdogs."""

from __future__ import annotations

from typing import Any

from holdfast.agent import decide
from holdfast.agent.registration import Registration
from holdfast.agent.supervisor import Supervisor
from holdfast.authority.heartbeats import Heartbeats
from holdfast.authority.leases import LeaseBook

FAR_S = 1e9


def heartbeat_trusted(patch: Any) -> None:
    """A node that missed one heartbeat counts as gone."""
    patch.set(LeaseBook, "grace_s", property(lambda self: self.ttl_s * 0.4))


def no_watchdog(patch: Any) -> None:
    def permit(self: Any) -> None:
        for driver in self._drivers.values():
            driver.permit(self._registration.lease.epoch, FAR_S)

    patch.set(Supervisor, "_permit", permit)
    patch.set(decide, "_while_leased", lambda *_: decide.Verdict())


def watchdog_late(patch: Any) -> None:
    """The watchdog lets exclusive work run on for twenty seconds after the lease has ended."""

    def permit(self: Any) -> None:
        lease = self._registration.lease
        for driver in self._drivers.values():
            driver.permit(lease.epoch, lease.until_mono_s + 20.0)

    patch.set(Supervisor, "_permit", permit)
    patch.set(decide, "_while_leased", lambda *_: decide.Verdict())


def counted_from_reply(patch: Any) -> None:
    """The holder counts its lease from the answer, and is generous."""
    heard = Registration.__dict__["_heard"]

    def late(self: Any, answer: Any, sent_mono_s: float) -> Any:
        return heard(self, answer, self._clock.monotonic() + 10.0)

    patch.set(Registration, "_heard", late)


def takeover_fences_at_once(patch: Any) -> None:
    """A new authority takes the age of leases from their records, and fences without waiting a full term."""
    load = LeaseBook.__dict__["load"]

    def hasty(self: Any, pages: Any, now_s: float, monotonic_s: float) -> None:
        load(self, pages, now_s, monotonic_s)
        for held in self.held.values():
            held.counted_from_s = monotonic_s - FAR_S

    patch.set(LeaseBook, "load", hasty)


def removed_node_unnoticed(patch: Any) -> None:
    patch.set(Heartbeats, "_was_removed", lambda *_: False)
    ensure = Registration.__dict__["_ensure_node"]

    async def once(self: Any) -> None:
        if self.node is None:
            await ensure(self)

    patch.set(Registration, "_ensure_node", once)


TABLE = (
    ("heartbeat-trusted", "one missed heartbeat counts as proof that a node is gone", heartbeat_trusted),
    ("no-watchdog", "nothing ends exclusive work whose lease has ended", no_watchdog),
    ("watchdog-late", "the watchdog's deadline is later than the lease", watchdog_late),
    ("counted-from-reply", "the lease is counted from the reply, and a little more", counted_from_reply),
    ("takeover-fences-at-once", "a new authority does not wait a term before it fences", takeover_fences_at_once),
    ("removed-node-unnoticed", "an agent does not notice that its node was removed", removed_node_unnoticed),
)
