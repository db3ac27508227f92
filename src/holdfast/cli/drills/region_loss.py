"""The loss of a whole region: its cell, its agents and all their work are killed, and the clock runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from holdfast.cli.drills.leftovers import leftovers
from holdfast.cli.drills.outage import hold_down, kill, names_of, region_of, restore
from holdfast.cli.drills.report import Report, SixAnswers
from holdfast.cli.drills.world import Item, Watcher, violations
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.platform.layout import Layout
from holdfast.model.times import parse_time

LOOK_EVERY_S = 0.25
CHECK_EVERY_S = 2.0
RECORDED_WITHIN_S = 5.0
CLOCK_FIELDS = (
    ("detectedAt", "recovery opened"), ("assignedAt", "assigned"), ("boundAt", "bound"), ("readyAt", "ready"),
    ("servingAt", "serving"),
)  # fmt: skip


class RegionLoss:
    def __init__(self, layout: Layout, region: str, *, timeout_s: float, say: Callable[[str], None]) -> None:
        self._layout = layout
        self._platform = layout.load()
        self._plan = region_of(self._platform, region)
        self._region = region
        self._timeout_s = timeout_s
        self._say = say
        self._watcher = Watcher(layout, self._platform)
        self._clock: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._violations: list[str] = []
        self._failures: list[str] = []

    def run(self, *, fail_back: bool) -> Report:
        names = names_of(self._plan)
        try:
            self._check_ready()
            lost_at = time.time()
            started_s = time.monotonic()
            hold_down(self._layout, names)
            killed = kill(self._layout, names)
            self._say(f"killed {killed} processes of region {self._region}")
            served = self._until_served(started_s)
            recovery = self._until_recorded()
            if not recovery:
                self._failures.append(f"no Recovery was opened for region {self._region}")
            self._read_clock(recovery, lost_at)
            self._check_addresses()
            self._violations += [v for v in violations(self._watcher) if v not in self._violations]
            left: list[str] = []
            if fail_back and recovery:
                self._say(f"giving region {self._region} back; waiting for failback and the cleanup check")
                restore(self._layout, names)
                left = self._until_closed(started_s)
            return self._report(recovery, left, killed, served=served)
        finally:
            restore(self._layout, names)
            self._watcher.close()

    def _check_ready(self) -> None:
        short = [w for w in self._watcher.critical() if not self._whole(w)]
        if short:
            name = short[0]["metadata"]["name"]
            raise Stop(
                f"the platform is not whole: {name} does not serve all its replicas yet",
                next_step="holdfast status shows what is missing; start the drill when everything serves",
                code=Exit.CONFLICT,
            )
        if not self._watcher.critical():
            raise Stop("no workload has a recovery promise", next_step="set spec.recovery on one", code=Exit.USAGE)
        still = [r for r in self._watcher.list("recoveries") if r.get("status", {}).get("phase") != "Closed"]
        if still:
            raise Stop(
                f"recovery {still[0]['metadata']['name']} is still open",
                next_step="wait until it has closed (holdfast cleanup-check)",
                code=Exit.CONFLICT,
            )

    def _whole(self, workload: Item) -> bool:
        summary = workload.get("status", {}).get("summary", {})
        return bool(summary.get("serving", 0) >= workload["spec"]["replicas"])

    def _until_served(self, started_s: float) -> bool:
        """Looks until every critical workload serves enough in one other region, or time is up."""
        checked_s = started_s
        told = ""
        while time.monotonic() - started_s < self._timeout_s:
            now_s = time.monotonic() - started_s
            region = self._watcher.get("regions", self._region)
            state = region.get("status", {}).get("health", {}).get("state", "")
            if state != told:
                told = state
                self._clock.setdefault(f"region {state.lower()}", round(now_s, 2)) if state != "Healthy" else None
                self._say(f"{now_s:6.1f} s  region {self._region}: {state}")
            if state == "Lost" and self._note_served(now_s):
                return True
            if time.monotonic() - checked_s >= CHECK_EVERY_S:
                checked_s = time.monotonic()
                self._violations += [v for v in violations(self._watcher) if v not in self._violations]
            time.sleep(LOOK_EVERY_S)
        self._failures.append(f"not every critical workload was back within {self._timeout_s:.0f} s")
        return False

    def _note_served(self, now_s: float) -> bool:
        done = True
        for workload in self._watcher.critical():
            name = f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
            enough = workload["spec"]["recovery"].get("minServing", 4)
            elsewhere = {r: n for r, n in self._watcher.serving_in(workload).items() if r != self._region}
            if name not in self._seconds and max(elsewhere.values(), default=0) >= enough:
                self._seconds[name] = round(now_s, 2)
                self._say(f"{now_s:6.1f} s  {name}: {elsewhere}")
            done = done and name in self._seconds
        return done

    def _until_recorded(self) -> Item:
        """The Recovery, once it has noticed itself what was just seen: its clock is part of the report."""
        recovery = self._recovery()
        deadline = time.monotonic() + RECORDED_WITHIN_S
        while recovery.get("status", {}).get("phase") == "Open" and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
            recovery = self._recovery()
        return recovery

    def _recovery(self) -> Item:
        found = [r for r in self._watcher.list("recoveries") if r["spec"]["region"] == self._region]
        newest: Item = max(found, key=lambda r: r["metadata"]["creationTimestamp"], default={})
        return newest

    def _read_clock(self, recovery: Item, lost_at: float) -> None:
        clock = recovery.get("status", {}).get("clock", {})
        for field, stage in CLOCK_FIELDS:
            if clock.get(field):
                self._clock[stage] = round(parse_time(clock[field]) - lost_at, 2)

    def _check_addresses(self) -> None:
        """Serving means that something answers: every address in the other regions' endpoints accepts a connection."""
        critical = {(w["metadata"]["namespace"], w["metadata"]["name"]) for w in self._watcher.critical()}
        for endpoint in self._watcher.list("endpoints"):
            spec = endpoint["spec"]
            key = (endpoint["metadata"]["namespace"], spec["workload"])
            if spec["region"] == self._region or key not in critical:
                continue
            for address in spec.get("addresses", []):
                for port in address.get("ports", {}).values():
                    try:
                        socket.create_connection((address["address"], port), timeout=2.0).close()
                    except OSError as error:
                        self._failures.append(f"{address['replica']} is in the endpoint and does not answer: {error}")

    def _until_closed(self, started_s: float) -> list[str]:
        deadline = time.monotonic() + self._timeout_s
        phase = ""
        while time.monotonic() < deadline:
            recovery = self._recovery()
            now = recovery.get("status", {}).get("phase", "")
            if now != phase:
                phase = now
                at_s = time.monotonic() - started_s
                self._clock.setdefault(f"recovery {phase}", round(at_s, 2)) if phase != "Open" else None
                self._say(f"{at_s:6.1f} s  recovery: {phase}")
            if phase == "Closed" and all(self._whole(w) for w in self._watcher.critical()):
                left = leftovers(self._watcher)
                if not left:
                    self._violations += [v for v in violations(self._watcher) if v not in self._violations]
                    return []
            time.sleep(LOOK_EVERY_S * 2)
        self._failures.append(f"the recovery did not close within {self._timeout_s:.0f} s (it is {phase or 'gone'})")
        return leftovers(self._watcher)

    def _report(self, recovery: Item, left: list[str], killed: int, *, served: bool) -> Report:
        slowest = max(self._seconds.values(), default=0.0)
        status = recovery.get("status", {})
        rows: list[dict[str, Any]] = status.get("workloads", [])
        deadline_s = float(recovery.get("spec", {}).get("deadlineSeconds", 300))
        if served and slowest > deadline_s:
            self._failures.append(f"the slowest took {slowest:.1f} s, the promise allows {deadline_s:.0f} s")
        name = recovery.get("metadata", {}).get("name", "none")
        borrowed = ", ".join(f"{r['workload']}: {r.get('drawn', 0)} in {r['target']}" for r in rows if r.get("target"))
        return Report(
            drill="region-loss",
            passed=served and not self._failures and not self._violations and not left,
            clock=self._clock,
            violations=self._violations,
            failures=self._failures,
            leftovers=left,
            facts={
                "region": self._region,
                "processes_killed": killed,
                "seconds_to_four_serving": slowest if served else None,
                "deadline_seconds": deadline_s,
                "recovery": name,
                "workloads": [{**r, "seconds": self._seconds.get(f"{r['tenant']}/{r['workload']}")} for r in rows],
            },
            answers=SixAnswers(
                desired_state_changed=(
                    f"Assignments of {self._region} were suspended; recovery Assignments were added ({borrowed}); "
                    "Workloads themselves did not change"
                ),
                acted_first=f"region-health: {'; '.join(recovery.get('spec', {}).get('evidence', []))}",
                partial_progress=f"Recovery {name}: per workload assigned, bound, ready, serving, and the stage clock",
                invariant_held=(
                    "S1, S2 and S3 recomputed from the stored objects of every reachable cell every "
                    f"{CHECK_EVERY_S:.0f} s: {len(self._violations)} violation(s)"
                ),
                telemetry=f"kubectl get recovery {name} -o yaml; Region.status.health; events; addresses that answered",
                way_back=(
                    "failback after a stable window: suspensions lifted, recovery Assignments, grants and places given "
                    f"back, cleanup check: {len(left)} left over"
                ),
            ),
        )
