"""How the agent's report queue collects, delays and sends reports, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.controllers import virtual

from holdfast.agent.limits import AGENT_FLUSH_EVERY_S
from holdfast.agent.reports import ReportQueue
from holdfast.agent.status_blocks import STARTING_REPORT_DELAY_S, max_delay_s
from holdfast.client.contract import CommitReceipt
from holdfast.model.errors import Ambiguous
from holdfast.model.meta import Key
from holdfast.model.reasons import Reason
from holdfast.model.replica import ExecutionBlock, Phase
from holdfast.model.writes import SetStatus

STARTING = ExecutionBlock(phase=Phase.STARTING, attempt=1, reason=Reason.STARTED)
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
