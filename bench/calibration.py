"""The speed of this machine at the time of a run: a fixed piece of Python, SQLite and TLS work.

It measures no code of the product, so it changes only with the machine and its load. Every benchmark is calibrated
before and after. Bounds on speed (`BY_SPEED` of a module) are judged relative to `REFERENCE`, the machine for which
they were written: a machine that takes twice as long for the fixed work may take twice as long for the figure.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from holdfast.identity.certificates import issue, make_ca

_PYTHON_OBJECTS = 60_000
_SQLITE_COMMITS = 200
_SQLITE_ROWS = 8
_TLS_HANDSHAKES = 150
_TLS_BYTES = 32 << 20
_TLS_CHUNK = 16 << 10


class _Row(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str]
    amounts: tuple[tuple[str, int], ...]


class Calibration(NamedTuple):
    """Seconds of the three parts, and the CPU time of all of them."""

    python_s: float
    sqlite_s: float
    tls_s: float
    cpu_s: float

    @property
    def seconds(self) -> float:
        return self.python_s + self.sqlite_s + self.tls_s

    def with_other(self, other: Calibration) -> Calibration:
        """The mean of two."""
        return Calibration(*((mine + theirs) / 2 for mine, theirs in zip(self, other, strict=True)))

    def slowness(self, figure: str) -> float:
        """How many times slower than the reference. Figures of CPU time are judged by CPU time: a busy machine does not
        raise those as it raises the others."""
        if "_us" in figure or "cpu" in figure:
            return self.cpu_s / REFERENCE.cpu_s
        return self.seconds / REFERENCE.seconds

    def text(self) -> str:
        parts = f"Python {self.python_s:.2f}, SQLite {self.sqlite_s:.2f}, TLS {self.tls_s:.2f}"
        ratio = self.seconds / REFERENCE.seconds
        return f"{self.seconds:.2f} s ({parts}; CPU time {self.cpu_s:.2f}), {ratio:.2f} times the reference"


REFERENCE = Calibration(python_s=0.25, sqlite_s=0.15, tls_s=0.17, cpu_s=0.47)
"""Of the machine for which the bounds were written, while idle: two virtual cores, Python 3.11."""


def calibrate() -> Calibration:
    """Does the work once: about half a second on the reference machine."""
    with tempfile.TemporaryDirectory(prefix="holdfast-calibration-") as place:
        server, client = _contexts(Path(place))
        cpu_began = time.process_time()
        python_s = _seconds(_python)
        sqlite_s = _seconds(lambda: _sqlite(Path(place) / "work.db"))
        tls_s = _seconds(lambda: _tls(server, client))
        return Calibration(python_s, sqlite_s, tls_s, time.process_time() - cpu_began)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _python() -> None:
    """Encodes and decodes objects, indexes and sorts them, as cells do."""
    decode = msgspec.json.Decoder(_Row).decode
    by_name: dict[str, _Row] = {}
    by_label: dict[str, list[str]] = {}
    for number in range(_PYTHON_OBJECTS):
        amounts = (("cpu", number % 97), ("memory", number % 89))
        row = decode(
            msgspec.json.encode(_Row(f"object-{number * 7919 % 99_991:05}", {"part": str(number % 31)}, amounts))
        )
        by_name[row.name] = row
        by_label.setdefault(row.labels["part"], []).append(row.name)
    for names in by_label.values():
        names.sort()
    total = sum(amount for row in by_name.values() for name, amount in row.amounts if name == "cpu")
    if total != sum(number % 97 for number in range(_PYTHON_OBJECTS)):
        raise AssertionError(f"calibration: {total} is not the sum of the amounts")


def _sqlite(file: Path) -> None:
    """Durable commits, as the store makes them: WAL with synchronous=FULL."""
    database = apsw.Connection(str(file))
    try:
        for setting in ("journal_mode=WAL", "synchronous=FULL"):
            list(database.execute(f"PRAGMA {setting}"))
        database.execute("CREATE TABLE history (revision INTEGER PRIMARY KEY, key TEXT, value BLOB)")
        value = bytes(range(256)) * 4
        for commit in range(_SQLITE_COMMITS):
            with database:
                rows = [(f"key-{commit}-{row}", value) for row in range(_SQLITE_ROWS)]
                database.executemany("INSERT INTO history (key, value) VALUES (?, ?)", rows)
    finally:
        database.close()


def _contexts(place: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = make_ca(place, now_s=time.time())
    issued = issue(place, "calibration", "calibration", now_s=time.time(), server=True, dns=("localhost",))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(issued.certificate, issued.key)
    return server, ssl.create_default_context(cafile=str(authority.certificate))


def _tls(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Handshakes and encrypted records in memory."""
    for _ in range(_TLS_HANDSHAKES):
        sending, receiving, wire = _connected(server, client)
    chunk = os.urandom(_TLS_CHUNK)
    for _ in range(_TLS_BYTES // _TLS_CHUNK):
        sending.write(chunk)
        wire[1].write(wire[0].read())
        received = 0
        while received < _TLS_CHUNK:
            received += len(receiving.read(_TLS_CHUNK))


def _connected(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[ssl.SSLObject, ssl.SSLObject, tuple[ssl.MemoryBIO, ssl.MemoryBIO]]:
    """A client and a server that are connected, and the ends of the wire from the client to the server."""
    c_in, c_out, s_in, s_out = (ssl.MemoryBIO() for _ in range(4))
    there = server.wrap_bio(s_in, s_out, server_side=True)
    here = client.wrap_bio(c_in, c_out, server_hostname="localhost")
    pending = [here, there]
    while pending:
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                pass
            s_in.write(c_out.read())
            c_in.write(s_out.read())
    return here, there, (c_out, s_in)
