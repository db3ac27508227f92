"""Flow control: a priority level per kind of client, and fairness between tenants within a level.

Agents, controllers and operators have levels of their own, so that user requests cannot delay a heartbeat, a repair or
a break-glass override. A full level responds 429 with Retry-After at once: no request waits without a bound.

A request occupies seats in proportion to what its body costs to decode, and keeps them for a moment after the response.
So expensive bodies run one at a time, with gaps in which the event loop serves other levels. Body bytes in memory are
counted per level and per flow.
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
    """One priority level: seats, queue length, queue timeout, watches per client, and body bytes in memory.

    `charged` levels pay for the cost of a body with more seats. Components of the platform do not.
    """

    name: str
    max_running: int
    max_queued: int
    queue_timeout_s: float
    max_watches_per_client: int
    max_body_bytes: int = 64 << 20
    charged: bool = True


PRIORITY_LEVELS: dict[str, PriorityLevel] = {
    lane.name: lane
    for lane in (
        PriorityLevel(
            "agents", max_running=512, max_queued=8192, queue_timeout_s=10.0, max_watches_per_client=64, charged=False
        ),
        PriorityLevel(
            "controllers",
            max_running=256,
            max_queued=4096,
            queue_timeout_s=10.0,
            max_watches_per_client=4096,
            charged=False,
        ),
        PriorityLevel("operators", max_running=64, max_queued=1024, queue_timeout_s=15.0, max_watches_per_client=1024),
        PriorityLevel("users", max_running=64, max_queued=512, queue_timeout_s=5.0, max_watches_per_client=512),
        # Only joins. A join is one small body and one signature.
        PriorityLevel(
            "anonymous",
            max_running=8,
            max_queued=256,
            queue_timeout_s=5.0,
            max_watches_per_client=0,
            max_body_bytes=8 << 20,
        ),
    )
}
# Values of a body (see `request_bodies.value_cost`) that one seat pays for: about 2 ms of the event loop's time.
VALUES_PER_SEAT = 80
# How long a request with more than one seat keeps each of them after its response. As long as the work itself took, so
# that such requests use at most half of the event loop's time.
SEAT_PAUSE_S = 0.002
# Open watches of users per server, and of one hollow host. More are refused with 429.
WATCHES_MAX = 20_000
FLOW_QUEUE_DIVISOR = 4
"""One flow may fill at most 1/FLOW_QUEUE_DIVISOR of a level's queue and of its body bytes, so that other flows find
room."""


def priority_level_of(who: Principal) -> str:
    if not who.groups:
        return "anonymous"
    if AGENT in who.roles:
        return "agents"
    if CONTROLLERS in who.groups or REGIONS in who.groups:
        return "controllers"
    if OPERATORS in who.groups or VIEWERS in who.groups:
        return "operators"
    return "users"


def flow_key(who: Principal, namespace: str, address: str = "") -> str:
    """The flow of a request: one per tenant, however many users and requests it has. Without a principal, one per
    client address.
    """
    if not who.groups:
        return f"address:{address}"
    if namespace and namespace in who.tenants:
        return f"tenant:{namespace}"
    return next((f"tenant:{t}" for t in sorted(who.tenants)), who.name)


class _Turn(msgspec.Struct, eq=False):
    """A queued request and the seats that it needs."""

    admitted: asyncio.Future[None]
    seats: int


class _Queue:
    """One priority level at run time. Queued flows are served round-robin, one request each."""

    def __init__(self, lane: PriorityLevel) -> None:
        self.lane = lane
        self.running = 0
        """Occupied seats."""
        self.waiting = 0
        self.body_bytes: dict[str, int] = {}
        """Flow → bytes of its bodies in memory."""
        self.all_body_bytes = 0
        self._flows: OrderedDict[str, deque[_Turn]] = OrderedDict()
        metrics.SERVER_RUNNING.labels(lane.name).set_function(lambda: self.running)
        self._refused = metrics.SERVER_REFUSED.labels(lane.name)

    def seats_for(self, values: int) -> int:
        """Seats of a request whose body costs that many values. At most half a level, so that small requests of other
        flows find a seat.
        """
        if not self.lane.charged:
            return 1
        return max(1, min(1 + values // VALUES_PER_SEAT, self.lane.max_running // 2))

    async def enter(self, flow: str, seats: int) -> None:
        if self.running + seats <= self.lane.max_running and not self.waiting:
            self.running += seats
            return
        own_queue = self._flows.get(flow)
        if self.waiting >= self.lane.max_queued or (
            own_queue is not None and len(own_queue) >= self.lane.max_queued // FLOW_QUEUE_DIVISOR
        ):
            raise self.overloaded()
        turn = _Turn(asyncio.get_running_loop().create_future(), seats)
        self._flows.setdefault(flow, deque()).append(turn)
        self.waiting += 1
        try:
            async with asyncio.timeout(self.lane.queue_timeout_s):
                await turn.admitted
        except TimeoutError:
            if self._withdraw(flow, turn):
                raise self.overloaded() from None
            self.leave(seats)  # it was admitted at the same moment
            raise self.overloaded() from None
        except asyncio.CancelledError:
            if not self._withdraw(flow, turn):
                self.leave(seats)
            raise

    def leave(self, seats: int) -> None:
        self.running -= seats
        while self._flows:
            flow, turns = next(iter(self._flows.items()))
            turn = turns[0]
            if not turn.admitted.done() and self.running + turn.seats > self.lane.max_running:
                return
            turns.popleft()
            self.waiting -= 1
            if turns:
                self._flows.move_to_end(flow)
            else:
                del self._flows[flow]
            if not turn.admitted.done():
                self.running += turn.seats
                turn.admitted.set_result(None)

    def _withdraw(self, flow: str, turn: _Turn) -> bool:
        """Removes a queued request. Returns False if it was already admitted."""
        turns = self._flows.get(flow)
        if turns is None or turn not in turns:
            return False
        turns.remove(turn)
        self.waiting -= 1
        if not turns:
            del self._flows[flow]
        return True

    def overloaded(self) -> Overloaded:
        self._refused.inc()
        message = f"too many requests at priority level {self.lane.name}; next: retry later"
        return Overloaded(message, retry_after_s=1.0)


class _Seats:
    """The seats of one request in a priority level, from admission until shortly after the response."""

    __slots__ = ("_flow", "_queue", "_seats")

    def __init__(self, queue: _Queue, flow: str, seats: int) -> None:
        self._queue = queue
        self._flow = flow
        self._seats = seats

    async def __aenter__(self) -> None:
        await self._queue.enter(self._flow, self._seats)

    async def __aexit__(self, *_: object) -> None:
        if self._seats == 1:
            self._queue.leave(1)
        else:
            pause_s = self._seats * SEAT_PAUSE_S
            asyncio.get_running_loop().call_later(pause_s, self._queue.leave, self._seats)


class BodyAccount:
    """Body bytes that one request holds in memory. A context manager: leaving it returns them."""

    __slots__ = ("_bytes", "_flow", "_queue")

    def __init__(self, queue: _Queue, flow: str) -> None:
        self._queue = queue
        self._flow = flow
        self._bytes = 0

    def count(self, size: int) -> None:
        """Raises Overloaded if the level or the flow holds too many bytes."""
        queue, limit = self._queue, self._queue.lane.max_body_bytes
        held = queue.body_bytes.get(self._flow, 0)
        if queue.all_body_bytes + size > limit or held + size > limit // FLOW_QUEUE_DIVISOR:
            raise queue.overloaded()
        self._bytes += size
        queue.all_body_bytes += size
        queue.body_bytes[self._flow] = held + size

    def __enter__(self) -> BodyAccount:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bytes:
            return
        self._queue.all_body_bytes -= self._bytes
        left = self._queue.body_bytes[self._flow] - self._bytes
        if left:
            self._queue.body_bytes[self._flow] = left
        else:
            del self._queue.body_bytes[self._flow]


class FlowControl:
    def __init__(self) -> None:
        self._queues = {name: _Queue(lane) for name, lane in PRIORITY_LEVELS.items()}
        self._watches: dict[str, int] = {}
        self._all_watches = 0

    def admit(self, who: Principal, namespace: str, *, values: int = 0, address: str = "") -> _Seats:
        """A context manager: entering it waits until the request may run, or raises Overloaded. `values` is the cost of
        its body.
        """
        queue = self._queues[priority_level_of(who)]
        return _Seats(queue, flow_key(who, namespace, address), queue.seats_for(values))

    def body_account(self, who: Principal, namespace: str, *, address: str = "") -> BodyAccount:
        return BodyAccount(self._queues[priority_level_of(who)], flow_key(who, namespace, address))

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
