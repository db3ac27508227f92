"""Flow control: a priority level per kind of client, and fairness between tenants within a level.

Agents, controllers and operators have levels of their own, so that user requests cannot delay a heartbeat, a repair or
a break-glass override. A full level responds 429 with Retry-After at once: no request waits without a bound.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

import msgspec

from holdfast.foundation import metrics
from holdfast.model.errors import Overloaded
from holdfast.model.ownership import AGENT
from holdfast.model.principal import CONTROLLERS, OPERATORS, REGIONS, VIEWERS, Principal


class PriorityLevel(msgspec.Struct, frozen=True):
    """One priority level: concurrent requests, queue length, queue timeout, and watches per client."""

    name: str
    max_running: int
    max_queued: int
    queue_timeout_s: float
    max_watches_per_client: int


PRIORITY_LEVELS: dict[str, PriorityLevel] = {
    lane.name: lane
    for lane in (
        PriorityLevel("agents", max_running=512, max_queued=8192, queue_timeout_s=10.0, max_watches_per_client=64),
        PriorityLevel(
            "controllers", max_running=256, max_queued=4096, queue_timeout_s=10.0, max_watches_per_client=4096
        ),
        PriorityLevel("operators", max_running=64, max_queued=1024, queue_timeout_s=15.0, max_watches_per_client=1024),
        PriorityLevel("users", max_running=64, max_queued=512, queue_timeout_s=5.0, max_watches_per_client=512),
    )
}
# Open watches of users per server, and of one hollow host. More are refused with 429.
WATCHES_MAX = 20_000
FLOW_QUEUE_DIVISOR = 4
"""One flow may fill at most 1/FLOW_QUEUE_DIVISOR of a level's queue, so that other flows find room."""


def priority_level_of(who: Principal) -> str:
    if AGENT in who.roles:
        return "agents"
    if CONTROLLERS in who.groups or REGIONS in who.groups:
        return "controllers"
    if OPERATORS in who.groups or VIEWERS in who.groups:
        return "operators"
    return "users"


def flow_key(who: Principal, namespace: str) -> str:
    """The flow of a request: one per tenant, however many users and requests it has."""
    if namespace and namespace in who.tenants:
        return f"tenant:{namespace}"
    return next((f"tenant:{t}" for t in sorted(who.tenants)), who.name)


class _Queue:
    """One priority level at run time. Queued flows are served round-robin, one request each."""

    def __init__(self, lane: PriorityLevel) -> None:
        self.lane = lane
        self.running = 0
        self.waiting = 0
        self._flows: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        metrics.SERVER_RUNNING.labels(lane.name).set_function(lambda: self.running)
        self._refused = metrics.SERVER_REFUSED.labels(lane.name)

    async def enter(self, flow: str) -> None:
        if self.running < self.lane.max_running and not self.waiting:
            self._occupy()
            return
        own_queue = self._flows.get(flow)
        if self.waiting >= self.lane.max_queued or (
            own_queue is not None and len(own_queue) >= self.lane.max_queued // FLOW_QUEUE_DIVISOR
        ):
            raise self._overloaded()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flows.setdefault(flow, deque()).append(turn)
        self.waiting += 1
        try:
            async with asyncio.timeout(self.lane.queue_timeout_s):
                await turn
        except TimeoutError:
            if self._withdraw(flow, turn):
                raise self._overloaded() from None
            self.leave()  # it was admitted at the same moment
            raise self._overloaded() from None
        except asyncio.CancelledError:
            if not self._withdraw(flow, turn):
                self.leave()
            raise

    def leave(self) -> None:
        self.running -= 1
        while self._flows and self.running < self.lane.max_running:
            flow, turns = next(iter(self._flows.items()))
            turn = turns.popleft()
            self.waiting -= 1
            if turns:
                self._flows.move_to_end(flow)
            else:
                del self._flows[flow]
            if not turn.done():
                self._occupy()
                turn.set_result(None)

    def _occupy(self) -> None:
        self.running += 1

    def _withdraw(self, flow: str, turn: asyncio.Future[None]) -> bool:
        """Removes a queued request. Returns False if it was already admitted."""
        turns = self._flows.get(flow)
        if turns is None or turn not in turns:
            return False
        turns.remove(turn)
        self.waiting -= 1
        if not turns:
            del self._flows[flow]
        return True

    def _overloaded(self) -> Overloaded:
        self._refused.inc()
        message = f"too many requests at priority level {self.lane.name}; next: retry later"
        return Overloaded(message, retry_after_s=1.0)


class _Seat:
    """One request's seat in a priority level, from admission until the response."""

    __slots__ = ("_flow", "_queue")

    def __init__(self, queue: _Queue, flow: str) -> None:
        self._queue = queue
        self._flow = flow

    async def __aenter__(self) -> None:
        await self._queue.enter(self._flow)

    async def __aexit__(self, *_: object) -> None:
        self._queue.leave()


class FlowControl:
    def __init__(self) -> None:
        self._queues = {name: _Queue(lane) for name, lane in PRIORITY_LEVELS.items()}
        self._watches: dict[str, int] = {}
        self._all_watches = 0

    def admit(self, who: Principal, namespace: str) -> _Seat:
        """A context manager: entering it waits until the request may run, or raises Overloaded."""
        return _Seat(self._queues[priority_level_of(who)], flow_key(who, namespace))

    def open_watch(self, who: Principal) -> None:
        """Counts a new watch or refuses it. Watches hold no seat: they wait for events, not for the server."""
        lane = PRIORITY_LEVELS[priority_level_of(who)]
        held = self._watches.get(who.name, 0)
        # A hollow host represents thousands of nodes, each with its own watches.
        most = WATCHES_MAX if who.node.endswith("*") else lane.max_watches_per_client
        if held >= most or (self._all_watches >= WATCHES_MAX and lane.name == "users"):
            metrics.SERVER_REFUSED.labels(lane.name).inc()
            message = f"user {who.name}: too many open watches (limit {most}, found {held}); next: close some of them"
            raise Overloaded(message, retry_after_s=5.0)
        self._watches[who.name] = held + 1
        self._all_watches += 1
        metrics.SERVER_WATCHES.labels(lane.name).inc()

    def close_watch(self, who: Principal) -> None:
        held = self._watches.get(who.name, 0) - 1
        if held > 0:
            self._watches[who.name] = held
        else:
            self._watches.pop(who.name, None)
        self._all_watches -= 1
        metrics.SERVER_WATCHES.labels(priority_level_of(who)).dec()
