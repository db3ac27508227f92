"""How the agent's report queue collects, delays and sends reports, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agent.agent_world import KeptMemory, World, template
from tests.controllers import virtual

from holdfast.agent.limits import AGENT_FLUSH_EVERY_S
from holdfast.agent.persisted_state import record_start
from holdfast.agent.reports import REPORT_RESEND_AFTER_S, ReportQueue
from holdfast.agent.status_blocks import STARTING_REPORT_DELAY_S, execution_write, max_delay_s
from holdfast.client.contract import CommitReceipt
from holdfast.model.errors import Ambiguous, Invalid
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase
from holdfast.model.writes import SetStatus

STARTING = ExecutionBlock(phase=Phase.STARTING, attempt=1, reason=Reason.STARTED)
STARTING_AGAIN = ExecutionBlock(phase=Phase.BACKING_OFF, attempt=1, reason=Reason.EXITED, message="exit code 1")
READY = ExecutionBlock(phase=Phase.RUNNING, attempt=1, ready=True, reason=Reason.BECAME_READY)


class Region:
    """Accepts every report and records when it arrived."""

    def __init__(self, unanswered: int = 0, late_s: float = 0.0) -> None:
        self.received: list[tuple[float, Phase]] = []
        self._unanswered = unanswered
        self._late_s = late_s

    async def commit(self, writes: Sequence[SetStatus], **_: Any) -> CommitReceipt:
        if self._unanswered:
            self._unanswered -= 1
            asyncio.get_running_loop().call_later(self._late_s, self._take, writes)
            raise Ambiguous("no answer; it is carried out late")
        self._take(writes)
        return CommitReceipt(1, ())

    def _take(self, writes: Sequence[SetStatus]) -> None:
        at_s = asyncio.get_running_loop().time()
        self.received += [(at_s, write.blocks["execution"].phase) for write in writes]


def deliver(
    timed_blocks: list[tuple[float, ExecutionBlock]], region: Region | None = None
) -> list[tuple[float, Phase]]:
    """When the region receives which phase, if the agent reports these blocks at these times."""
    region = region or Region()

    async def main() -> None:
        reports = ReportQueue(region, virtual.VirtualPorts())  # type: ignore[arg-type]
        running = asyncio.create_task(reports.run())
        for at_s, block in timed_blocks:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            write = SetStatus(kind="Replica", key=Key("acme", "web-0"), uid="u", blocks={"execution": block})
            reports.put(write, wait_s=max_delay_s(block))
        await asyncio.sleep(10.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual.run(main)
    return [(round(at_s, 1), phase) for at_s, phase in region.received]


def test_quick_start_is_reported_once() -> None:
    assert deliver([(0.0, STARTING), (0.5, READY)]) == [(0.6, Phase.RUNNING)]


def test_slow_start_is_reported_after_delay() -> None:
    after_s = round(STARTING_REPORT_DELAY_S + AGENT_FLUSH_EVERY_S, 1)
    with_pid = ExecutionBlock(phase=Phase.STARTING, attempt=1, pid=7, reason=Reason.STARTED)
    delivered = deliver([(0.0, STARTING), (1.0, with_pid), (5.0, READY)])
    assert delivered == [(after_s, Phase.STARTING), (5.1, Phase.RUNNING)]


def test_failure_is_reported_at_once() -> None:
    failed = ExecutionBlock(phase=Phase.BACKING_OFF, attempt=1, reason=Reason.EXITED, message="exit code 1")
    again = ExecutionBlock(phase=Phase.STARTING, attempt=1, restarts=1, reason=Reason.STARTED)
    assert deliver([(0.0, STARTING), (0.5, failed)]) == [(0.6, Phase.BACKING_OFF)]
    assert deliver([(0.0, failed), (1.0, again)]) == [(0.1, Phase.BACKING_OFF), (1.1, Phase.STARTING)]


def test_report_after_unanswered_one_is_resent() -> None:
    """Without any other event or list, the last report that the region has must be the newest."""
    failed = ExecutionBlock(phase=Phase.BACKING_OFF, attempt=1, reason=Reason.EXITED, message="exit code 1")
    received = [phase for _, phase in deliver([(0.0, failed), (0.05, READY)], Region(unanswered=1, late_s=3.0))]
    assert received == [Phase.RUNNING, Phase.RUNNING, Phase.RUNNING], "merged before sending"
    received = [phase for _, phase in deliver([(0.0, failed), (0.2, READY)], Region(unanswered=1, late_s=3.0))]
    assert received == [Phase.RUNNING, Phase.BACKING_OFF, Phase.RUNNING]
    assert len(deliver([(0.0, failed), (0.2, READY)])) == 2, "an answered report is not resent"


def test_identical_report_does_not_cancel_the_resend() -> None:
    """The agent may repeat a report; the unanswered one may still arrive after it."""
    failed = ExecutionBlock(phase=Phase.BACKING_OFF, attempt=1, reason=Reason.EXITED, message="exit code 1")
    timed_blocks = [(0.0, failed), (0.2, READY), (0.9, READY), (1.4, READY)]
    delivered = deliver(timed_blocks, Region(unanswered=1, late_s=3.0))
    received = [phase for _, phase in delivered]
    assert received.count(Phase.BACKING_OFF) == 1 and received[-1] is Phase.RUNNING, delivered
    assert len(delivered) <= len(timed_blocks) + 1, "there is one resend only"


class DelayingClient:
    """Passes commits to a real gate. The first one arrives there only after `late_s`, and the agent gets no answer."""

    def __init__(self, client: Any, late_s: float) -> None:
        self._client, self._late_s, self._first = client, late_s, True
        self.late: asyncio.Task[Any] | None = None

    async def commit(self, writes: Sequence[SetStatus], **more: Any) -> Any:
        if self._first:
            self._first = False
            self.late = asyncio.create_task(self._commit_late(writes, more))
            raise Ambiguous("no answer; it is carried out late")
        return await self._client.commit(writes, **more)

    async def _commit_late(self, writes: Sequence[SetStatus], more: dict[str, Any]) -> Any:
        await asyncio.sleep(self._late_s)
        return await self._client.commit(writes, **more)


@pytest.mark.parametrize("late_s", [3.0, REPORT_RESEND_AFTER_S + 30.0])
def test_report_that_arrives_late_never_replaces_a_newer_one(late_s: float) -> None:
    async def main() -> None:
        ports = virtual.VirtualPorts()
        world = await World(ports).start()
        binding = await world.bind("a", template())
        client = DelayingClient(world.agent(), late_s)
        reports = ReportQueue(client, ports)  # type: ignore[arg-type]
        running = asyncio.create_task(reports.run())
        reports.put(execution_write(binding, STARTING_AGAIN))
        await asyncio.sleep(0.2)
        reports.put(execution_write(binding, READY))
        await asyncio.sleep(late_s + 20.0)
        assert client.late is not None
        assert world.ready("a") and world.phase("a") == "Running", "the report of the past has replaced the present"
        with pytest.raises(Invalid, match="older than the stored one"):
            await client.late
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.close()

    virtual.run(main)


def test_reports_of_a_restarted_agent_have_higher_numbers_even_if_its_clock_went_back() -> None:
    memory = KeptMemory()
    starts = [record_start(memory, now_s) for now_s in (1000.0, 1000.5, 400.0, 2000.0)]
    assert starts == [1000, 1001, 1002, 2000] and memory.facts.started_s == 2000
