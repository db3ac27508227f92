"""Determinism guard: during a run, the real clock, randomness, network and threads raise.

One forgotten `time.time()` would make runs nondeterministic. Libraries for logs, metrics and test tools are exempt,
because their values never reach a decision.
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
        (
            "time",
            "time_ns",
            "monotonic",
            "monotonic_ns",
            "perf_counter",
            "perf_counter_ns",
            "process_time",
            "clock_gettime",
            "clock_gettime_ns",
            "sleep",
        ),
    ),
    (
        random,
        (
            "random",
            "randint",
            "randrange",
            "choice",
            "choices",
            "shuffle",
            "sample",
            "uniform",
            "getrandbits",
            "randbytes",
            "triangular",
            "gauss",
            "normalvariate",
            "expovariate",
            "betavariate",
            "_urandom",
        ),
    ),
    (uuid, ("uuid1", "uuid4")),
    (os, ("urandom", "getrandom")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice")),
    (socket, ("socket", "socketpair", "create_connection", "create_server", "getaddrinfo", "gethostname")),
    (subprocess, ("Popen", "run")),
)


REPORTED_MAX = 5


class NondeterminismError(RuntimeError):
    """Simulated code used a source of nondeterminism."""


@contextmanager
def forbid_nondeterminism() -> Iterator[list[str]]:
    """Makes every use of a nondeterministic function raise `NondeterminismError`. The yielded list also records it,
    because a loop that catches all exceptions would hide it."""
    saved: list[tuple[Any, str, Any]] = []
    reached: list[str] = []
    for module, names in _FORBIDDEN:
        for name in names:
            if hasattr(module, name):
                real = getattr(module, name)
                saved.append((module, name, real))
                setattr(module, name, _refusing(f"{module.__name__}.{name}", real, reached))
    saved.append((threading.Thread, "start", threading.Thread.start))
    start = _refusing("threading.Thread.start", threading.Thread.start, reached)
    threading.Thread.start = start  # type: ignore[method-assign]
    saved.append((random.Random, "seed", random.Random.seed))
    random.Random.seed = _seeding(random.Random.seed, reached)  # type: ignore[method-assign]
    try:
        yield reached
    finally:
        for owner, name, real in reversed(saved):
            setattr(owner, name, real)


def _refused(reached: list[str], what: str) -> NondeterminismError:
    if len(reached) < REPORTED_MAX:
        reached.append(what)
    return NondeterminismError(what)


def _refusing(what: str, real: Callable[..., Any], reached: list[str]) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.startswith(EXEMPT):
            return real(*args, **options)
        message = f"{caller} used {what}: simulated code gets time, randomness and network through its ports"
        raise _refused(reached, message)

    return refuse


def _seeding(real: Callable[..., None], reached: list[str]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            raise _refused(reached, "random.Random without a seed: simulated code gets randomness through its ports")
        real(self, a, version)

    return seed
