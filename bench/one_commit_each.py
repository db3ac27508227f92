"""`holdfast` with a store that syncs every commit separately: the baseline for group commit.

It takes the command line of `holdfast`. Only the group size differs.
"""

from __future__ import annotations

from holdfast.cli.app import run
from holdfast.store import writer

if __name__ == "__main__":
    writer.STORE_GROUP_COMMITS_MAX = 1
    raise SystemExit(run())
