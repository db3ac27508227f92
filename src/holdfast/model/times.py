"""Conversion between API times (RFC 3339) and Unix time in seconds. No function here reads a clock."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def seconds_text(at_s: float) -> str:
    """RFC 3339 in whole seconds: creationTimestamp, lastTransitionTime."""
    return _second(int(at_s)) + "Z"


def micro_text(at_s: float) -> str:
    """RFC 3339 in microseconds: leases, expiries and other times that decisions compare."""
    second = int(at_s)
    micros = round((at_s - second) * 1e6)
    if not 0 <= micros < 1_000_000:
        carried, micros = divmod(micros, 1_000_000)
        second += carried
    return f"{_second(second)}.{micros:06}Z"


@lru_cache(maxsize=256)
def _second(second: int) -> str:
    """Cached, because most times that are written fall into the same few seconds."""
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat()


@lru_cache(maxsize=4096)
def parse_time(text: str) -> float:
    """Unix time of an RFC 3339 time. Raises ValueError for any other text."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no time zone; write it as 2026-01-02T03:04:05Z")
    return moment.timestamp()


def age_text(since: str, now_s: float) -> str:
    """An age as kubectl prints it: 5s, 3m10s, 2h, 4d."""
    if not since:
        return ""
    gap = max(0, int(now_s - parse_time(since)))
    if gap < 120:
        return f"{gap}s"
    minutes, hours, days = gap // 60, gap // 3600, gap // 86400
    if minutes < 10:
        rest = gap % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d"
