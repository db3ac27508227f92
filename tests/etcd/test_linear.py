"""The linearizability checker itself: it accepts histories that a register can produce, and rejects all others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.etcd.linear import NEVER, UNKNOWN, Call, Place, Read, Take, Write, device, linearizable, register, replica


def sequential_history(seed: int, calls: int) -> tuple[list[Call], str]:
    """A history of concurrent clients of a real register: each call takes effect at one moment."""
    chance = random.Random(seed)
    value, history = "", []
    for number in range(calls):
        at = float(number)
        sent, answered = at - chance.uniform(0, 3), at + chance.uniform(0, 3)
        if chance.random() < 0.4:
            history.append(Call(Read(), value, sent, answered))
            continue
        write = Write(str(number), value if chance.random() < 0.7 else "something else")
        happens = chance.random() < 0.9
        done = happens and write.expected == value
        value = write.value if done else value
        lost = not happens or chance.random() < 0.15
        history.append(Call(write, UNKNOWN if lost else done, sent, NEVER if lost else answered))
    return history, value


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 30))
def test_history_of_register_is_linearizable(seed: int, calls: int) -> None:
    history, value = sequential_history(seed, calls)
    assert linearizable(history, "", register)
    assert linearizable([*history, Call(Read(), value, 100.0, 101.0)], "", register) or any(
        call.result is UNKNOWN for call in history
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(4, 30), st.data())
def test_history_impossible_for_register_is_rejected(seed: int, calls: int, data: st.DataObject) -> None:
    """A lost write, a value never written, or a stale value: each breaks a valid history."""
    history, _ = sequential_history(seed, calls)
    known = [Call(c.operation, c.result, c.sent, c.answered) for c in history if c.result is not UNKNOWN]
    made = [Call(Write("w1", ""), True, 0.0, 1.0), Call(Write("w2", "w1"), True, 2.0, 3.0)]
    broken = data.draw(
        st.sampled_from(
            [
                [*made, Call(Read(), "w1", 4.0, 5.0)],  # an acknowledged write is lost
                [*made, Call(Read(), "w2", 4.0, 5.0), Call(Read(), "w1", 6.0, 7.0)],  # a value read before is lost
                [*made, Call(Write("w3", "w1"), True, 4.0, 5.0)],  # a compare that cannot have succeeded
                [*made, Call(Write("w3", "w2"), False, 4.0, 5.0)],  # refused without reason
                [*known, Call(Read(), "from nowhere", 50.0, 51.0)],
            ]
        )
    )
    assert not linearizable(broken, "", register)


def test_write_with_unknown_outcome_takes_effect_once_late_or_never() -> None:
    late = Call(Write("a", ""), UNKNOWN, 0.0, NEVER)
    assert linearizable([late, Call(Read(), "", 5, 6), Call(Read(), "a", 7, 8)], "", register)
    assert linearizable([late, Call(Read(), "", 5, 6)], "", register)
    assert not linearizable([late, Call(Read(), "a", 5, 6), Call(Read(), "", 7, 8)], "", register)


@pytest.mark.parametrize(
    ("calls", "possible"),
    [
        ([Call(Place("n1"), ("Accepted", "n1"), 0, 1), Call(Place("n2"), ("Already", "n1"), 2, 3)], True),
        ([Call(Place("n1"), ("Accepted", "n1"), 0, 1), Call(Place("n2"), ("Accepted", "n2"), 2, 3)], False),
        ([Call(Place("n1"), ("Accepted", "n1"), 0, 5), Call(Place("n2"), ("Accepted", "n2"), 1, 4)], False),
        ([Call(Place("n1"), UNKNOWN, 0, NEVER), Call(Place("n2"), ("Accepted", "n2"), 2, 3)], True),
        ([Call(Place("n1"), UNKNOWN, 0, NEVER), Call(Place("n2"), ("Already", "n1"), 2, 3)], True),
        ([Call(Place("n1"), UNKNOWN, 0, NEVER), Call(Place("n2"), ("Already", "n3"), 2, 3)], False),
        ([Call(Place("n1"), ("Accepted", "n1"), 0, 1), Call(Place("n1"), ("Rejected", ""), 2, 3)], False),
        (
            [
                Call(Place("n1", bind=False), ("Accepted", "n1"), 0, 1),
                Call(Place("", reserve=False), ("Accepted", "n1"), 2, 3),
                Call(Place("", reserve=False), ("Accepted", "n1"), 4, 5),
            ],
            False,
        ),
        ([Call(Place("", reserve=False), ("Accepted", "n1"), 0, 1)], False),
    ],
)
def test_replica_history_with_two_nodes_is_rejected(calls: list[Call], possible: bool) -> None:
    assert linearizable(calls, ("", ""), replica) is possible


@pytest.mark.parametrize(
    ("calls", "possible"),
    [
        ([Call(Take("a"), "Accepted", 0, 1), Call(Take("b"), "Rejected", 2, 3)], True),
        ([Call(Take("a"), "Accepted", 0, 1), Call(Take("b"), "Accepted", 2, 3)], False),
        ([Call(Take("a"), UNKNOWN, 0, NEVER), Call(Take("b"), "Rejected", 2, 3)], True),
        ([Call(Take("b"), "Rejected", 2, 3)], False),
    ],
)
def test_device_history_with_two_owners_is_rejected(calls: list[Call], possible: bool) -> None:
    assert linearizable(calls, "", device) is possible
