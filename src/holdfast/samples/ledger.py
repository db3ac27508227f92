"""ledger: exclusive work that writes to a database which refuses a stale instance by its fencing token.

Work that is paused for longer than its lease (the whole machine stops, a virtual machine is moved) cannot be killed in
time, and continues where it stopped when its successor already writes. So the database remembers the highest fencing
token that wrote, and compares it in the transaction of every write. SQLite stands for any database with transactions.

`LEDGER_DB` is the file, `LEDGER_EVERY_S` the pause between two entries. A stale instance ends with exit code 3.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time

STALE_EXIT_CODE = 3
SCHEMA = """
CREATE TABLE IF NOT EXISTS fence (name TEXT PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, name TEXT NOT NULL, token TEXT NOT NULL, text TEXT NOT NULL);
"""


class StaleInstance(Exception):
    """A later instance of the same ordinal has written."""


class FencedLedger:
    """`name` is the ordinal that one instance at a time owns; `token` is that of this instance."""

    def __init__(self, path: str, name: str, token: str) -> None:
        self._name, self._token = name, token
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        self._db.executescript(SCHEMA)

    def write(self, text: str) -> None:
        """Adds an entry, if no later instance has written. The check and the entry are one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            row = self._db.execute("SELECT token FROM fence WHERE name = ?", (self._name,)).fetchone()
            if row is not None and row[0] > self._token:
                raise StaleInstance(f"{self._name}: token {self._token} is older than {row[0]}, which has written")
            self._db.execute(
                "INSERT INTO fence VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET token = excluded.token",
                (self._name, self._token),
            )
            self._db.execute("INSERT INTO entry (name, token, text) VALUES (?, ?, ?)", (self._name, self._token, text))
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def main() -> int:
    name = f"{os.environ['HOLDFAST_TENANT']}/{os.environ['HOLDFAST_WORKLOAD']}/{os.environ['HOLDFAST_ORDINAL']}"
    ledger = FencedLedger(os.environ["LEDGER_DB"], name, os.environ["HOLDFAST_FENCING_TOKEN"])
    every_s = float(os.environ.get("LEDGER_EVERY_S", "1"))
    count = 0
    while True:
        count += 1
        try:
            ledger.write(f"entry {count} of {os.environ['HOLDFAST_REPLICA']}")
        except StaleInstance as stale:
            sys.stderr.write(f"{stale}\n")
            return STALE_EXIT_CODE
        time.sleep(every_s)


if __name__ == "__main__":
    sys.exit(main())
