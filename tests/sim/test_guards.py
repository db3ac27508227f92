"""While a world runs, the real clock, chance, network and threads are out of reach."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable

import pytest

from holdfast.sim.guards import RealWorld, guarded

REACHES: dict[str, Callable[[], object]] = {
    "time": lambda: time.time(),  # noqa: PLW0108 - the attribute is looked up when it is called, as in the code
    "monotonic": lambda: time.monotonic(),  # noqa: PLW0108
    "random": lambda: random.random(),  # noqa: PLW0108
    "unseeded": lambda: random.Random(),  # noqa: PLW0108
    "uuid4": lambda: uuid.uuid4(),  # noqa: PLW0108
    "urandom": lambda: os.urandom(4),
    "socket": lambda: socket.socket(),  # noqa: PLW0108
    "thread": lambda: threading.Thread(target=print).start(),
}


@pytest.mark.parametrize("name", REACHES)
def test_reaching_for_the_real_world_fails(name: str) -> None:
    with guarded(), pytest.raises(RealWorld):
        REACHES[name]()
    assert time.time() > 0


def test_a_seeded_stream_is_fine() -> None:
    with guarded():
        assert random.Random("1/chance").random() == random.Random("1/chance").random()
