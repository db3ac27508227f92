"""A fleet installed by the commands of docs/operations/install.md, and a client that counts failed requests."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from tests.machines import ROOT, Fleet, Machine
from tests.page_commands import command_blocks

PAGE = ROOT / "docs" / "operations" / "install.md"
SERVERS_PAGE = ROOT / "docs" / "operations" / "high-availability.md"


def page_scripts(page: Path = PAGE) -> dict[str, list[str]]:
    """The page's command blocks by the machine that their first line names."""
    found: dict[str, list[str]] = {}
    for block in command_blocks(page):
        first, _, rest = block.commands.partition("\n")
        assert first.startswith("# on "), f"{first}: a block of the page does not say on which machine it is run"
        found.setdefault(first.removeprefix("# on "), []).append(rest)
    return found


CONTROL, OPERATOR = "the machine of the global cell", "the operator's machine"
REGION, NODE = "the machine of the region", "each node"


def install(fleet: Fleet, regions: dict[str, int], page_file: Path = PAGE) -> None:
    """Runs the page. `regions` says how many nodes each region gets."""
    page = page_scripts(page_file)
    control = fleet.add("control", 1)
    control.run(page[CONTROL][0])
    number = 2
    for region, nodes in regions.items():
        control.run(page[OPERATOR][0], region=region)
        fleet.add(region, number).run(page[REGION][0], region=region)
        control.run(page[OPERATOR][1], region=region)
        for index in range(1, nodes + 1):
            fleet.add(f"{region}-{index}", number + index).run(page[NODE][0], region=region)
        number += nodes + 1
    control.run(page[OPERATOR][2])


def operator(fleet: Fleet, script: str) -> str:
    return fleet.machines["control"].run(f"export HOLDFAST_STATE=operator.kubeconfig\n{script}")


def serving(fleet: Fleet) -> list[str]:
    """Addresses of the workload that the page creates."""
    answer = operator(fleet, "holdfast endpoints default/hello -o json 2>/dev/null")
    return [f"{a['address']}:{a['ports']['http']}" for a in json.loads(answer)["addresses"]]


def wait_serving(fleet: Fleet, count: int, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = serving(fleet)
            if len(found) >= count:
                return
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
            found = []
        assert time.monotonic() < deadline, (
            f"{len(found)} of {count} replicas serve: {operator(fleet, 'holdfast status')}"
        )
        time.sleep(0.5)


class CountingClient:
    """Sends requests to the workload, as a load balancer does: to the next address, and to one more if that fails."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.counted: dict[str, Any] = {}

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        folder = self._machine.fleet.folder
        script = f"exec python3 {ROOT / 'tests' / 'counting_client.py'} {folder} client.stop"
        self.counted = json.loads(self._machine.run(script, timeout_s=3000).strip().splitlines()[-1])

    def stop(self) -> dict[str, Any]:
        (self._machine.fleet.folder / "client.stop").touch()
        self._thread.join(60)
        return self.counted
