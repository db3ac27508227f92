"""`holdfast` with counters of the work per object, for the benchmark `steps`.

It takes the command line of `holdfast`. The counters appear in the cell's `/metrics` as `bench_steps_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import Counter

from holdfast.cli.app import run
from holdfast.client import watch_lines
from holdfast.controllers.workqueue import Workqueue
from holdfast.gate.events import EventLog
from holdfast.gate.write_plan import WritePlan
from holdfast.model import codec

METRIC = "bench_steps"
_steps = Counter(METRIC, "Steps of this cell.", ["step"])


def _count(owner: Any, name: str, step: str, number: Callable[..., int] = lambda *_: 1) -> None:
    """Counts the calls of a function of a module or class."""
    original, counter = getattr(owner, name), _steps.labels(step)

    def counted(*arguments: Any, **named: Any) -> Any:
        counter.inc(number(*arguments))
        return original(*arguments, **named)

    setattr(owner, name, counted)


def _notices(log: EventLog, notices: Sequence[Any]) -> int:
    return len(notices)


if __name__ == "__main__":
    _count(codec, "encode", "encodes")
    _count(codec, "replace_status", "encodes")
    _count(codec, "decode_value", "decodes")
    _count(watch_lines, "decode_object", "decodes")
    _count(WritePlan, "_check_and_stage", "validations")
    _count(Workqueue, "add", "wakeups")
    _count(EventLog, "record", "events", _notices)
    raise SystemExit(run())
