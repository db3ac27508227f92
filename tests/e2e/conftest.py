"""Makes `import drilled` and the like work from the tests of whole platforms."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
