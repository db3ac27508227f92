"""An empty state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.platform.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / ".holdfast")
