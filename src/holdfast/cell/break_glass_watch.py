"""Counts break-glass sessions for alerts, and writes a warning Event for each new one, as a component of a cell."""

from __future__ import annotations

from typing import Any

import structlog

from holdfast.foundation import metrics
from holdfast.foundation.ports import Ports
from holdfast.gate.events import EventLog
from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_NAME
from holdfast.model.writes import Notice
from holdfast.store.objects import Objects

# Interval at which sessions are counted. An alert is later by at most this much.
BREAK_GLASS_COUNT_EVERY_S = 2.0

_KIND = BY_NAME["BreakGlassSession"]
_log = structlog.get_logger()


class BreakGlassWatch:
    def __init__(self, objects: Objects, events: EventLog, ports: Ports) -> None:
        self._objects = objects
        self._events = events
        self._ports = ports
        self._seen: set[str] | None = None
        """Sessions that were announced; None before the first count."""

    async def start(self) -> None:
        metrics.BREAK_GLASS_SESSIONS.labels("open").set(0)
        metrics.BREAK_GLASS_SESSIONS.labels("unreviewed").set(0)

    async def run(self) -> None:
        while True:
            await self.count()
            await self._ports.clock.sleep(BREAK_GLASS_COUNT_EVERY_S)

    async def stop(self) -> None:
        """Nothing to stop: the gauges end with the process."""

    async def count(self) -> None:
        sessions: list[Any] = self._objects.list(_KIND)[0]
        now_s = self._ports.clock.now()
        in_force = [s for s in sessions if not s.spec.closed and now_s < s.ends_s]
        metrics.BREAK_GLASS_SESSIONS.labels("open").set(len(in_force))
        metrics.BREAK_GLASS_SESSIONS.labels("unreviewed").set(sum(1 for s in sessions if s.spec.review is None))
        # One that was opened and closed between two counts is announced as well. Ended ones from before are not.
        new = in_force if self._seen is None else [s for s in sessions if s.uid not in self._seen]
        self._seen = {session.uid for session in sessions}
        notices = []
        for session in new:
            scope = f"tenant {session.spec.tenant}" if session.spec.tenant else "all tenants"
            text = f"{session.spec.requester} opened break-glass access to {scope}: {session.spec.reason}"
            _log.warning("break_glass_opened", session=session.metadata.name, user=session.spec.requester, scope=scope)
            notices.append(Notice(about=session, reason="BreakGlassOpened", message=text, warning=True))
        if notices:
            try:
                await self._events.record(notices, component="break-glass")
            except Fault as fault:
                _log.warning("break_glass_event_failed", reason=fault.reason)
