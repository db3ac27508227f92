"""While a world runs, the real clock, chance, network and threads are out of reach: whoever reaches fails the run."""

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
from holdfast.sim.determinism_guards import NondeterminismError, forbid_real_world
from holdfast.sim.scenario_files import WorldSize
from holdfast.sim.simulation import RunOutcome, Simulation

REACHES: dict[str, Callable[[], object]] = {
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
    "name of a host": lambda: socket.getaddrinfo("localhost", 80),
    "process": lambda: subprocess.run(["true"], check=False),
    "thread": lambda: threading.Thread(target=print).start(),
}
SMALL = WorldSize(
    tenants=("acme",), nodes_per_region=1, faults_s=5.0, convergence_timeout_s=20.0, stable_s=5.0, profiles=("service",)
)


@pytest.mark.parametrize("name", REACHES)
def test_reaching_for_the_real_world_fails(name: str) -> None:
    with forbid_real_world() as reached, pytest.raises(NondeterminismError):
        REACHES[name]()
    assert len(reached) == 1
    assert time.time() > 0


def test_a_seeded_stream_is_fine() -> None:
    with forbid_real_world() as reached:
        assert random.Random("1/chance").random() == random.Random("1/chance").random()
    assert not reached


def small_world(seed: int = 1) -> RunOutcome:
    parallel_runs.silence_logs()
    return Simulation(seed, SMALL, enabled=()).run()


@pytest.mark.parametrize("name", ["time", "random", "socket", "thread"])
def test_a_run_fails_when_a_decision_reaches_for_the_real_world_even_if_that_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = assign.decide

    def reaching(*args: Any) -> Any:
        with contextlib.suppress(RuntimeError):  # as a loop does that must go on whatever happens
            REACHES[name]()
        return decide(*args)

    monkeypatch.setattr(assign, "decide", reaching)
    outcome = small_world()
    assert not outcome.ok
    assert "simulated code gets time, randomness and network through its ports" in outcome.failures[0]


ITERATES_A_SET = """
from holdfast.scheduling import replicate
from tests.sim.test_determinism_guards import small_world

decide = replicate._decide

def iterating(*args, **options):
    outcome = decide(*args, **options)
    named = {str(write): write for write in outcome.writes}
    return type(outcome)(writes=tuple(named[text] for text in set(named)), notices=outcome.notices)

replicate._decide = iterating
print(small_world().digest)
"""


def digest_with(hash_seed: int, code: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


@pytest.mark.slow
def test_a_set_iterated_into_a_decision_is_seen_by_another_hash_seed() -> None:
    plain = "from tests.sim.test_determinism_guards import small_world; print(small_world().digest)"
    assert len({digest_with(seed, plain) for seed in (1, 2)}) == 1
    assert len({digest_with(seed, ITERATES_A_SET) for seed in (1, 2, 3)}) > 1
