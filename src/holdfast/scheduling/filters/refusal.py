"""Results of a filter: reasons, each with the nodes it refuses. A node's first refusal is reported."""

from __future__ import annotations

import numpy as np

from holdfast.model.reasons import Reason
from holdfast.scheduling.snapshot import Bools, Codes

Refusal = tuple[Reason, Bools]

ACCEPTED = 0
NO_NODE = 255
"""Code of a slot without a node."""

_REASONS: tuple[Reason, ...] = tuple(Reason)
_CODES: dict[Reason, int] = {reason: index + 1 for index, reason in enumerate(_REASONS)}
if len(_REASONS) >= NO_NODE:
    raise AssertionError("reasons no longer fit one byte; widen Codes")


_BY_VALUE: dict[str, Reason] = {reason.value: reason for reason in _REASONS}


def reason_named(value: str) -> Reason:
    return _BY_VALUE[value]


def code_of(reason: Reason) -> int:
    return _CODES[reason]


def reason_of(code: int) -> Reason:
    return _REASONS[code - 1]


def mark_refused(why: Codes, refusals: list[Refusal]) -> None:
    """Sets each reason on the nodes that were not refused before."""
    for reason, refused in refusals:
        if not refused.any():
            continue
        why[refused & (why == ACCEPTED)] = _CODES[reason]


def count_reasons(why: Codes) -> dict[Reason, int]:
    """Number of nodes per reason, most frequent first, then by name."""
    if not why.any():
        return {}
    counts = np.bincount(why, minlength=NO_NODE + 1)
    found = [(int(counts[code]), reason_of(code)) for code in np.flatnonzero(counts).tolist() if 0 < code < NO_NODE]
    return {reason: count for count, reason in sorted(found, key=lambda pair: (-pair[0], pair[1].value))}
