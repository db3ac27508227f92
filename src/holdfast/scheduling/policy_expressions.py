"""CEL expressions of a policy, used as filters and scores: checked when the policy is written, bounded in cost.

- An expression reads `node` (name, zone, pool, tenant, labels, capacity, drivers, cachedArtifacts, taints) and
  `request` (tenant, workload, labels, resources, priority, reclaimable). Amounts are integers in base units.
- A policy is admitted only if each expression compiles, has the right type, is within the cost limit and evaluates
  for sample nodes and requests, with and without GPUs and labels. A score may lack a value where a key is missing.
- A later evaluation error never fails a plan: a filter refuses the node, a score is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec
from cel_expr_python import cel

from holdfast.model.node import Node, node_capacity
from holdfast.model.scheduler_policy import FilterExpression, reads_request
from holdfast.scheduling.replica_requirements import ReplicaRequirements

# Loops (macros such as `all`) of one CEL expression. More are refused: the expression runs for every node.
EXPRESSION_LOOPS_MAX = 2
# Compiled CEL expressions cached; the least recently used is dropped.
COMPILED_EXPRESSIONS_CACHED_MAX = 256

_FACTS = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_POSITION = re.compile(r"<input>:(\d+):(\d+): (.*)")
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(")

SAMPLE_NODE: dict[str, Any] = {
    "name": "n1",
    "zone": "z1",
    "pool": "default",
    "tenant": "",
    "labels": {},
    "capacity": {"cpu": 8000, "memory": 2**34},
    "drivers": ["process"],
    "cachedArtifacts": [],
    "taints": [],
}
SAMPLE_REQUEST: dict[str, Any] = {
    "tenant": "t",
    "workload": "w",
    "labels": {},
    "resources": {"cpu": 1000, "memory": 2**30},
    "priority": 0,
    "reclaimable": False,
}


_REQUEST = re.compile(r"\brequest\b")
_NODE = re.compile(r"\bnode\b")
_NODE_FIELD = re.compile(r"\bnode\.(\w+)")
_FIELD = re.compile(r"\b(node|request)\.(\w+)")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_GPU = {"gpu": 1}
_SAMPLES = tuple(
    {
        "node": {**SAMPLE_NODE, "capacity": {**SAMPLE_NODE["capacity"], **of_node}},
        "request": {**SAMPLE_REQUEST, "resources": {**SAMPLE_REQUEST["resources"], **of_request}},
    }
    for of_node in ({}, _GPU)
    for of_request in ({}, _GPU)
)
"""Nodes and requests with and without a GPU: `||` and `&&` skip a part of an expression for some of them."""
_MISSING_KEY = re.compile(r'Key not found in map : "(.*)"')
_KEY_READ = re.compile(
    r"\b((node|request)\.(labels|capacity|resources))(?:\.(\w+)|\[\s*'([^']*)'\s*\]|\[\s*\"([^\"]*)\"\s*\])"
)
_OTHER_LABEL = "(another value)"


class ExpressionError(msgspec.Struct, frozen=True):
    """An error in an expression. Line and column count from 1; 0 means the whole expression."""

    line: int
    column: int
    message: str

    @property
    def text(self) -> str:
        where = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{where}{self.message}"


class EvaluationFailed(Exception):
    """The expression has no valid value for these inputs."""


@lru_cache(maxsize=1)
def _env() -> Any:
    return cel.NewEnv(variables={"node": _FACTS, "request": _FACTS})


@lru_cache(maxsize=COMPILED_EXPRESSIONS_CACHED_MAX)
def _compiled(text: str) -> Any:
    return _env().compile(text)


def find_error(text: str, *, score: bool) -> ExpressionError | None:
    """The error that forbids the expression in a policy; None if it is valid."""
    loops = _LOOP.findall(text)
    if len(loops) > EXPRESSION_LOOPS_MAX:
        at = [m.start() for m in _LOOP.finditer(text)][EXPRESSION_LOOPS_MAX]
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 2
        return ExpressionError(line, column, f"too many loops (at most {EXPRESSION_LOOPS_MAX}, found {len(loops)})")
    try:
        compiled = _compiled(text)
    except RuntimeError as wrong:
        return _wrong(str(wrong))
    allowed = (cel.Type.INT, cel.Type.UINT, cel.Type.DOUBLE, cel.Type.DYN) if score else (cel.Type.BOOL, cel.Type.DYN)
    found = compiled.return_type()
    if found not in allowed:
        kind = "a number" if score else "true or false"
        return ExpressionError(0, 0, f"wrong result type (expected {kind}, found {found.name()})")
    return _unknown_field(text) or _evaluation_error(text, score=score)


def _unknown_field(text: str) -> ExpressionError | None:
    """A field that neither nodes nor requests have, such as `node.capcity`. Where `||` skips it, it never fails."""
    known = {"node": SAMPLE_NODE, "request": SAMPLE_REQUEST}
    for subject, field in _FIELD.findall(_STRING.sub("''", text)):
        if field not in known[subject]:
            return ExpressionError(0, 0, f"{subject}.{field}: unknown (expected one of {', '.join(known[subject])})")
    return None


def _evaluation_error(text: str, *, score: bool) -> ExpressionError | None:
    for facts in _SAMPLES:
        try:
            evaluate_score(text, facts) if score else evaluate_filter(text, facts)
        except EvaluationFailed as unsound:
            if _MISSING_KEY.search(str(unsound)) is None:
                return ExpressionError(0, 0, f"evaluation for a sample node failed: {unsound}")
            wrong = None if score else _missing_key_error(text, facts)
            if wrong is not None:
                return wrong
    return None


def _missing_key_error(text: str, facts: dict[str, dict[str, Any]]) -> ExpressionError | None:
    """The error of a filter that reads a resource or label that the sample lacks: it would refuse all such nodes.

    A label may be read without a test if the filter refuses other values too, as `node.labels.disk == 'slow'` does: a
    missing label then means the same as another value.
    """
    reads = [(m[1], m[2], m[3], m[4] or m[5] or m[6] or "", m[0]) for m in _KEY_READ.finditer(text)]
    known = {subject: {**own, "labels": dict(own["labels"])} for subject, own in facts.items()}
    assumed: list[str] = []
    for _ in range(len(reads) + 1):
        try:
            accepted = evaluate_filter(text, known)
        except EvaluationFailed as unsound:
            missing = _MISSING_KEY.search(str(unsound))
            if missing is None:
                return None  # for example a label converted to a number: its real values are unknown
            failed = [r for r in reads if r[3] == missing[1] and r[3] not in known[r[1]][r[2]]]
            labels = [r for r in failed if r[2] == "labels"]
            if not labels:
                return next((_untested_key(field, key, read) for field, _, _, key, read in failed), None)
            for field, subject, _, key, read in labels:
                known[subject]["labels"][key] = _OTHER_LABEL
                assumed.append(_untested_key(field, key, read).message)
        else:
            return ExpressionError(0, 0, assumed[0]) if accepted and assumed else None
    return None


def _untested_key(field: str, key: str, read: str) -> ExpressionError:
    """`field` is for example node.capacity, `key` gpu, `read` node.capacity.gpu."""
    label = field.endswith(".labels")
    what = f"label {key}" if label else key
    lacking = f"a node without {what}" if field.startswith("node.") else f"every node for a request without {what}"
    test, present, absent = f"'{key}' in {field}", "== 'x'" if label else "> 0", "!= 'x'" if label else "== 0"
    return ExpressionError(
        0,
        0,
        f"{read} fails if the key is missing, and the filter would then refuse {lacking}; next: test the key first, "
        f"with {test} && {read} {present} (refuses them) or !({test}) || {read} {absent} (accepts them)",
    )


def closes_to_all_requests(expressions: Iterable[FilterExpression], node: Node) -> bool:
    """Whether a filter that does not read the request refuses the node, so that nothing is placed there."""
    own = [e.expression for e in expressions if not reads_request(e.expression)]
    if not own:
        return False
    facts = {"node": node_facts(node), "request": SAMPLE_REQUEST}
    return not all(passes_filter(text, facts) for text in own)


def never_true_reason(text: str, zones: Sequence[str]) -> str:
    """Why the filter is false for every node, if that follows from the zones alone; else empty."""
    if _REQUEST.search(text):
        return ""
    read = set(_NODE_FIELD.findall(text))
    if not read <= {"zone"} or (not read and _NODE.search(text)) or (read and not zones):
        return ""
    try:
        for zone in zones or (SAMPLE_NODE["zone"],):
            if evaluate_filter(text, {"node": {**SAMPLE_NODE, "zone": zone}, "request": SAMPLE_REQUEST}):
                return ""
    except EvaluationFailed:
        return ""
    if not read:
        return "the filter is false for every node, so no replica could be scheduled"
    return f"the filter is false in every zone ({', '.join(zones)}), so no replica could be scheduled"


def evaluate_filter(text: str, facts: Mapping[str, Any]) -> bool:
    value = _value(text, facts)
    if not isinstance(value, bool):
        raise EvaluationFailed(f"wrong result (expected true or false, found {value})")
    return value


def passes_filter(text: str, facts: Mapping[str, Any]) -> bool:
    """The value of the filter; false if it has none for these facts."""
    try:
        return evaluate_filter(text, facts)
    except (EvaluationFailed, RuntimeError):
        return False


def filter_failure(text: str, facts: Mapping[str, Any]) -> str:
    """Why the filter has no value for these facts; empty if it has one."""
    try:
        evaluate_filter(text, facts)
    except (EvaluationFailed, RuntimeError) as failed:
        missing = _MISSING_KEY.search(str(failed))
        return f"no key {missing[1]}" if missing is not None else _wrong(str(failed)).text
    return ""


def evaluate_score(text: str, facts: Mapping[str, Any]) -> int:
    """The value as a score: an integer, clamped to 0 to 100."""
    value = _value(text, facts)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationFailed(f"wrong result (expected a number, found {value})")
    if not isfinite(value):
        raise EvaluationFailed(f"wrong result (expected a finite number, found {value})")
    return max(0, min(100, int(value)))


def _value(text: str, facts: Mapping[str, Any]) -> Any:
    try:
        found = _compiled(text).eval(data=facts)
    except RuntimeError as wrong:
        raise EvaluationFailed(_wrong(str(wrong)).message) from wrong
    if found.type() == cel.Type.ERROR:
        raise EvaluationFailed(str(found.value()))
    return found.plain_value()


def _wrong(message: str) -> ExpressionError:
    found = _POSITION.search(message)
    if found is None:
        return ExpressionError(
            0, 0, message.split("\n", 1)[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("INTERNAL: ")
        )
    return ExpressionError(int(found.group(1)), int(found.group(2)), found.group(3))


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
        "cachedArtifacts": list(node.status.execution.cached_artifacts),
        "taints": [taint.key for taint in spec.taints],
    }


def request_facts(requirements: ReplicaRequirements) -> dict[str, Any]:
    return {
        "tenant": requirements.namespace,
        "workload": requirements.workload,
        "labels": dict(requirements.labels),
        "resources": dict(requirements.amounts),
        "priority": requirements.priority,
        "reclaimable": requirements.reclaimable,
    }


def requirements_key(requirements: ReplicaRequirements) -> tuple[Any, ...]:
    """The part of the requirements that an expression can read."""
    return (
        requirements.namespace,
        requirements.workload,
        requirements.labels,
        tuple(sorted(requirements.amounts.items())),
        requirements.priority,
        requirements.reclaimable,
    )
