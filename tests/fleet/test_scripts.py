"""Decisions of the global cell as scripts: regions, workloads, quotas and assignments, then `assign` or `run`.

fleet [more]             states objects; `more` keeps the earlier ones and the time
assign                   assigns each workload alone
room REGION=N [reason=…] limits how many replicas a region places; it reports the reason for the others
run SECONDS [notices]    repeats assign, with regions that report; prints every change of the shares
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import factories
from tests.decision_scripts import fields, make_object, run_script, scripts_beside, words

from holdfast.controllers.cache import Cache
from holdfast.fleet import assign
from holdfast.fleet.spillover import assigned_units
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.kinds import ALL
from holdfast.model.meta import Key, Object
from holdfast.model.times import parse_time
from holdfast.model.workload import Workload
from holdfast.model.writes import Create, Delete, Outcome, SetStatus, Update

START_S = parse_time("2026-01-01T00:00:00Z")
REPORT_EVERY_S = 5.0


class Fleet:
    """One workload in several regions. The tenant is acme."""

    def __init__(self) -> None:
        self.fleet([], [])

    def fleet(self, options: list[str], lines: list[str]) -> str:
        if not options:
            self.cache, self.now = factories.cache_of(factories.tenant(), factories.priority()), START_S
            self.room: dict[str, Any] = {}
        for item in (item for line in lines for item in stated(line)):
            old = self.cache.get(Workload, item.metadata.name, "acme") if isinstance(item, Workload) else None
            self.cache.put(msgspec.structs.replace(item, status=old.status) if old is not None else item)
        return ""

    def assign(self, options: list[str], lines: list[str]) -> str:
        results = []
        for (workload,) in map(stated, (f"workload {line}" for line in lines)):
            cache = factories.cache_of(workload, *(item for kind in ALL for item in self.cache.list(kind.type)))
            decide(workload.key, cache, self.now)
            results.append(f"{workload.metadata.name}: {shares_text(cache, workload.metadata.name)}")
        return "\n".join(results)

    def set_room(self, options: list[str], lines: list[str]) -> str:
        self.room.update(fields(options))
        self.report()
        return ""

    def run(self, options: list[str], lines: list[str]) -> str:
        (workload,) = self.cache.list(Workload)
        start_s, printed, last = self.now, [], ""
        while self.now < start_s + float(options[0]):
            outcome = decide(workload.key, self.cache, self.now)
            self.report()
            text = shares_text(self.cache, workload.metadata.name)
            printed += [f"{self.now - START_S:+.0f} s: {text}"] if text != last else []
            printed += [f"  {n.reason}: {n.message}" for n in outcome.notices if "notices" in options]
            self.now, last = self.now + min(REPORT_EVERY_S, outcome.requeue_after_s or REPORT_EVERY_S), text
        status = self.cache.list(Workload)[0].status.spillover
        printed += [f"pending in {row.region}: {row.reason}" for row in (status.pending if status else ())]
        printed += [f"avoided: {row.region}" for row in (status.avoided_regions if status else ())]
        return "\n".join(printed)

    def report(self) -> None:
        """Every region places what it has room for and reports the rest as pending."""
        reason = self.room.get("reason", "InsufficientCpu")
        for item in self.cache.list(Assignment):
            wanted = item.spec.replicas
            placed = min(wanted, self.room.get(item.spec.region, wanted))
            pending = (PendingReason(reason=reason, count=wanted - placed),) if wanted > placed else ()
            counts = dict.fromkeys(("bound", "ready", "serving", "updated_serving"), placed)
            status = AssignmentStatus(
                observed_epoch=item.spec.epoch,
                replicas=wanted,
                queued=wanted - placed,
                updated=wanted,
                pending=pending,
                **counts,
            )
            if status != item.status:
                self.cache.put(factories.with_new_revision(item, status=status))


def decide(key: Key, cache: Cache, now: float) -> Outcome:
    """Runs assign once and applies its writes."""
    outcome = assign.decide(key, cache, now)
    for write in outcome.writes:
        match write:
            case Create():
                meta = factories.meta(write.object.metadata.name, key.namespace)
                cache.put(factories.with_new_revision(write.object, metadata=meta))
            case Update() if isinstance(write.object, Assignment):
                cache.put(factories.with_new_revision(write.object))
            case Delete():
                cache.remove(Assignment, write.key, int(factories.meta("gone").resource_version))
            case SetStatus():
                (item,) = (item for item in cache.list(Workload) if item.key == key)
                status = msgspec.structs.replace(item.status, spillover=write.blocks["spillover"])
                cache.put(factories.with_new_revision(item, status=status))
    return outcome


def shares_text(cache: Cache, workload: str) -> str:
    parts = []
    for item in cache.list(Assignment):
        if item.spec.workload == workload and (assigned_units(item) or item.spec.ordinals):
            ordinals = f" (ordinals {', '.join(map(str, item.spec.ordinals))})" if item.spec.ordinals else ""
            pending = f" ({item.status.queued} pending)" if item.status.queued else ""
            parts.append(f"{item.spec.region} {assigned_units(item)}{ordinals}{pending}")
    return ", ".join(sorted(parts)) or "no region"


def stated(line: str) -> list[Object]:
    kind, names, *given = words(line)
    made = []
    for name in names.split(","):
        known: dict[str, Any] = {}
        match kind:
            case "region":
                plain = msgspec.to_builtins(factories.region(name))
                known = {**plain["spec"], **{f"status.{name}": block for name, block in plain["status"].items()}}
            case "workload":
                template = msgspec.to_builtins(factories.TEMPLATE)
                known = {"metadata.finalizers": ["holdfast.dev/assignments"], "template": template}
            case "assignment":
                workload, where = name.split(".")[:2]
                known = msgspec.to_builtins(factories.assignment(workload, where).spec)
        made.append(make_object(kind, name, {**known, **fields(given)}))
    return made


@pytest.mark.parametrize("script", scripts_beside(__file__), ids=lambda path: path.stem)
def test_script_of_decisions_prints_the_expected_output(script: Path, rewrite: bool) -> None:
    state = Fleet()
    commands = {"fleet": state.fleet, "assign": state.assign, "room": state.set_room, "run": state.run}
    run_script(script, commands, rewrite=rewrite)
