"""Makes full garbage collections cheap, and interrupts effective in background jobs."""

from __future__ import annotations

import gc
import signal

import pytest


def pytest_configure() -> None:
    """A shell starts background jobs with interrupts ignored, and every process of a test would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Excludes all loaded objects from garbage collection, because simulations collect often."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="replace the expected outputs of test scripts")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))
