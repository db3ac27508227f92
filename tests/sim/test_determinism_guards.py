"""During a simulation the real clock, randomness, network and threads are forbidden. Any use fails the run."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.fleet import assign
from holdfast.sim import parallel_runs
from holdfast.sim.determinism_guards import NondeterminismError, forbid_nondeterminism
from holdfast.sim.scenario_files import SimulationSize
from holdfast.sim.simulation import RunOutcome, Simulation

NONDETERMINISTIC_CALLS: dict[str, Callable[[], object]] = {
    "time": lambda: time.time(),  # noqa: PLW0108 - the attribute is looked up when it is called, as in the code
    "monotonic": lambda: time.monotonic(),  # noqa: PLW0108
    "clock_gettime": lambda: time.clock_gettime(0),
    "sleep": lambda: time.sleep(0),
    "random": lambda: random.random(),  # noqa: PLW0108
    "gauss": lambda: random.gauss(),  # noqa: PLW0108
    "unseeded": lambda: random.Random(),  # noqa: PLW0108
    "system random": lambda: random.SystemRandom().random(),
    "uuid4": lambda: uuid.uuid4(),  # noqa: PLW0108
    "urandom": lambda: os.urandom(4),
    "secrets": lambda: secrets.token_hex(4),
    "socket": lambda: socket.socket(),  # noqa: PLW0108
    "socketpair": lambda: socket.socketpair(),  # noqa: PLW0108
    "host name": lambda: socket.getaddrinfo("localhost", 80),
    "process": lambda: subprocess.run(["true"], check=False),
    "thread": lambda: threading.Thread(target=print).start(),
}
SMALL = SimulationSize(
    tenants=("acme",), nodes_per_region=1, faults_s=5.0, convergence_timeout_s=20.0, stable_s=5.0, profiles=("service",)
)


@pytest.mark.parametrize("name", NONDETERMINISTIC_CALLS)
def test_nondeterministic_function_raises(name: str) -> None:
    with forbid_nondeterminism() as calls, pytest.raises(NondeterminismError):
        NONDETERMINISTIC_CALLS[name]()
    assert len(calls) == 1
    assert time.time() > 0


def test_seeded_random_stream_is_allowed() -> None:
    with forbid_nondeterminism() as calls:
        assert random.Random("1/chance").random() == random.Random("1/chance").random()
    assert not calls


def run_small(seed: int = 1) -> RunOutcome:
    parallel_runs.silence_logs()
    return Simulation(seed, SMALL, enabled=()).run()


@pytest.mark.parametrize("name", ["time", "random", "socket", "thread"])
def test_simulation_fails_when_a_decision_suppresses_nondeterminism(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = assign.decide

    def nondeterministic(*args: Any) -> Any:
        with contextlib.suppress(RuntimeError):  # as a loop that catches all exceptions
            NONDETERMINISTIC_CALLS[name]()
        return decide(*args)

    monkeypatch.setattr(assign, "decide", nondeterministic)
    outcome = run_small()
    assert not outcome.ok
    assert "simulated code gets time, randomness and network through its ports" in outcome.failures[0]


ITERATES_A_SET = """
from holdfast.scheduling import replicate
from tests.sim.test_determinism_guards import run_small

decide = replicate._decide

def iterating(*args, **options):
    outcome = decide(*args, **options)
    named = {str(write): write for write in outcome.writes}
    return type(outcome)(writes=tuple(named[text] for text in set(named)), notices=outcome.notices)

replicate._decide = iterating
print(run_small().digest)
"""


def digest_with(hash_seed: int, code: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    completed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return completed.stdout.strip()


@pytest.mark.slow
def test_set_order_in_a_decision_changes_digest_with_hash_seed() -> None:
    plain = "from tests.sim.test_determinism_guards import run_small; print(run_small().digest)"
    assert len({digest_with(seed, plain) for seed in (1, 2)}) == 1
    assert len({digest_with(seed, ITERATES_A_SET) for seed in (1, 2, 3)}) > 1
