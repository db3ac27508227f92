"""The work queue's invariants, as examples and as a randomized test."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controllers.virtual import VirtualPorts, run, until

from holdfast.controllers.workqueue import DEBOUNCE_FREE_KEYS_BURST, QueueClosed, Workqueue
from holdfast.foundation.backoff import delay_s
from holdfast.foundation.retry_budget import RetryBudget
from holdfast.model.meta import Key


def key(name: str, namespace: str = "t") -> Key:
    return Key(namespace, name)


def queue(**options: Any) -> Workqueue:
    return Workqueue("test", VirtualPorts(), **options)


def test_key_added_while_processed_is_queued_again_once() -> None:
    async def main() -> None:
        q = queue()
        q.add(key("a"))
        q.add(key("a"))
        assert await q.take(10) == [key("a")]
        q.add(key("a"))
        q.add(key("a"))
        assert len(q) == 0
        q.done(key("a"))
        assert await q.take(10) == [key("a")]
        q.done(key("a"))
        assert q.idle

    run(main)


def test_min_interval_delays_key_unless_immediate_retry_was_requested() -> None:
    async def main() -> None:
        q, loop = queue(min_interval_s=1.0), asyncio.get_running_loop()
        began = loop.time()
        q.add(key("a"))
        assert await q.take() == [key("a")] and loop.time() == began, "the first time without delay"
        q.add(key("a"))
        q.done(key("a"))
        q.add(key("b"))
        assert await q.take(2) == [key("b")], "other keys are not delayed"
        assert await q.take() == [key("a")]
        assert loop.time() == pytest.approx(began + 1.0), "the added key is not lost"
        q.add_after(key("a"), 0.0)
        q.done(key("a"))
        assert await q.take() == [key("a")] and loop.time() == pytest.approx(began + 1.0)

    run(main)


def test_settling_delays_a_key_and_joins_the_changes_that_follow() -> None:
    async def main() -> None:
        q, loop = queue(debounce_s=1.0, settle_s=0.2), asyncio.get_running_loop()
        began = loop.time()
        q.add(key("a"))
        await asyncio.sleep(0.15)
        q.add(key("a"))
        assert await q.take(10) == [key("a")]
        assert loop.time() - began == pytest.approx(0.2), "the first change counts, so a key never waits for ever"
        q.done(key("a"))
        assert q.idle and len(q) == 0

    run(main)


@pytest.mark.parametrize("always", [False, True])
def test_batch_delay_applies_to_bursts_or_always(always: bool) -> None:
    async def main() -> None:
        q, loop = queue(batch_delay_s=0.1, batches_always=always), asyncio.get_running_loop()
        began = loop.time()
        q.add(key("a"))
        assert await q.take(1_000) == [key("a")]
        assert loop.time() - began == pytest.approx(0.1 if always else 0.0)
        for number in range(DEBOUNCE_FREE_KEYS_BURST + 50):
            q.add(key(f"b{number}"))
        began = loop.time()
        assert len(await q.take(1_000)) == DEBOUNCE_FREE_KEYS_BURST + 50
        assert loop.time() - began == pytest.approx(0.1), "a burst is one batch"

    run(main)


def test_debounce_delays_only_keys_beyond_burst() -> None:
    async def main() -> None:
        q, loop = queue(debounce_s=1.0), asyncio.get_running_loop()
        began = loop.time()
        many = [key(f"k{n:04}") for n in range(DEBOUNCE_FREE_KEYS_BURST + 50)]
        q.add_all(many)
        q.add_all(many)  # added again by a later event
        assert len(await q.take(1000)) == DEBOUNCE_FREE_KEYS_BURST and loop.time() == began
        q.add(many[-1])
        late = await q.take(1000)
        assert sorted(late) == sorted(many[DEBOUNCE_FREE_KEYS_BURST:]), "each key once, none lost"
        assert loop.time() == pytest.approx(began + 1.0)

    run(main)


def test_queue_serves_namespaces_round_robin() -> None:
    async def main() -> None:
        q = queue()
        q.add_all(key(f"k{n}", "noisy") for n in range(1000))
        q.add(key("one", "quiet"))
        q.add(key("two", "quiet"))
        assert [k.namespace for k in await q.take(4)] == ["noisy", "quiet", "noisy", "quiet"]
        assert len(await q.take(5)) == 5

    run(main)


def test_delayed_keys_are_due_in_order_with_shortest_delay() -> None:
    async def main() -> None:
        q, loop = queue(), asyncio.get_running_loop()
        q.add_after(key("late"), 30.0)
        q.add_after(key("soon"), 5.0)
        q.add_after(key("late"), 10.0)
        q.add_after(key("late"), 20.0)
        assert await q.take() == [key("soon")]
        assert loop.time() == pytest.approx(5.0)
        assert await q.take() == [key("late")]
        assert loop.time() == pytest.approx(10.0)
        await asyncio.sleep(100)
        q.done(key("late"))
        q.done(key("soon"))
        assert q.idle

    run(main)


def test_retry_backoff_grows_until_reset() -> None:
    async def main() -> None:
        q = queue()
        pauses = [q.next_backoff_s(key("a")) for _ in range(12)]
        assert all(0.5 * 0.05 * 2**n <= p <= 0.05 * 2**n for n, p in enumerate(pauses[:9]))
        assert max(pauses) <= 30.0
        q.forget(key("a"))
        assert q.retry(key("a")) <= 0.05
        await until(lambda: len(q) == 1, within_s=1)
        assert q.retry(key("b"), least_s=7.0) == 7.0

    run(main)


def test_full_queue_drops_and_counts_keys() -> None:
    async def main() -> None:
        q = queue(limit=2)
        q.add_all([key("a"), key("b"), key("c")])
        assert len(q) == 2 and q.dropped == 1

    run(main)


def test_closed_queue_raises_in_waiting_take() -> None:
    async def main() -> None:
        q = queue()
        waiting = asyncio.create_task(q.take())
        await asyncio.sleep(1)
        q.close()
        with pytest.raises(QueueClosed):
            await waiting
        q.add(key("a"))
        assert len(q) == 0

    run(main)


def test_repeated_delays_do_not_grow_heap() -> None:
    async def main() -> None:
        q = queue()
        for _ in range(5000):
            q.add_after(key("a"), 30.0)
            q.add(key("a"))
            await q.take()
            q.done(key("a"))
        assert len(q._due) < 200

    run(main)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_queue_never_processes_key_twice_at_once_and_loses_no_wakeup(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        q = queue()
        keys = [key(f"k{n}", f"t{n % 3}") for n in range(6)]
        working: set[Key] = set()
        asked_at: dict[Key, float] = {}
        worked_at: dict[Key, float] = {}
        loop = asyncio.get_running_loop()

        async def worker() -> None:
            while True:
                try:
                    taken = await q.take(chance.randrange(1, 4))
                except QueueClosed:
                    return
                for k in taken:
                    assert k not in working, "two workers on one key"
                    working.add(k)
                    worked_at[k] = loop.time()
                await asyncio.sleep(chance.choice([0, 0.01, 0.5]))
                for k in taken:
                    working.discard(k)
                    if chance.random() < 0.2:
                        q.retry(k)
                    else:
                        q.forget(k)
                    q.done(k)

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for _ in range(60):
            k = chance.choice(keys)
            if chance.random() < 0.7:
                q.add(k)
                asked_at[k] = loop.time()
            else:
                q.add_after(k, chance.choice([0.1, 1.0, 5.0]))
                asked_at[k] = loop.time()
            await asyncio.sleep(chance.choice([0, 0, 0.005, 0.3]))
        await asyncio.sleep(200)
        assert q.idle
        assert all(worked_at.get(k, -1.0) >= at for k, at in asked_at.items()), "a wake-up was lost"
        q.close()
        await asyncio.gather(*workers)

    run(main)


def test_backoff_delay_is_bounded_and_jittered() -> None:
    chance = random.Random(1)
    assert all(delay_s(n, chance, first_s=1.0, max_s=8.0) <= 8.0 for n in range(200))
    assert len({delay_s(3, chance) for _ in range(20)}) == 20


def test_retry_budget_is_exhausted_and_refills() -> None:
    async def main() -> None:
        budget = RetryBudget(VirtualPorts().clock, per_s=10.0, burst=5)
        assert [budget.take() for _ in range(7)] == [True] * 5 + [False] * 2
        await asyncio.sleep(0.2)
        assert [budget.take() for _ in range(3)] == [True, True, False]

    run(main)
