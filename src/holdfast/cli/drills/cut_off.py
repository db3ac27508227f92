"""Regions cut off from the global cell: it is killed for a while, a node is lost meanwhile, the region goes on alone.

Committed work runs on; what the lost node ran is placed anew by the region's own authority, within the limits it holds
durably. When the global cell is back nothing is concluded from its own silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.cli.drills.leftovers import leftovers
from holdfast.cli.drills.outage import hold_down, kill, region_of, restore
from holdfast.cli.drills.report import Report, SixAnswers
from holdfast.cli.drills.world import Item, Watcher, violations_in_regions
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.platform.layout import Layout

LOOK_EVERY_S = 0.5


class CutOff:
    def __init__(
        self, layout: Layout, region: str, *, seconds: float, timeout_s: float, say: Callable[[str], None]
    ) -> None:
        self._layout = layout
        self._platform = layout.load()
        self._plan = region_of(self._platform, region)
        self._region = region
        self._seconds = seconds
        self._timeout_s = timeout_s
        self._say = say
        self._watcher = Watcher(layout, self._platform)
        self._clock: dict[str, float] = {}
        self._violations: list[str] = []
        self._failures: list[str] = []

    def run(self) -> Report:
        node = self._plan.agents[-1].name
        names = ["cell-global", f"agent-{node}"]
        try:
            before = self._serving(self._region)
            known = {r["metadata"]["name"] for r in self._watcher.list("recoveries")}
            if not before:
                raise Stop("nothing serves there yet", next_step="holdfast status", code=Exit.CONFLICT)
            started_s = time.monotonic()
            hold_down(self._layout, names)
            kill(self._layout, names)
            self._say(f"killed the global cell and node {node}; {len(before)} replicas serve in {self._region}")
            self._while_cut_off(started_s, len(before))
            restore(self._layout, names)
            self._until_whole(started_s)
            opened = [r for r in self._watcher.list("recoveries") if r["metadata"]["name"] not in known]
            if opened:
                self._failures.append(
                    f"the global cell took its own silence for a loss: {opened[0]['metadata']['name']}"
                )
            left = leftovers(self._watcher)
            return self._report(node, len(before), left)
        finally:
            restore(self._layout, names)
            self._watcher.close()

    def _serving(self, region: str) -> list[Item]:
        return [
            r for r in self._watcher.list("replicas", region)
            if r["spec"].get("type", "Service") == "Service"
            and r.get("status", {}).get("traffic", {}).get("serving")
            and not r.get("status", {}).get("contact", {}).get("lost")
        ]  # fmt: skip

    def _while_cut_off(self, started_s: float, wanted: int) -> None:
        fewest, back = wanted, False
        while time.monotonic() - started_s < self._seconds:
            now_s = time.monotonic() - started_s
            serving = len(self._serving(self._region))
            fewest = min(fewest, serving)
            if fewest < wanted and serving >= wanted and not back:
                back = True
                self._clock["replaced without the global cell"] = round(now_s, 1)
                self._say(f"{now_s:6.1f} s  {serving} replicas serve in {self._region} again")
            for found in violations_in_regions(self._watcher):
                if found not in self._violations:
                    self._violations.append(found)
            time.sleep(LOOK_EVERY_S)
        if fewest < wanted and not back:
            self._failures.append(f"{self._region} did not replace what the node ran: {fewest} of {wanted} serve")

    def _until_whole(self, started_s: float) -> None:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            try:
                regions = self._watcher.list("regions")
                healthy = all(r["status"].get("health", {}).get("state") == "Healthy" for r in regions)
                whole = all(
                    w["status"]["summary"].get("serving", 0) >= w["spec"]["replicas"]
                    for w in self._watcher.list("workloads")
                    if w["spec"].get("type", "Service") == "Service"
                )
                if healthy and whole:
                    self._clock["whole again"] = round(time.monotonic() - started_s, 1)
                    return
            except Stop:
                pass
            time.sleep(LOOK_EVERY_S)
        self._failures.append(f"the platform was not whole {self._timeout_s:.0f} s after the global cell came back")

    def _report(self, node: str, served: int, left: list[str]) -> Report:
        return Report(
            drill="cut-off",
            passed=not self._failures and not self._violations and not left,
            clock=self._clock,
            violations=self._violations,
            failures=self._failures,
            leftovers=left,
            facts={
                "region": self._region,
                "node_lost": node,
                "seconds_cut_off": self._seconds,
                "served_before": served,
            },
            answers=SixAnswers(
                desired_state_changed="none: the global cell was away; regions acted on their copies",
                acted_first="node-health of the region (lease lapsed), then its authority (fence) and release",
                partial_progress="Replica blocks in the region: contact, release, placement attempt + 1, traffic",
                invariant_held=f"S1, S2 and S3 in every region during the cut: {len(self._violations)} violation(s)",
                telemetry="replicas, bindings and grantcopies of the region; its events",
                way_back="the link compares everything on reconnect; global concludes nothing from its own silence",
            ),
        )
