"""The virtual-time loop: what asyncio promises within a process, seeded order between them, crashes without mercy."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

import pytest

from holdfast.sim.loop import Process, SimulationStuck, VirtualLoop


def loop(seed: int = 1) -> VirtualLoop:
    return VirtualLoop(random.Random(seed))


def test_time_passes_only_when_nobody_is_ready() -> None:
    world = loop()

    async def main() -> list[float]:
        seen = [world.time()]
        await asyncio.sleep(3600)
        seen.append(world.time())
        async with asyncio.timeout(5):
            await asyncio.sleep(2)
        seen.append(world.time())
        return seen

    assert world.run_until_complete(main()) == [0.0, 3600.0, 3602.0]
    world.shut_down()


def test_one_process_keeps_the_order_of_asyncio_and_several_are_mixed_by_the_seed() -> None:
    def order(seed: int) -> list[str]:
        world, seen = loop(seed), []

        async def count(name: str) -> None:
            for n in range(5):
                seen.append(f"{name}{n}")
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(
                *(world.spawn(Process(name, 1), count(name)) for name in ("a", "b")),
            )

        world.run_until_complete(main())
        world.shut_down()
        return seen

    orders = {tuple(order(seed)) for seed in range(20)}
    assert len(orders) > 5
    assert order(7) == order(7)
    for mixed in orders:
        assert [s for s in mixed if s[0] == "a"] == [f"a{n}" for n in range(5)]


def test_a_crash_runs_no_cleanup_and_what_it_sent_still_arrives() -> None:
    world, seen = loop(), []
    process = Process("cell", 1)

    async def work() -> None:
        world.call_from_environment(5.0, seen.append, "sent before the crash")
        try:
            await asyncio.sleep(100)
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        world.spawn(process, work())
        await asyncio.sleep(1)
        world.kill(process)
        await asyncio.sleep(200)

    world.run_until_complete(main())
    assert seen == ["sent before the crash"]
    world.shut_down()


def test_a_paused_process_stands_still_while_its_timers_pass() -> None:
    world, seen = loop(), []
    process = Process("agent", 1)

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(world.time())

    async def main() -> None:
        world.spawn(process, tick())
        await asyncio.sleep(2.5)
        world.pause(process)
        await asyncio.sleep(10)
        world.resume(process)
        await asyncio.sleep(1.5)

    world.run_until_complete(main())
    world.shut_down()
    assert seen == [1.0, 2.0, 12.5, 13.5]


def test_a_world_in_which_nothing_can_happen_any_more_says_so() -> None:
    world = loop()
    with pytest.raises(SimulationStuck):
        world.run_until_complete(asyncio.Event().wait())
    world.shut_down()


def test_there_are_no_threads() -> None:
    world = loop()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    world.run_until_complete(main())
    world.shut_down()


def test_a_nap_ends_at_its_moment_in_order_with_timers_and_stands_still_with_its_process() -> None:
    world, seen = loop(), []
    process = Process("cell", 1)

    async def sleeper() -> None:
        await world.sleep_future(2.0)
        seen.append(("nap", world.time()))

    async def main() -> None:
        world.call_from_environment(1.0, lambda: seen.append(("arrived", world.time())))
        world.spawn(process, sleeper())
        given_up = world.create_task(sleeper())
        await asyncio.sleep(0.5)
        given_up.cancel()
        world.pause(process)
        await world.sleep_future(3.0)
        assert seen == [("arrived", 1.0)]
        world.resume(process)
        await world.sleep_future(1.0)

    world.run_until_complete(main())
    world.shut_down()
    assert seen == [("arrived", 1.0), ("nap", 3.5)]


def test_what_belongs_to_no_process_happens_although_its_sender_died_and_may_fail() -> None:
    world, seen = loop(), []
    process = Process("cell", 1)

    def breaks() -> None:
        raise ValueError("broken on its way")

    async def work() -> None:
        world.call_from_environment(1.0, breaks)
        world.call_from_environment(1.0, seen.append, "after it")

    async def main() -> None:
        world.spawn(process, work())
        await asyncio.sleep(0.5)
        world.kill(process)
        await asyncio.sleep(1.0)

    world.run_until_complete(main())
    world.shut_down()
    assert seen == ["after it"]
    assert [str(failure["exception"]) for failure in world.failures] == ["broken on its way"]


def test_a_generator_that_nobody_closes_is_counted() -> None:
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
        world = loop()
        world.run_until_complete(reads())
        assert sum(world.unclosed_generators.values()) == times
        world.shut_down()
