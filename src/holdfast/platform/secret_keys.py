"""Rotation of the keys that encrypt the Secrets of one cell: add a key, wait until it seals everything, drop the rest.

Every step can be repeated: an interrupted rotation continues with the key that it added. The cell reseals by itself
(`cell/config_upkeep.py`); this only edits the key file and waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.gate.sealing import CannotOpen
from holdfast.identity.secret_keys import KEYS_FILE, add_key, drop_keys, read_keys
from holdfast.model.limits import COMMIT_DEADLINE_S
from holdfast.platform.layout import Layout

KEYS_PATH = "/secrets/v1/keys"
# Time for which no Secret may be sealed with an old key before the key is dropped: a commit that was sealed just
# before the rotation has been answered by then.
SETTLE_S = COMMIT_DEADLINE_S
POLL_EVERY_S = 0.5


def key_file_of(layout: Layout, cell: str) -> Path:
    return layout.cell(cell) / KEYS_FILE


def rotate(api: CellApi, path: Path, *, timeout_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Rotates the key of a running cell. Returns the new key's id, the dropped ones, and the number of Secrets."""
    try:
        keys = read_keys(path)
        if len(keys) == 1:
            say(f"adding a key to {path}")
            add_key(path)
            keys = read_keys(path)
        else:
            say("continuing an interrupted rotation")
        wanted, old = keys[0].id, tuple(key.id for key in keys[1:])
        sealed = _wait_until_unused(api, wanted, old, timeout_s)
        drop_keys(path, old)
    except CannotOpen as fault:
        raise CommandError(fault.message, next_step="add --key-file with the key file of the cell") from None
    return {"key": wanted, "dropped": old, "secrets": sealed}


def _wait_until_unused(api: CellApi, wanted: str, old: tuple[str, ...], timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    unused_since = 0.0
    while True:
        rows = {row["id"]: row for row in api.get(KEYS_PATH)["keys"]}
        left = sum(rows[key]["secrets"] for key in old if key in rows)
        now = time.monotonic()
        is_done = left == 0 and rows.get(wanted, {}).get("seals", False)
        unused_since = (unused_since or now) if is_done else 0.0
        if unused_since and now - unused_since >= SETTLE_S:
            return int(rows[wanted]["secrets"])
        if now >= deadline:
            raise CommandError(
                f"key {wanted}: {left} Secrets are still sealed with another key after {timeout_s:g} s",
                next_step="run the command again; it continues",
                code=ExitCode.TIMED_OUT,
            )
        time.sleep(POLL_EVERY_S)
