"""Tests of a missing program are skipped, or fail with CI=true."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Ends the test. `reason` names what is missing and the next step."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (not skipped in CI)")
    pytest.skip(reason)
