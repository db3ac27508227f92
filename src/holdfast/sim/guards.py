"""While a world runs, the real world is out of reach: whoever asks for its time, chance, network or threads fails.

The simulation is only as good as its determinism, and one forgotten `time.time()` would end it quietly. Libraries that
merely keep statistics for people are let through; nothing they learn can reach a decision.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EXEMPT = ("prometheus_client", "structlog", "logging", "importlib", "coverage", "_pytest", "pytest", "tracemalloc")

_FORBIDDEN: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        time,
        ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime", "sleep"),
    ),
    (random, ("random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform", "getrandbits")),
    (uuid, ("uuid1", "uuid4")),
    (os, ("urandom", "getrandom")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice")),
    (socket, ("socket", "create_connection", "getaddrinfo")),
    (subprocess, ("Popen", "run")),
)


class RealWorld(RuntimeError):
    """Simulated code reached for something that the seed does not decide."""


@contextmanager
def guarded() -> Iterator[None]:
    """Inside, every reach for the real world raises `RealWorld`."""
    saved: list[tuple[Any, str, Any]] = []
    for module, names in _FORBIDDEN:
        for name in names:
            if hasattr(module, name):
                real = getattr(module, name)
                saved.append((module, name, real))
                setattr(module, name, _refusing(f"{module.__name__}.{name}", real))
    saved.append((threading.Thread, "start", threading.Thread.start))
    threading.Thread.start = _refusing("threading.Thread.start", threading.Thread.start)  # type: ignore[method-assign]
    saved.append((random.Random, "seed", random.Random.seed))
    random.Random.seed = _seeding(random.Random.seed)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for owner, name, real in reversed(saved):
            setattr(owner, name, real)


def _refusing(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.startswith(EXEMPT):
            return real(*args, **options)
        raise RealWorld(f"{caller} used {what}: simulated code gets time, chance and the network through its ports")

    return refuse


def _seeding(real: Callable[..., None]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            raise RealWorld("a random.Random without a seed: simulated code gets chance through its ports")
        real(self, a, version)

    return seed
