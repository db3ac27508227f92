"""Sends requests to a workload until a file appears, and prints how many were sent and how many failed.

Runs inside a machine, with its PATH: `counting_client.py FOLDER STOP_FILE`. It asks for the addresses every second and
keeps the last answer if there is none, as a load balancer does. A request goes to the next address, and to two more if
the first ones do not answer. An address that did not answer is tried after all others for ten seconds, as nginx does
(`max_fails=1 fail_timeout=10s`, its defaults). Only a request that none of the three answers has failed; the first ones
are printed with their time and addresses.
"""

from __future__ import annotations

import contextlib
import http.client
import json
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


def answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/")
        return b"hello from" in connection.getresponse().read(200)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> None:
    folder, stop = Path(sys.argv[1]), Path(sys.argv[1]) / sys.argv[2]
    known = addresses(folder)

    def follow() -> None:
        nonlocal known
        while not stop.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):  # a region that is lost does not answer
                known = addresses(folder) or known
            time.sleep(1.0)

    threading.Thread(target=follow, daemon=True).start()
    sent = failed = retried = 0
    avoided_until: dict[tuple[str, int], float] = {}
    failures: list[str] = []
    began = time.monotonic()
    while not stop.exists():
        now = time.monotonic()
        targets = known
        turn = sent % len(targets)
        # Sorting keeps the order of those that are equal.
        in_turn = sorted(targets[turn:] + targets[:turn], key=lambda address: avoided_until.get(address, 0.0) > now)
        results = []
        for host, port in in_turn[:ATTEMPTS]:
            results.append(answers(host, port))
            if results[-1]:
                break
            avoided_until[host, port] = time.monotonic() + AVOIDED_FOR_S
        sent += 1
        retried += len(results) - 1
        failed += not any(results)
        if not any(results) and len(failures) < FAILURES_SHOWN:
            failures.append(f"{now - began:.1f} s: {', '.join(f'{host}:{port}' for host, port in in_turn[:ATTEMPTS])}")
        time.sleep(PAUSE_S)
    sys.stdout.write(json.dumps({"sent": sent, "failed": failed, "retried": retried, "failures": failures}) + "\n")


main()
