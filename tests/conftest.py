"""Makes `import making` work from every test, and full collections of garbage cheap while they run."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_finish() -> None:
    """What was loaded by now stays: no collection need walk through it again, and simulated worlds ask for many."""
    gc.collect()
    gc.freeze()
