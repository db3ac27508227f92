"""Quantities: `500m` CPU, `2Gi` memory, `1` GPU or `300m` of a shared one.

Internally every amount is an integer in the base unit of its resource: bytes for memory, disk and storage,
thousandths for everything else. Arithmetic on amounts is exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

Amount = str | int | float
Amounts = dict[str, int]

CPU, MEMORY, DISK, GPU, STORAGE = "cpu", "memory", "disk", "gpu", "storage"
BYTE_RESOURCES = frozenset({MEMORY, DISK, STORAGE})
WHOLE_GPU_MILLI = 1000
MAX_AMOUNT = 2**60  # keeps sums over a million claims inside numpy's int64

_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_FORM = re.compile(r"([+-]?(?:\d{1,19}(?:\.\d{0,9})?|\.\d{1,9}))(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i))?")


class BadQuantity(ValueError):
    """The text is not a quantity, or the quantity is negative or too large."""


@lru_cache(maxsize=65536)
def _parse(resource: str, text: str) -> int:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise BadQuantity(f"{text!r} is not a quantity; write for example 500m, 2, 1.5 or 2Gi")
    number, exponent, suffix = match.groups()
    value = Fraction(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    base = value if resource in BYTE_RESOURCES else value * 1000
    whole = -int(-base // 1)  # fractions of the base unit round up, so that a request never shrinks
    if whole < 0:
        raise BadQuantity(f"{text!r} is negative")
    if whole > MAX_AMOUNT:
        raise BadQuantity(f"{text!r} is too large")
    return whole


def parse_amount(resource: str, value: Amount) -> int:
    """The value in base units; raises BadQuantity."""
    if isinstance(value, bool):
        raise BadQuantity("a quantity cannot be true or false")
    return _parse(resource, str(value))


def amounts(values: Mapping[str, Amount]) -> Amounts:
    """A resource list in base units. Zero amounts are dropped."""
    found: Amounts = {}
    for name in sorted(values) if len(values) > 1 else values:
        value = values[name]
        amount = _parse(name, value) if type(value) is str else parse_amount(name, value)
        if amount:
            found[name] = amount
    return found


@lru_cache(maxsize=65536)
def amount_text(resource: str, amount: int) -> str:
    """The shortest exact text of an amount, such as `500m` or `2Gi`."""
    if resource in BYTE_RESOURCES:
        for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
            unit = int(_SUFFIXES[suffix])
            if amount >= unit and amount % unit == 0:
                return f"{amount // unit}{suffix}"
        return str(amount)
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def amounts_text(values: Mapping[str, int]) -> dict[str, str]:
    """A resource list in canonical text."""
    return {name: amount_text(name, amount) for name, amount in sorted(values.items())} if values else {}


def add(into: Amounts, more: Mapping[str, int], *, times: int = 1) -> None:
    """Adds in place. Amounts that become zero are removed."""
    for name, amount in more.items():
        total = into.get(name, 0) + amount * times
        if total:
            into[name] = total
        else:
            into.pop(name, None)


def scaled(values: Mapping[str, int], times: int) -> Amounts:
    return {name: amount * times for name, amount in values.items()} if times else {}


def shortfall(wanted: Mapping[str, int], limit: Mapping[str, int]) -> Amounts:
    """By how much `wanted` exceeds `limit`, per resource; empty if it fits."""
    return {n: w - limit.get(n, 0) for n, w in sorted(wanted.items()) if w > limit.get(n, 0)}
