"""What the agent tells its region: status blocks, gathered for a moment and sent in one commit.

Always: of several words about one object only the newest is sent, merged with what is still unsent; what the region
already has is not sent again; one refused write never holds back the others; nothing is lost to an outage.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.model import limits
from holdfast.model.errors import Conflict, Fault, Final, Unauthorized
from holdfast.model.meta import Key
from holdfast.model.writes import SetStatus
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.batches import send_divided
from holdfast.runtime.ports import Ports

Address = tuple[str, Key, str]

_log = structlog.get_logger()
_accepted = metrics.AGENT_REPORTS.labels(result="accepted")
_refused = metrics.AGENT_REPORTS.labels(result="refused")
_delayed = metrics.AGENT_REPORTS.labels(result="delayed")


class Reports:
    def __init__(self, client: Client, ports: Ports) -> None:
        self._client = client
        self._clock = ports.clock
        self._backoff = Backoff(ports.random, first_s=limits.AGENT_RETRY_FIRST_S, max_s=limits.AGENT_RETRY_MAX_S)
        self._pending: dict[Address, SetStatus] = {}
        self._waiting: dict[Address, SetStatus] = {}
        """Words that nobody needs at once: a newer one about the same object goes in their place."""
        self._sent: dict[Address, SetStatus] = {}
        self._in_doubt: dict[Address, float] = {}
        """Objects of which a word got no answer, and until when it may still arrive, after newer ones, and undo them:
        a moment after one was accepted. What is sent before that may be undone as well, whoever asked for it."""
        self._due = asyncio.Event()
        self._flushing = asyncio.Lock()

    def put(self, write: SetStatus, *, wait_s: float = 0.0) -> None:
        """`wait_s` is how long this may wait for a newer word; then it goes as it is."""
        address = (write.kind, write.key, write.uid)
        if wait_s and address not in self._pending:
            if address not in self._waiting:
                asyncio.get_running_loop().call_later(wait_s, self._waited, address)
            self._waiting[address] = _over(self._waiting.get(address), write)
            return
        merged = _over(self._waiting.pop(address, None) or self._pending.get(address), write)
        if _says_nothing_new(self._sent.get(address), merged):
            self._pending.pop(address, None)
            return
        self._pending[address] = merged
        self._due.set()

    def _waited(self, address: Address) -> None:
        write = self._waiting.pop(address, None)
        if write is not None:  # no newer word has come
            self.put(write)

    def say_again(self, write: SetStatus) -> None:
        """The region was seen to have something else than it was told: what it has is sent as if it were new."""
        self._sent.pop((write.kind, write.key, write.uid), None)
        self.put(write)

    def forget(self, kind: str, key: Key, uid: str) -> None:
        """The object is gone: what was said of it need not be remembered."""
        self._waiting.pop((kind, key, uid), None)
        self._sent.pop((kind, key, uid), None)
        self._in_doubt.pop((kind, key, uid), None)

    async def run(self) -> None:
        while True:
            await self._due.wait()
            await self._clock.sleep(limits.AGENT_FLUSH_EVERY_S)
            if not await self.flush():
                await self._clock.sleep(self._backoff.next_s())

    async def flush(self) -> bool:
        """Sends everything gathered; False when the region could not be told and it is to be tried again."""
        async with self._flushing:
            while self._pending:
                batch = [self._pending[a] for a in list(self._pending)[: limits.WRITES_JOINED]]
                for write in batch:
                    del self._pending[(write.kind, write.key, write.uid)]
                if not await self._deliver(batch):
                    return False
            self._due.clear()
            self._backoff.reset()
            return True

    async def _deliver(self, batch: Sequence[SetStatus]) -> bool:
        delayed = False

        async def send(some: Sequence[SetStatus]) -> None:
            nonlocal delayed
            if delayed:
                self._put_back(some)
            else:
                delayed = not await self._send(some)

        # A node that was fenced or replaced reports on many Bindings that are gone.
        await send_divided(batch, send, _count_refusal, (Final, Conflict), singly=True)
        return not delayed

    async def _send(self, batch: Sequence[SetStatus]) -> bool:
        """Sends the batch; False when it is put back. Raises a refusal that one write may cause."""
        sent_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(limits.AGENT_CALL_TIMEOUT_S):
                await self._client.commit(batch, brief=True)
        except Unauthorized as refusal:
            # It is the agent that is not believed, not the word: it is kept until the agent has joined again.
            return self._delay(batch, refusal)
        except (Final, Conflict):
            raise
        except (Fault, TimeoutError, OSError) as fault:
            self._in_doubt.update(dict.fromkeys(((w.kind, w.key, w.uid) for w in batch), math.inf))
            return self._delay(batch, fault)
        except asyncio.CancelledError:
            self._put_back(batch)
            raise
        _accepted.inc(len(batch))
        for write in batch:
            address = (write.kind, write.key, write.uid)
            if sent_s < self._in_doubt.get(address, 0.0):
                self._doubted(address, write)
            else:
                self._in_doubt.pop(address, None)
                self._sent[address] = _over(self._sent.get(address), write)
        return True

    def _doubted(self, address: Address, write: SetStatus) -> None:
        """Accepted, but an older word may come behind it: after a moment the same is sent once more. A newer one that
        is on its way goes instead, and is doubted in its turn while the moment lasts."""
        self._sent.pop(address, None)
        now_s = self._clock.monotonic()
        until_s = min(self._in_doubt[address], now_s + limits.AGENT_DOUBTED_AGAIN_S)
        self._in_doubt[address] = until_s
        if address not in self._pending and address not in self._waiting:
            self.put(write, wait_s=max(0.0, until_s - now_s))

    def _delay(self, batch: Sequence[SetStatus], fault: BaseException) -> bool:
        _delayed.inc(len(batch))
        _log.warning("report_delayed", writes=len(batch), error=str(fault) or type(fault).__name__)
        self._put_back(batch)
        return False

    def _put_back(self, batch: Sequence[SetStatus]) -> None:
        """Under whatever was said since."""
        for write in batch:
            address = (write.kind, write.key, write.uid)
            newer = self._pending.get(address)
            self._pending[address] = write if newer is None else _over(write, newer)
        self._due.set()


def _count_refusal(write: SetStatus, refusal: Fault) -> None:
    _refused.inc()
    _log.info("report_refused", kind=write.kind, object=str(write.key), reason=refusal.reason, message=refusal.message)


def _over(older: SetStatus | None, newer: SetStatus) -> SetStatus:
    if older is None:
        return newer
    said = {condition.type for condition in newer.conditions}
    kept = tuple(condition for condition in older.conditions if condition.type not in said)
    return msgspec.structs.replace(
        newer, blocks={**older.blocks, **newer.blocks}, conditions=(*kept, *newer.conditions)
    )


def _says_nothing_new(sent: SetStatus | None, write: SetStatus) -> bool:
    if sent is None:
        return False
    return all(name in sent.blocks and sent.blocks[name] == value for name, value in write.blocks.items())
