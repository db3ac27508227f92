"""Sets of indexes as compressed text, as in Kubernetes: "0-3,7"."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

# Parsed texts that are cached. Decisions of one array parse the same few texts again and again.
PARSED_CACHED_MAX = 256


def indexes_text(indexes: Iterable[int]) -> str:
    """The indexes in order, consecutive ones as a range."""
    spans: list[list[int]] = []
    for index in sorted(set(indexes)):
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


@lru_cache(PARSED_CACHED_MAX)
def parse_indexes(text: str) -> frozenset[int]:
    """The indexes of a text that `indexes_text` wrote."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)
