"""Restore of old backups with real cells, agents and running tasks: nothing runs twice, no quota is exceeded.

Between backup and restore an exclusive replica and most of a quota move to the other region. The tasks record when they
ran; the grant limits are read from the stores.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import RunningPlatform, holdfast, processes_of, running_platform, wait_until

from holdfast.drills import outage
from holdfast.model import codec
from holdfast.model.errors import StoreFailed
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.kinds import kind_of_store_key
from holdfast.model.quantity import amounts
from holdfast.platform.layout import Layout
from holdfast.sim.recorded_history import check_platform
from holdfast.store import backup

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(400)]

EAST, WEST = "us-east", "eu-west"
HARD_CPU = 14
"""Just enough for the desired replicas and the surge of one rollout each."""
WITHIN_S = 120.0
BEAT = (
    'while :; do echo "$HOLDFAST_REPLICA $HOLDFAST_REGION $$ $(date +%s.%N) $HOLDFAST_NODE" >> {file}; sleep 0.1; done'
)


def manifest(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta, "spec": spec}


def workload(name: str, replicas: int, region: str, command: list[str], **more: Any) -> dict[str, Any]:
    template = {"command": command, "resources": {"cpu": "1", "memory": "64Mi"}, "terminationGraceSeconds": 1}
    placement = {"regions": [region]}
    spec = {"replicas": replicas, "priorityClassName": "plain", "template": template, "placement": placement, **more}
    return manifest("Workload", name, spec, "acme")


def last_beat(beats: Path, field: int) -> str:
    """One field of the newest record; empty before the first."""
    lines = beats.read_text().splitlines()
    return lines[-1].split()[field] if lines else ""


class RestorePlatform:
    """A platform of two regions and its desired state."""

    def __init__(self, running: RunningPlatform) -> None:
        self.up = running
        self.layout = Layout(running.state)
        self.beats = running.shared_file("beats")
        self.pins = running.shared_file("pins")

    def apply_desired(self, east: int, west: int, lock: str) -> None:
        """`lock` is the region of the exclusive replica; empty for none."""
        beat = ["sh", "-c", BEAT.format(file=self.beats)]
        manifests = [
            manifest("Tenant", "acme", {}),
            manifest("PriorityClass", "plain", {"priority": 0}),
            manifest("Quota", "quota", {"hard": {"cpu": str(HARD_CPU), "memory": "64Gi"}}, "acme"),
            workload("lock", 1 if lock else 0, lock or EAST, beat, exclusive={}),
            workload("pin", 1, EAST, ["sh", "-c", BEAT.format(file=self.pins)], exclusive={}),
            workload("east", east, EAST, ["sleep", "1000"]),
            workload("west", west, WEST, ["sleep", "1000"]),
        ]
        self.up.apply(*manifests)

    def running(self, workload: str) -> int:
        """Number of running processes of a workload, read from /proc."""
        mark = f"HOLDFAST_WORKLOAD={workload}".encode()
        found = 0
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or (entry / "comm").read_text().strip() not in ("sleep", "sh"):
                    continue
                environ = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().split(b"\0")[:2]
                in_state_folder = str(self.up.state) in os.readlink(entry / "cwd")
                found += in_state_folder and mark in environ and command in ([b"sleep", b"1000"], [b"sh", b"-c"])
        return found

    def settled(self, east: int, west: int, lock: str) -> bool:
        if (self.running("east"), self.running("west"), self.running("lock")) != (east, west, 1):
            return False
        return last_beat(self.beats, 1) == lock

    def until_settled(self, east: int, west: int, lock: str, what: str) -> None:
        def counts() -> tuple[int, ...]:
            return tuple(self.running(name) for name in ("east", "west", "lock"))

        try:
            wait_until(lambda: self.settled(east, west, lock), within_s=WITHIN_S, what=what)
        except AssertionError as error:
            listing = self.up.kubectl("get", "quota,grants,assignments", "-A", check=False)
            raise AssertionError(f"{error}: east, west, lock run {counts()}\n{listing}") from error

    def move_pin(self) -> None:
        """Moves it to another node of its region: cordon, then delete the replica."""
        node = self.pin_at()
        self.up.kubectl("--context", EAST, "cordon", node)
        self.up.kubectl("--context", EAST, "delete", "replica", f"pin-{EAST}-0", "-n", "acme", "--wait=false")
        wait_until(lambda: self.pin_at() not in ("", node), within_s=WITHIN_S, what=f"it has left {node}")

    def pin_at(self) -> str:
        return last_beat(self.pins, 4)

    def save(self, cell: str, path: Path) -> None:
        holdfast("backup", "--cell", cell, "--state", str(self.layout.cell(cell)), "--to", str(path))

    def restore(self, cell: str, path: Path) -> None:
        """Restores a cell as an operator does, while agents and tasks run."""
        name = f"cell-{cell}"
        outage.hold_down(self.layout, [name])
        assert outage.kill_processes(self.layout, [name]) == 1
        holdfast("restore", "--cell", cell, "--state", str(self.layout.cell(cell)), "--from", str(path), "--replace")
        outage.allow_restart(self.layout, [name])

    def confirm_deletion(self, region: str, workload: str) -> None:
        """The region holds the workload that moved there after the backup, until two operators confirm its deletion."""

        def holds_work() -> bool:
            shown = self.up.kubectl("--context", region, "get", "region", region, "-o", "json")
            conditions = json.loads(shown).get("status", {}).get("conditions", [])
            return any(c["type"] == "HoldsWork" and c["status"] == "True" for c in conditions)

        wait_until(holds_work, within_s=WITHIN_S, what=f"{region} says that it holds {workload}")
        state = ("--state", str(self.up.state))
        scope = ("--region", region, "--tenant", "acme", "--workload", workload)
        made = ("create", "ConfirmDeletion", "--name", "confirm", *scope, "--reason", "moved after the backup")
        holdfast("override", *made, "--yes", *state)
        second = holdfast("token", "create", "second", "--operator", *state).stdout.strip()
        holdfast("override", "approve", "confirm", "--token", second, *state)


class QuotaObserver(threading.Thread):
    """Continuously sums the grant limits of both regions and the running processes."""

    def __init__(self, platform: RestorePlatform) -> None:
        super().__init__(daemon=True)
        self._platform = platform
        self._ended = threading.Event()
        self.most = 0
        self.samples = 0
        self.over: list[str] = []

    def run(self) -> None:
        while not self._ended.wait(0.2):
            running = sum(self._platform.running(name) for name in ("east", "west", "lock", "pin"))
            if running > HARD_CPU:
                self.over.append(f"{running} processes of one core each run")
            with contextlib.suppress(StoreFailed, OSError):
                # A share may move between the regions during the readings, so the first region is read twice.
                first, other, again = (self._limit_of(cell) for cell in (EAST, WEST, EAST))
                total = min(first, again) + other
                self.samples += 1
                self.most = max(self.most, total)
                if total > HARD_CPU * 1000:
                    self.over.append(f"{EAST} {first} then {again}, {WEST} {other}")

    def end(self) -> None:
        self._ended.set()
        self.join(10)

    def _limit_of(self, cell: str) -> int:
        limit = 0
        for put in backup.read_sqlite(cell, self._platform.layout.cell(cell) / "store.sqlite").entries:
            kind = kind_of_store_key(put.key)
            if kind is not None and kind.type is GrantCopy:
                limit += amounts(codec.decode(kind, put.value, 0).spec.limit).get("cpu", 0)
        return limit


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestorePlatform]:
    folder = tmp_path_factory.mktemp("restored")
    state = folder / "state"
    with running_platform(state, "--regions", f"{EAST},{WEST}", "--no-samples") as running:
        yield RestorePlatform(running)
    assert processes_of(state) == []


def test_restore_of_old_backups_runs_nothing_twice(platform: RestorePlatform, tmp_path: Path) -> None:
    platform.apply_desired(east=7, west=1, lock=EAST)
    platform.until_settled(7, 1, EAST, "everything runs")
    platform.save("global", tmp_path / "global")
    platform.save(EAST, tmp_path / EAST)
    # After the backups most of the quota and the exclusive replica move west.
    platform.apply_desired(east=1, west=7, lock="")
    wait_until(lambda: platform.running("lock") == 0, within_s=WITHIN_S, what="the exclusive replica has ended")
    platform.apply_desired(east=1, west=7, lock=WEST)
    platform.until_settled(1, 7, WEST, "what was moved runs in the west")
    platform.move_pin()
    observer = QuotaObserver(platform)
    observer.start()
    try:
        platform.restore(EAST, tmp_path / EAST)
        wait_until(
            lambda: _incarnation(platform, EAST).startswith("joined "),
            within_s=WITHIN_S,
            what="the region has rejoined",
        )
        platform.until_settled(1, 7, WEST, "the region has followed the global cell again")
        platform.restore("global", tmp_path / "global")
        platform.confirm_deletion(WEST, "lock")
        # The backup has the old desired state: everything moves back, and no quota is granted before its release.
        platform.until_settled(7, 1, EAST, "everything matches the restored global cell")
    finally:
        observer.end()
    assert observer.samples > 20
    assert not observer.over, observer.over[:5]
    print(f"at most {observer.most}m of {HARD_CPU}000m were held, in {observer.samples} samples")
    assert_alone(platform.beats)
    assert_alone(platform.pins)
    verdict = check_platform(platform.up.state)
    assert not verdict.violations, "\n".join(map(str, verdict.violations[:10]))
    print(f"the histories of all cells: {verdict}")


def _incarnation(platform: RestorePlatform, cell: str) -> str:
    for put in backup.read_sqlite(cell, platform.layout.cell(cell) / "store.sqlite").entries:
        if put.key == "/terms/incarnation":
            kind = kind_of_store_key(put.key)
            assert kind is not None
            spec = codec.decode(kind, put.value, 0).spec
            return f"{spec.holder} {spec.term}"
    return ""


def spans_of(beats: Path) -> list[tuple[float, float, tuple[str, str]]]:
    """First and last record of each process of the exclusive replica, by region and pid."""
    lives: dict[tuple[str, str], list[float]] = {}
    for line in beats.read_text().splitlines():
        replica, region, pid, at, _ = line.split()
        assert replica.endswith("-0"), f"{replica} is another ordinal, so the first is not checked"
        lives.setdefault((region, pid), []).append(float(at))
    return sorted((min(times), max(times), who) for who, times in lives.items())


def assert_alone(beats: Path) -> None:
    """No two processes of the exclusive replica were alive at the same time, by their own records."""
    wait_until(lambda: len(spans_of(beats)) >= 3, within_s=WITHIN_S, what="it moved there and back")
    for (_, ended, one), (began, _, other) in itertools.pairwise(spans_of(beats)):
        assert ended < began, f"{one} ran until {ended}, {other} from {began}"
