"""Makes full garbage collections cheap."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_finish() -> None:
    """Excludes all loaded objects from garbage collection, because simulations collect often."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="replace the expected outputs of test scripts")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))
