"""Process lifetime: start order, reverse stop order, failing components and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from holdfast.controllers.lifetime import Lifetime
from holdfast.foundation import log


class Recorded:
    def __init__(self, name: str, journal: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.journal = journal
        self.fails = fails

    async def start(self) -> None:
        if self.fails:
            raise RuntimeError("no disk")
        self.journal.append(f"+{self.name}")

    async def stop(self) -> None:
        self.journal.append(f"-{self.name}")


async def test_components_stop_in_reverse_order_on_signal() -> None:
    journal: list[str] = []
    life = Lifetime("test")
    for name in "abc":
        life.add(name, Recorded(name, journal))
    running = asyncio.create_task(life.run())
    await asyncio.wait_for(life.ready.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 5) == 0
    assert journal == ["+a", "+b", "+c", "-c", "-b", "-a"]


async def test_component_start_failure_stops_the_others() -> None:
    journal: list[str] = []
    life = Lifetime("test")
    life.add("a", Recorded("a", journal))
    life.add("b", Recorded("b", journal, fails=True))
    life.add("c", Recorded("c", journal))
    assert await asyncio.wait_for(life.run(), 5) == 1
    assert journal == ["+a", "-b", "-a"]


@pytest.mark.parametrize("fails", [True, False])
async def test_component_that_ends_early_ends_process_with_status_1(fails: bool) -> None:
    async def runs() -> None:
        await asyncio.sleep(0.01)
        if fails:
            raise RuntimeError("broke")

    journal: list[str] = []
    life = Lifetime("test")
    life.add("a", Recorded("a", journal), runs=runs)
    assert await asyncio.wait_for(life.run(), 5) == 1
    assert journal == ["+a", "-a"]


async def test_component_stop_past_deadline_does_not_block_others() -> None:
    class Stuck(Recorded):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    journal: list[str] = []
    life = Lifetime("test", stop_deadline_s=0.05)
    life.add("a", Recorded("a", journal))
    life.add("stuck", Stuck("stuck", journal))
    running = asyncio.create_task(life.run())
    await asyncio.wait_for(life.ready.wait(), 5)
    life.request_stop("enough")
    assert await asyncio.wait_for(running, 5) == 0
    assert journal[-1] == "-a"


def test_second_signal_exits_at_once_with_json_logs() -> None:
    program = textwrap.dedent(
        """
        import asyncio
        from holdfast.foundation import log
        from holdfast.controllers.lifetime import Lifetime

        class Stuck:
            async def start(self):
                print("ready", flush=True)
            async def stop(self):
                print("stopping", flush=True)
                await asyncio.Event().wait()

        async def main():
            log.configure(cell="west", component="test")
            life = Lifetime("test", stop_deadline_s=60.0)
            life.add("stuck", Stuck())
            await life.run()

        asyncio.run(main())
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["event"] for line in lines] == [
        "process_started",
        "process_stopping",
        "process_killed_by_second_signal",
    ]
    assert all(line["cell"] == "west" and line["component"] == "test" for line in lines)


def test_unknown_log_format_or_level_is_named_in_error() -> None:
    with pytest.raises(ValueError, match="xml"):
        log.configure(cell="west", component="test", form="xml")
    with pytest.raises(ValueError, match="loud"):
        log.configure(cell="west", component="test", level="loud")
