"""`holdfast serve` with a store that writes every commit by itself: what group commit is measured against.

Takes the command line of `holdfast`. Only the size of a group differs from the real thing.
"""

from __future__ import annotations

from holdfast.cli.app import run
from holdfast.model import limits

if __name__ == "__main__":
    limits.STORE_GROUP_COMMITS_MAX = 1
    raise SystemExit(run())
