"""Explains failed requests of `tests.counting_client`: the step of the test, the address lists, and the logs then."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.machines import Fleet

BEFORE_S, AFTER_S = 15.0, 3.0
LINES_PER_LOG = 40
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?")


class Steps:
    """Prints when each step of a test ended, and remembers it."""

    def __init__(self) -> None:
        self._start_s = time.time()
        self.ended_steps: list[tuple[float, str]] = []

    def ended(self, name: str) -> None:
        now_s = time.time()
        self.ended_steps.append((now_s, name))
        print(f"{now_s - self._start_s:6.0f} s  {name}", flush=True)

    def around(self, at_s: float) -> str:
        before = [name for ended_s, name in self.ended_steps if ended_s <= at_s]
        after = [name for ended_s, name in self.ended_steps if ended_s > at_s]
        last, following = before[-1] if before else "the start", after[0] if after else "the end"
        return f'{at_s - self._start_s:.1f} s, after "{last}" and before "{following}"'


def explanation(counted: dict[str, Any], steps: Steps, fleet: Fleet) -> str:
    """What a reader needs to find the cause of each failed request."""
    return "\n".join(_lines(counted, steps, fleet))


def _lines(counted: dict[str, Any], steps: Steps, fleet: Fleet) -> Iterator[str]:
    yield f"{counted['failed']} of {counted['sent']} requests failed"
    for failure in counted["failures"]:
        at_s = float(failure["at"])
        yield f"\nfailed at {_clock(at_s)} ({steps.around(at_s)}), load {failure['load']:.1f}"
        for attempt in failure["attempts"]:
            yield f"  {attempt} ({_machine_of(fleet, attempt)})"
        yield f"  known for {failure['addressesAgeSeconds']} s: {', '.join(failure['known'])}"
        for change in counted["changes"]:
            if at_s - BEFORE_S <= change["at"] <= at_s + AFTER_S:
                yield f"  {_clock(change['at'])} added {change['added']}, removed {change['removed']}"
        for name, machine in fleet.machines.items():
            for log in sorted(machine.folder.rglob("service.log")):
                lines = lines_between(log, at_s - BEFORE_S, at_s + AFTER_S)
                yield from (f"  {name}: {line}" for line in lines[-LINES_PER_LOG:])


def lines_between(log: Path, from_s: float, to_s: float) -> Sequence[str]:
    """Lines of the log whose time is in the range."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = _TIME.search(line[:200])
        if match is not None:
            at_s = datetime.fromisoformat(match.group().replace(" ", "T")).replace(tzinfo=UTC).timestamp()
            if from_s <= at_s <= to_s:
                found.append(line[:300])
    return found


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S.%f")[:-3]


def _machine_of(fleet: Fleet, attempt: str) -> str:
    address = attempt.partition(":")[0]
    names = [name for name, machine in fleet.machines.items() if machine.address == address]
    return names[0] if names else "no machine has this address"
