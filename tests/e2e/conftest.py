"""Makes `import test_up` work from the other tests of whole platforms: it has the ways a user has to one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
