"""Sends requests to a workload until a file appears, and prints how many were sent and how many failed.

Runs inside a machine, with its PATH: `counting_client.py FOLDER STOP_FILE`. It asks for the addresses every second and
keeps the last answer if there is none, as a load balancer does. A request goes to the next address, and to two more if
the first ones do not answer. Only a request that none of the three answers has failed.
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
            known = addresses(folder) or known
            time.sleep(1.0)

    threading.Thread(target=follow, daemon=True).start()
    sent = failed = retried = 0
    while not stop.exists():
        tried = [known[(sent + index) % len(known)] for index in range(min(ATTEMPTS, len(known)))]
        results = []
        for host, port in tried:
            results.append(answers(host, port))
            if results[-1]:
                break
        sent += 1
        retried += len(results) - 1
        failed += not any(results)
        time.sleep(PAUSE_S)
    sys.stdout.write(json.dumps({"sent": sent, "failed": failed, "retried": retried}) + "\n")


main()
