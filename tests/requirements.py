"""What a test does without a program it drives: it is left out on a person's machine, and fails where CI=true."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Ends the test. `reason` names what is missing and the next step."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI leaves nothing out)")
    pytest.skip(reason)
