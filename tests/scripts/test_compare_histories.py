"""The comparison of two histories: one name stands for one other name, and everything else is equal."""

from __future__ import annotations

from typing import Any

import pytest
from compare_histories import Renames


def compared(*pairs: tuple[Any, Any]) -> Renames:
    renames = Renames()
    for before, after in pairs:
        renames.compare(before, after, "Node")
    return renames


def test_consistent_renames_are_no_difference_and_are_listed() -> None:
    renames = compared(
        ({"rank": 1, "phase": "Lapsed"}, {"priority": 1, "phase": "Expired"}),
        ({"rank": 2, "phase": "Ready"}, {"priority": 2, "phase": "Ready"}),
    )
    assert renames.differences == []
    assert list(renames.found()) == ["Lapsed → Expired", "rank → priority"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (({"a": 1}, {"a": 1}), ({"a": 1}, {"a": 2})),
        (({"a": 1}, {"a": 1}), ({"a": 1}, {"a": True})),
        (({"a": [1, 2]}, {"a": [1, 2]}), ({"a": [1, 2]}, {"a": [1]})),
        (({"a": 1}, {"a": 1}), ({"a": 1}, {"a": 1, "b": 2})),
        (({"a": "x"}, {"a": "y"}), ({"a": "x"}, {"a": "z"})),
        (({"a": "x"}, {"a": "y"}), ({"a": "w"}, {"a": "y"})),
        (({"a": 1}, {"b": 1}), ({"a": 1}, {"c": 1})),
    ],
)
def test_other_value_field_or_second_name_is_a_difference(first: tuple[Any, Any], second: tuple[Any, Any]) -> None:
    assert compared(first).differences == []
    assert compared(first, second).differences


def test_sentences_may_change() -> None:
    assert compared(({"message": "it is gone"}, {"message": "the node was deleted"})).differences == []
    assert compared(({"message": "a", "n": 1}, {"message": "b", "n": 2})).differences
