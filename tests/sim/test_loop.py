"""The virtual-time loop: asyncio order within a process, seeded order between processes, crashes without cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

import pytest

from holdfast.sim.loop import STEPS_PER_INSTANT_MAX, Livelock, Process, SimulationStuck, VirtualLoop


def new_loop(seed: int = 1) -> VirtualLoop:
    return VirtualLoop(random.Random(seed))


def test_time_advances_only_when_no_callback_is_ready() -> None:
    loop = new_loop()

    async def main() -> list[float]:
        recorded = [loop.time()]
        await asyncio.sleep(3600)
        recorded.append(loop.time())
        async with asyncio.timeout(5):
            await asyncio.sleep(2)
        recorded.append(loop.time())
        return recorded

    assert loop.run_until_complete(main()) == [0.0, 3600.0, 3602.0]
    loop.shut_down()


def test_order_is_asyncio_within_a_process_and_seeded_between_processes() -> None:
    def order(seed: int) -> list[str]:
        loop, recorded = new_loop(seed), []

        async def count(name: str) -> None:
            for n in range(5):
                recorded.append(f"{name}{n}")
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(loop.spawn(Process(name, 1), count(name)) for name in ("a", "b")))

        loop.run_until_complete(main())
        loop.shut_down()
        return recorded

    orders = {tuple(order(seed)) for seed in range(20)}
    assert len(orders) > 5
    assert order(7) == order(7)
    for mixed in orders:
        assert [s for s in mixed if s[0] == "a"] == [f"a{n}" for n in range(5)]


def test_crash_runs_no_cleanup_and_sent_messages_arrive() -> None:
    loop = new_loop()
    recorded: list[object] = []
    process = Process("cell", 1)

    async def work() -> None:
        loop.call_from_environment(5.0, recorded.append, "sent before the crash")
        try:
            await asyncio.sleep(100)
        finally:
            recorded.append("cleaned up")

    async def main() -> None:
        loop.spawn(process, work())
        await asyncio.sleep(1)
        loop.kill(process)
        await asyncio.sleep(200)

    loop.run_until_complete(main())
    assert recorded == ["sent before the crash"]
    loop.shut_down()


def test_paused_process_runs_its_due_timers_after_resume() -> None:
    loop = new_loop()
    recorded: list[object] = []
    process = Process("agent", 1)

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            recorded.append(loop.time())

    async def main() -> None:
        loop.spawn(process, tick())
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        loop.resume(process)
        await asyncio.sleep(1.5)

    loop.run_until_complete(main())
    loop.shut_down()
    assert recorded == [1.0, 2.0, 12.5, 13.5]


def test_loop_without_events_raises() -> None:
    loop = new_loop()
    with pytest.raises(SimulationStuck):
        loop.run_until_complete(asyncio.Event().wait())
    loop.shut_down()


def test_loop_that_never_waits_is_a_livelock_of_its_process() -> None:
    loop = new_loop()

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.sleep(2.0)
        loop.spawn(Process("busy", 1), spin())
        await asyncio.sleep(1.0)

    with pytest.raises(Livelock, match=r"at 2\.000000 s; the last one by busy\.1") as raised:
        loop.run_until_complete(main())
    assert raised.value.process.name == "busy" and loop.steps < 2 * STEPS_PER_INSTANT_MAX
    loop.shut_down()


def test_loop_refuses_threads() -> None:
    loop = new_loop()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    loop.run_until_complete(main())
    loop.shut_down()


def test_sleep_future_is_ordered_with_timers_and_stops_with_its_process() -> None:
    loop = new_loop()
    recorded: list[object] = []
    process = Process("cell", 1)

    async def sleeper() -> None:
        await loop.sleep_future(2.0)
        recorded.append(("nap", loop.time()))

    async def main() -> None:
        loop.call_from_environment(1.0, lambda: recorded.append(("arrived", loop.time())))
        loop.spawn(process, sleeper())
        given_up = loop.create_task(sleeper())
        await asyncio.sleep(0.5)
        given_up.cancel()
        loop.pause(process)
        await loop.sleep_future(3.0)
        assert recorded == [("arrived", 1.0)]
        loop.resume(process)
        await loop.sleep_future(1.0)

    loop.run_until_complete(main())
    loop.shut_down()
    assert recorded == [("arrived", 1.0), ("nap", 3.5)]


def test_callback_from_environment_after_sender_crashed_still_runs() -> None:
    loop = new_loop()
    recorded: list[object] = []
    process = Process("cell", 1)

    def breaks() -> None:
        raise ValueError("broken on its way")

    async def work() -> None:
        loop.call_from_environment(1.0, breaks)
        loop.call_from_environment(1.0, recorded.append, "after it")

    async def main() -> None:
        loop.spawn(process, work())
        await asyncio.sleep(0.5)
        loop.kill(process)
        await asyncio.sleep(1.0)

    loop.run_until_complete(main())
    loop.shut_down()
    assert recorded == ["after it"]
    assert [str(failure["exception"]) for failure in loop.failures] == ["broken on its way"]


def test_unclosed_generator_is_counted() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        while True:
            yield 1

    async def drops() -> None:
        async for _ in numbers():
            break

    async def closes() -> None:
        async with contextlib.aclosing(numbers()) as found:
            async for _ in found:
                break

    for reads, times in ((closes, 0), (drops, 1)):
        loop = new_loop()
        loop.run_until_complete(reads())
        assert sum(loop.unclosed_generators.values()) == times
        loop.shut_down()
