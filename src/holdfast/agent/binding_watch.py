"""Lists and watches the Bindings, or other objects, of one node; lists again when the watch expires or is old.

If the region is unreachable, it retries with backoff. The last observed Bindings stay valid until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import structlog

from holdfast.agent.limits import AGENT_CALL_TIMEOUT_S, AGENT_RESYNC_S, AGENT_RETRY_FIRST_S, AGENT_RETRY_MAX_S
from holdfast.client.contract import Client
from holdfast.foundation.backoff import Backoff, jittered_s
from holdfast.foundation.ports import Ports
from holdfast.model.binding import Binding
from holdfast.model.errors import Expired, Fault
from holdfast.model.meta import Object

_log = structlog.get_logger()


O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object
O_contra = TypeVar("O_contra", bound=Object, contravariant=True)


class ChangeHandler(Protocol[O_contra]):
    def __call__(self, item: O_contra, /, *, deleted: bool) -> None: ...


async def list_and_watch_bindings(
    client: Client,
    node: str,
    ports: Ports,
    *,
    listed: Callable[[tuple[Binding, ...]], Awaitable[None]],
    changed: ChangeHandler[Binding],
) -> None:
    await list_and_watch(Binding, client, node, ports, listed=listed, changed=changed)


async def list_and_watch(
    kind: type[O],
    client: Client,
    node: str,
    ports: Ports,
    *,
    listed: Callable[[tuple[O, ...]], Awaitable[None]],
    changed: ChangeHandler[O],
) -> None:
    fields = {"node": node}
    backoff = Backoff(ports.random, first_s=AGENT_RETRY_FIRST_S, max_s=AGENT_RETRY_MAX_S)
    revision = 0
    list_by_s = 0.0
    while True:
        try:
            if not revision or ports.clock.monotonic() >= list_by_s:
                async with asyncio.timeout(AGENT_CALL_TIMEOUT_S):
                    listing = await client.list(kind, fields=fields)
                await listed(listing.items)
                revision = listing.revision
                list_by_s = ports.clock.monotonic() + jittered_s(AGENT_RESYNC_S, ports.random)
                backoff.reset()
            async with asyncio.timeout(max(0.0, list_by_s - ports.clock.monotonic())):
                async for batch in client.watch(kind, after=revision, fields=fields):
                    for seen in batch:
                        if seen.object is not None:
                            changed(seen.object, deleted=seen.deleted)
                        revision = max(revision, seen.revision)
                    backoff.reset()
        except Expired:
            revision = 0
        except (Fault, TimeoutError, OSError) as fault:
            if isinstance(fault, TimeoutError) and revision and ports.clock.monotonic() >= list_by_s:
                continue  # not a failure: the periodic list is due
            _log.warning("watch_failed", kind=kind.__name__, node=node, error=str(fault) or type(fault).__name__)
        await ports.clock.sleep(backoff.next_s())
