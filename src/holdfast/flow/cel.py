"""The operator's own filters and scores: CEL expressions, compiled once, bounded, and never able to stop a plan.

They see `node` (name, zone, pool, tenant, labels, capacity, drivers, warm, taints) and `request` (tenant, workload,
labels, resources, rank, reclaimable); amounts are whole numbers in base units. An expression is checked when a policy
is written: it must compile, have the right type, stay within its cost, and give a sound value for a sample node. What
still goes wrong later counts against the node: a filter refuses it, a score is 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec
from cel_expr_python import cel

from holdfast.flow.ask import Ask
from holdfast.model import limits
from holdfast.model.node import Node, node_capacity

_FACTS = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_POSITION = re.compile(r"<input>:(\d+):(\d+): (.*)")
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(")

SAMPLE_NODE: dict[str, Any] = {
    "name": "n1", "zone": "z1", "pool": "default", "tenant": "", "labels": {},
    "capacity": {"cpu": 8000, "memory": 2**34}, "drivers": ["process"], "warm": [], "taints": [],
}  # fmt: skip
SAMPLE_REQUEST: dict[str, Any] = {
    "tenant": "t", "workload": "w", "labels": {}, "resources": {"cpu": 1000, "memory": 2**30}, "rank": 0,
    "reclaimable": False,
}  # fmt: skip


_REQUEST = re.compile(r"\brequest\b")
_NODE = re.compile(r"\bnode\b")
_NODE_FIELD = re.compile(r"\bnode\.(\w+)")


class Wrong(msgspec.Struct, frozen=True):
    """What is wrong with an expression, and where: line and column count from 1; 0 where it is the whole of it."""

    line: int
    column: int
    message: str

    @property
    def text(self) -> str:
        where = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{where}{self.message}"


class Unsound(Exception):
    """The expression has no sound value for these facts."""


@lru_cache(maxsize=1)
def _env() -> Any:
    return cel.NewEnv(variables={"node": _FACTS, "request": _FACTS})


@lru_cache(maxsize=limits.EXPRESSIONS_COMPILED)
def _compiled(text: str) -> Any:
    return _env().compile(text)


def check(text: str, *, score: bool) -> Wrong | None:
    """Whether an expression may become part of a policy."""
    loops = _LOOP.findall(text)
    if len(loops) > limits.EXPRESSION_LOOPS:
        at = [m.start() for m in _LOOP.finditer(text)][limits.EXPRESSION_LOOPS]
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 2
        return Wrong(line, column, f"it has {len(loops)} loops, at most {limits.EXPRESSION_LOOPS} are affordable")
    try:
        compiled = _compiled(text)
    except RuntimeError as wrong:
        return _wrong(str(wrong))
    allowed = (cel.Type.INT, cel.Type.UINT, cel.Type.DOUBLE, cel.Type.DYN) if score else (cel.Type.BOOL, cel.Type.DYN)
    found = compiled.return_type()
    if found not in allowed:
        kind = "a number" if score else "true or false"
        return Wrong(0, 0, f"it must give {kind}, and gives {found.name()}")
    try:
        facts = {"node": SAMPLE_NODE, "request": SAMPLE_REQUEST}
        number(text, facts) if score else truth(text, facts)
    except Unsound as unsound:
        if "Key not found" in str(unsound):
            return None  # a label the sample does not have; real nodes may
        return Wrong(0, 0, f"for a sample node: {unsound}")
    return None


def names_no_node(text: str, zones: Sequence[str]) -> str:
    """Why a filter can be true for no node at all, as far as that can be told without them; else an empty string."""
    if _REQUEST.search(text):
        return ""
    read = set(_NODE_FIELD.findall(text))
    if not read <= {"zone"} or (not read and _NODE.search(text)) or (read and not zones):
        return ""
    try:
        for zone in zones or (SAMPLE_NODE["zone"],):
            if truth(text, {"node": {**SAMPLE_NODE, "zone": zone}, "request": SAMPLE_REQUEST}):
                return ""
    except Unsound:
        return ""
    if not read:
        return "it is false for every node: nothing could be placed any more"
    return f"it is false in every zone there is ({', '.join(zones)}): nothing could be placed any more"


def truth(text: str, facts: Mapping[str, Any]) -> bool:
    value = _value(text, facts)
    if not isinstance(value, bool):
        raise Unsound(f"it gives {value}, not true or false")
    return value


def number(text: str, facts: Mapping[str, Any]) -> int:
    """The value as a score: whole, and cut to 0 to 100."""
    value = _value(text, facts)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unsound(f"it gives {value}, not a number")
    if not isfinite(value):
        raise Unsound(f"it gives {value}, which is no score")
    return max(0, min(100, int(value)))


def _value(text: str, facts: Mapping[str, Any]) -> Any:
    try:
        found = _compiled(text).eval(data=facts)
    except RuntimeError as wrong:
        raise Unsound(_wrong(str(wrong)).message) from wrong
    if found.type() == cel.Type.ERROR:
        raise Unsound(str(found.value()))
    return found.plain_value()


def _wrong(message: str) -> Wrong:
    found = _POSITION.search(message)
    if found is None:
        return Wrong(0, 0, message.split("\n", 1)[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("INTERNAL: "))
    return Wrong(int(found.group(1)), int(found.group(2)), found.group(3))


def node_facts(node: Node) -> dict[str, Any]:
    spec = node.spec
    return {
        "name": node.metadata.name,
        "zone": spec.zone,
        "pool": spec.pool,
        "tenant": spec.tenant,
        "labels": dict(node.metadata.labels),
        "capacity": dict(node_capacity(node)),
        "drivers": list(spec.drivers),
        "warm": list(node.status.execution.warm),
        "taints": [taint.key for taint in spec.taints],
    }


def request_facts(ask: Ask) -> dict[str, Any]:
    return {
        "tenant": ask.namespace,
        "workload": ask.workload,
        "labels": dict(ask.labels),
        "resources": dict(ask.amounts),
        "rank": ask.rank,
        "reclaimable": ask.reclaimable,
    }


def ask_key(ask: Ask) -> tuple[Any, ...]:
    """All of an ask that an expression can see."""
    return (ask.namespace, ask.workload, ask.labels, tuple(sorted(ask.amounts.items())), ask.rank, ask.reclaimable)
