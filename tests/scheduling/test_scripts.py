"""Scheduling decisions as scripts: nodes, claims, slots, overrides and grants, then `plan` or `why-not`.

cluster [more]           states objects; `more` keeps the earlier ones
plan [each] [option=…]   plans the requests together, or `each` one alone; options: rules, evictions
why-not [NODE]           explains the node, or suggests the smallest change that lets the request fit
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.decision_scripts import fields, key_of, make_object, run_script, scripts_beside, words

from holdfast.insight.why_not import WhyNotQuery
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.meta import Object
from holdfast.model.reasons import Reason
from holdfast.model.scheduler_policy import PolicyRules
from holdfast.model.times import parse_time
from holdfast.scheduling.plan import ReplicaRequirements, RequestPlan, plan, requirements_of
from holdfast.scheduling.quota_headroom import headroom_of
from holdfast.scheduling.snapshot import SnapshotBuilder

NOW = parse_time("2026-06-01T00:00:00Z")
READY = {"status.contact": {"state": "Live"}, "status.execution": {"epoch": 1, "reconciled": True}}
LINE_MAX = 105
SENTENCES = {reason.value: reason.sentence for reason in Reason}
SHORTHAND = {"node": "capacity", "binding": "resources", "recoveryslot": "resources"}


class Cluster:
    """Region `here`. The time is 2026-06-01, and the tenant is acme unless a line says otherwise."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str, str], Object] = {}

    def cluster(self, options: list[str], lines: list[str]) -> str:
        self.items = dict(self.items) if options else {}
        self.items.update((key_of(item), item) for line in lines for item in stated(line))
        return ""

    def plan(self, options: list[str], lines: list[str]) -> str:
        given = fields(options)
        wanted = [self.requirements(line, **given) for line in lines]
        batches = [[one] for one in wanted] if given.get("each") else [wanted]
        requests_by_result: dict[str, list[str]] = {}
        for made in (made for batch in batches for made in self.planned(batch, **given)):
            requests_by_result.setdefault(plan_text(made), []).append(made.requirements.name)
        return "\n".join(f"{', '.join(names)}: {text}" for text, names in requests_by_result.items())

    def why_not(self, node: list[str], lines: list[str]) -> str:
        query = WhyNotQuery(self.builder().freeze(1), self.requirements(lines[0]), PolicyRules(), NOW)
        return node_explanation(query, node[0]) if node else "{0.node}: {0.text}".format(query.suggested_fix())

    def builder(self) -> SnapshotBuilder:
        builder = SnapshotBuilder("here")
        for item in self.items.values():
            builder.upsert(item)
        return builder

    def planned(self, wanted: list[ReplicaRequirements], rules: Any = None, **others: Any) -> tuple[RequestPlan, ...]:
        return plan(self.builder().freeze(1), wanted, msgspec.convert(rules or {}, PolicyRules), NOW, 1).request_plans

    def requirements(self, line: str, evictions: int = 1000, **others: Any) -> ReplicaRequirements:
        """`name[@tenant] replicas=N cpu=… field=…`; the quota of a tenant is limited if any grant is stated."""
        name, *given = words(line)
        name, _, tenant = name.partition("@")
        spec = fields(given)
        template = {"command": ["serve"], "resources": take_amounts(spec) or {"cpu": 1}, **spec.pop("template", {})}
        members = [{"name": f"{name}-{i}", "uid": f"{name}-{i}"} for i in range(spec.pop("replicas", 1))]
        known = {"workload": name, "assignment": name, "revision": "1", "template": template, "members": members}
        tenant = tenant or "acme"
        copies = [item for item in self.items.values() if isinstance(item, GrantCopy)]
        own = [copy for copy in copies if copy.metadata.namespace == tenant]
        headroom = headroom_of(own, self.builder().ordinary_use(tenant), NOW) if copies else None
        request = make_object("schedulingrequest", name, {**known, **spec}, tenant)
        return requirements_of(request, evictions_left=evictions, quota_headroom=headroom)


def stated(line: str) -> list[Object]:
    kind, names, *given = words(line)
    names, _, tenant = names.partition("@")
    spec = fields(given)
    if kind in SHORTHAND:
        spec = {SHORTHAND[kind]: take_amounts(spec), **spec}
    made = []
    for name in names.split(","):
        known: dict[str, Any] = {}
        match kind:
            case "node":
                known = {"zone": "z", **READY}
                spec["capacity"] = {"cpu": 8, "memory": "32Gi", **spec["capacity"]}
            case "binding":
                intent = {"replicaUid": name, "templateHash": "h", "attempt": 1}
                known = {"replica": name, "intent": intent, "template": {}, "workload": name.rpartition("-")[0]}
            case "override":
                known = {"status.phase": "Active", "status.expiresAt": "2027-01-01T00:00:00Z"}
        claim = f"{name}.1" if kind == "binding" else name
        made.append(make_object(kind, claim, {**known, **spec}, tenant or "acme"))
    return made


def take_amounts(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: spec.pop(name) for name in ("cpu", "memory", "gpu") if name in spec}


def plan_text(made: RequestPlan) -> str:
    """Where the members are placed; refusals only if some are not. One line if it is short."""
    count = len(made.proposals)
    nodes = Counter(p.node for p in made.proposals)
    where = ", ".join(f"{node} x{number}" if number > 1 else node for node, number in sorted(nodes.items()))
    placed = [f"{count} of {count + len(made.unplaced)} placed" + (f" on {where}" if where else "")]
    for p in made.proposals:
        placed += [f"{p.member.name} preempts {', '.join(p.victims)}"] if p.victims else []
        placed += [f"{p.member.name} uses {d.milli}m of {d.id}" for d in p.devices]
    placed += [f"evictions counted: {made.evictions}"] if made.evictions else []
    refused = []
    for r in made.refusals if made.unplaced else ():
        message = f": {r.message}" if r.message != SENTENCES[r.reason] else ""
        refused.append(r.reason + (f" on {', '.join(r.examples)}" if r.examples else "") + message)
    separator = "; " if sum(map(len, placed + refused)) < LINE_MAX else "\n  "
    return separator.join(["; ".join(placed), *refused])


def node_explanation(query: WhyNotQuery, node: str) -> str:
    found = query.explain_node(node)
    if found is None:
        return f"{node}: no such node"
    score = " + ".join(f"{s.weight} x {s.name} {s.value}" for s in found.scores)
    best = f"best {found.best} with {found.best_score}"
    rank = f"{node}: rank {found.position} of {found.feasible}, score {found.score} = {score}; {best}"
    return "\n".join(f"{b.reason}: {b.message}; fix: {b.fix}" for b in found.blockers) or rank


@pytest.mark.parametrize("script", scripts_beside(__file__), ids=lambda path: path.stem)
def test_script_of_decisions_prints_the_expected_output(script: Path, rewrite: bool) -> None:
    state = Cluster()
    commands = {"cluster": state.cluster, "plan": state.plan, "why-not": state.why_not}
    run_script(script, commands, rewrite=rewrite)
