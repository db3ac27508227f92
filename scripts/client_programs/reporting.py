"""What the programs of all Python clients share: the workload they create, and the lines they print."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

WORKLOAD: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "spec": {"replicas": 1, "template": {"command": ["sleep", "600"], "resources": {"cpu": "100m", "memory": "32Mi"}}},
}
# Length of an error in the table.
ERROR_CHARS_MAX = 200


class Checks:
    def __init__(self, client: str, version: str) -> None:
        self._client, self._version = client, version
        self._results: dict[str, str] = {}

    def run(self, name: str, check: Callable[[], Any]) -> None:
        try:
            check()
            self._results[name] = "ok"
        except Exception as error:
            traceback.print_exc()
            self._results[name] = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]

    def done(self) -> None:
        write_result(self._client, self._version, self._results)


def write_result(client: str, version: str, results: dict[str, str]) -> None:
    sys.stdout.write(json.dumps({"client": client, "version": version, "checks": results}) + "\n")
    sys.stdout.flush()
