"""analytics: reclaimable work. On SIGTERM it writes a checkpoint, from which the next run continues.

The checkpoint is `checkpoint.json` in the working directory, or the file that `CHECKPOINT` names.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from holdfast.samples.web import Sample, log_line

PATH = os.environ.get("CHECKPOINT") or "checkpoint.json"
ROWS_PER_TICK = 200
LOG_EVERY_ROWS = 20_000

_state = {"rows": 0, "sum": 0}


def restore() -> None:
    try:
        with open(PATH, encoding="utf-8") as f:
            _state.update(json.load(f))
        log_line(f"analytics continues at row {_state['rows']}")
    except (OSError, ValueError):
        log_line("analytics starts at the first row")


def work() -> None:
    for row in range(_state["rows"], _state["rows"] + ROWS_PER_TICK):
        _state["sum"] = (_state["sum"] + row * row) % 1_000_003
    _state["rows"] += ROWS_PER_TICK
    if _state["rows"] % LOG_EVERY_ROWS == 0:
        log_line(f"analytics has processed {_state['rows']} rows")


def checkpoint() -> None:
    part = PATH + ".part"
    with open(part, "w", encoding="utf-8") as f:
        json.dump(_state, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(part, PATH)
    log_line(f"analytics wrote its checkpoint at row {_state['rows']}")


def answer(path: str) -> dict[str, Any] | None:
    return dict(_state) if path == "/" else None


if __name__ == "__main__":
    restore()
    sys.exit(Sample("analytics", answer=answer, tick=work, last=checkpoint).run())
