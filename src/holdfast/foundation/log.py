"""Logging setup: one structured line per event, as JSON or as columns for people.

Every line names its cell and component. Logging never raises and never influences a decision.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import msgspec
import structlog

FORMATS = ("json", "console")
LEVEL_VARIABLE = "HOLDFAST_LOG_LEVEL"


def _json(facts: dict[str, Any], default: Any = None, **_: Any) -> str:
    """One line of JSON. Values that JSON cannot express are written as their repr."""
    return msgspec.json.encode(facts, enc_hook=default or repr).decode()


def configure(*, cell: str, component: str, form: str = "json", level: str = "", stream: TextIO | None = None) -> None:
    """Sets up logging for the process, including third-party libraries. Call it once, before the first log line.

    Without `level`, HOLDFAST_LOG_LEVEL applies, else `info`. The variable raises verbosity of a whole platform.
    """
    configured = "" if level else os.environ.get(LEVEL_VARIABLE, "")
    known = logging.getLevelNamesMapping()
    level = level or (configured if configured.upper() in known else "info")
    if form not in FORMATS:
        raise ValueError(f"log format {form}: unknown (expected one of {', '.join(FORMATS)})")
    threshold = known.get(level.upper())
    if threshold is None:
        raise ValueError(f"log level {level}: unknown (expected debug, info, warning or error)")
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(serializer=_json)
        if form == "json"
        # Not the default, which prints local variables.
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    tail: list[Any] = [structlog.processors.format_exc_info, renderer] if form == "json" else [renderer]
    structlog.configure(
        processors=[*shared, *tail],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(cell=cell, component=component)
    if configured and configured.upper() not in known:
        structlog.get_logger().warning(
            "log_level_unknown", found=configured, choices="debug, info, warning, error", used=level
        )
