"""Sends requests to a workload until a file appears, and prints how many were sent and how many failed.

Runs inside a machine, with its PATH: `counting_client.py FOLDER STOP_FILE`. It asks for the addresses every second and
keeps the last answer if there is none, as a load balancer does. A request goes to the next address, and to two more if
the first ones do not answer. An address that did not answer is tried after all others for ten seconds, as nginx does
(`max_fails=1 fail_timeout=10s`, its defaults). Only a request that none of the three answers has failed; the first ones
are printed with their time, the error of each attempt, the addresses that were known, and the load of the machine.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ATTEMPTS = 3
TIMEOUT_S = 0.5
PAUSE_S = 0.05
AVOIDED_FOR_S = 10.0
FAILURES_SHOWN = 20
CHANGES_SHOWN = 200


def addresses(folder: Path) -> list[tuple[str, int]]:
    done = subprocess.run(
        ["holdfast", "endpoints", "default/hello", "-o", "json", "--state", str(folder / "operator.kubeconfig")],
        capture_output=True,
        check=False,
        timeout=30,
    )
    with contextlib.suppress(ValueError, KeyError):
        return [(a["address"], int(a["ports"]["http"])) for a in json.loads(done.stdout)["addresses"]]
    return []


def failure(host: str, port: int) -> str:
    """Why the address did not answer; empty if it did."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/")
        body = connection.getresponse().read(200)
    except (OSError, http.client.HTTPException) as error:
        # Much more than TIMEOUT_S means that this machine was too busy to measure.
        return f"{host}:{port}: {type(error).__name__}: {error} after {time.monotonic() - began:.2f} s"
    finally:
        connection.close()
    return "" if b"hello from" in body else f"{host}:{port}: answered {body!r}"


class KnownAddresses(threading.Thread):
    """The addresses of the workload, asked for every second, and when they changed."""

    def __init__(self, folder: Path, stop: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._stop_file = folder, stop
        self.now = addresses(folder)
        self.asked_s = time.time()
        self.changes: list[dict[str, object]] = []

    def run(self) -> None:
        while not self._stop_file.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):  # a region that is lost does not answer
                if found := addresses(self._folder):
                    self._note(found)
            time.sleep(1.0)

    def _note(self, found: list[tuple[str, int]]) -> None:
        self.asked_s = time.time()
        added, removed = sorted(set(found) - set(self.now)), sorted(set(self.now) - set(found))
        if (added or removed) and len(self.changes) < CHANGES_SHOWN:
            self.changes.append({"at": self.asked_s, "added": added, "removed": removed})
        self.now = found


def main() -> None:
    folder, stop = Path(sys.argv[1]), Path(sys.argv[1]) / sys.argv[2]
    known = KnownAddresses(folder, stop)
    known.start()
    sent = failed = retried = 0
    avoided_until: dict[tuple[str, int], float] = {}
    failures: list[dict[str, object]] = []
    while not stop.exists():
        now, began_s = time.monotonic(), time.time()
        targets = known.now
        turn = sent % len(targets)
        # Sorting keeps the order of those that are equal.
        in_turn = sorted(targets[turn:] + targets[:turn], key=lambda address: avoided_until.get(address, 0.0) > now)
        attempts: list[str] = []
        for host, port in in_turn[:ATTEMPTS]:
            attempts.append(failure(host, port))
            if not attempts[-1]:
                break
            avoided_until[host, port] = time.monotonic() + AVOIDED_FOR_S
        sent += 1
        retried += len(attempts) - 1
        if all(attempts):
            failed += 1
            if len(failures) < FAILURES_SHOWN:
                failures.append(
                    {
                        "at": began_s,
                        "attempts": attempts,
                        "known": [f"{host}:{port}" for host, port in targets],
                        "addressesAgeSeconds": round(began_s - known.asked_s, 1),
                        "load": os.getloadavg()[0],
                    }
                )
        time.sleep(PAUSE_S)
    counted = {"sent": sent, "failed": failed, "retried": retried, "failures": failures, "changes": known.changes}
    sys.stdout.write(json.dumps(counted) + "\n")


main()
