"""How the program logs: one structured line per fact, JSON for machines or columns for people.

Every line names its cell and component. Logging never decides anything and never raises.
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
    """One line of JSON. Whatever is no plain value is written the way it prints."""
    return msgspec.json.encode(facts, enc_hook=default or repr).decode()


def configure(*, cell: str, component: str, form: str = "json", level: str = "", stream: TextIO | None = None) -> None:
    """Sets up logging for the whole process, third-party libraries included. Called once, before anything logs.

    Without a level, HOLDFAST_LOG_LEVEL says it, so that a whole platform can be made to talk more: `info` otherwise.
    """
    asked = "" if level else os.environ.get(LEVEL_VARIABLE, "")
    known = logging.getLevelNamesMapping()
    level = level or (asked if asked.upper() in known else "info")
    if form not in FORMATS:
        raise ValueError(f"log format {form!r} is not known; choose one of {', '.join(FORMATS)}")
    threshold = known.get(level.upper())
    if threshold is None:
        raise ValueError(f"log level {level!r} is not known; choose debug, info, warning or error")
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(serializer=_json) if form == "json" else structlog.dev.ConsoleRenderer()
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
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(cell=cell, component=component)
    if asked and asked.upper() not in known:
        structlog.get_logger().warning(
            "log_level_unknown", found=asked, choices="debug, info, warning, error", used=level
        )
