"""Quantities: exact arithmetic, canonical text, refusal of invalid text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.quantity import (
    MAX_AMOUNT,
    Amount,
    BadQuantity,
    add,
    amount_text,
    amounts,
    parse_amount,
    scaled,
    shortfall,
)


@pytest.mark.parametrize(
    ("resource", "text", "base"),
    [
        ("cpu", "500m", 500),
        ("cpu", "1", 1000),
        ("cpu", 2, 2000),
        ("cpu", 0.5, 500),
        ("cpu", "1.5", 1500),
        ("cpu", "1e2", 100_000),
        ("cpu", "100u", 1),
        ("gpu", "300m", 300),
        ("gpu", "2", 2000),
        ("memory", "2Gi", 2 * 2**30),
        ("memory", "1M", 10**6),
        ("memory", "128974848", 128974848),
        ("memory", "1.5Ki", 1536),
        ("disk", "1Ti", 2**40),
        ("fpga", "1", 1000),
    ],
)
def test_quantity_text_is_parsed_to_base_units(resource: str, text: Amount, base: int) -> None:
    assert parse_amount(resource, text) == base


@pytest.mark.parametrize(
    "text", ["", "abc", "1x", "--1", "-1", "1 Gi", "0x10", "1e999", "NaN", "inf", True, "9" * 40, "1ei"]
)
def test_invalid_quantity_is_refused(text: Amount) -> None:
    with pytest.raises(BadQuantity):
        parse_amount("memory", text)


@given(st.sampled_from(["cpu", "memory", "gpu", "widgets"]), st.integers(0, MAX_AMOUNT))
def test_amount_text_round_trips(resource: str, amount: int) -> None:
    assert parse_amount(resource, amount_text(resource, amount)) == amount


lists = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 10**9))


@given(lists, lists)
def test_adding_and_subtracting_an_amount_restores_the_original(one: dict[str, int], two: dict[str, int]) -> None:
    total = {name: amount for name, amount in one.items() if amount}
    add(total, two)
    add(total, two, times=-1)
    assert total == {name: amount for name, amount in one.items() if amount}


@given(lists, lists)
def test_shortfall_is_the_exact_difference(wanted: dict[str, int], limit: dict[str, int]) -> None:
    missing = shortfall(wanted, limit)
    assert all(wanted[name] == limit.get(name, 0) + missing[name] for name in missing)
    assert all(wanted[name] <= limit.get(name, 0) for name in wanted if name not in missing)


def test_zero_amounts_are_dropped() -> None:
    assert amounts({"cpu": "0", "memory": "1Ki"}) == {"memory": 1024}
    assert scaled({"cpu": 5}, 0) == {}
