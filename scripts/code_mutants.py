"""Small changes of a module's code, each of which a test or a simulation should notice.

A mutant is one change at one place: another comparison, `and` for `or`, a negated condition, a number one larger, a
statement left out. Text for people is not changed: strings, docstrings, log lines, messages, `__repr__`, annotations.
Neither are figures that a module declares by name (`RETURNS_PER_PASS = 16`): one more or less decides nothing else.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
SILENT_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "observe", "inc", "set_attribute"})
"""Methods of loggers, metrics and spans: leaving such a call out changes no decision."""
TEXT_METHODS = frozenset({"__repr__", "__str__", "describe", "message", "text", "summary", "line", "lines"})


@dataclass(frozen=True)
class Mutant:
    """One change of one module. `place` counts the places in the module, in reading order."""

    path: str
    line: int
    place: int
    what: str
    source: str

    @property
    def key(self) -> str:
        """Names the mutant in a list of judged ones; stays the same when code above it moves."""
        return f"{self.path}: {self.source}: {self.what}"


def mutants_of(path: str, text: str) -> list[Mutant]:
    lines = text.splitlines()
    tree = ast.parse(text)
    return [
        Mutant(path, getattr(node, "lineno", 0), place, what, lines[getattr(node, "lineno", 1) - 1].strip())
        for place, (node, what, _) in enumerate(_places(tree))
    ]


def mutated(text: str, place: int) -> ast.Module:
    """The module's code with one change."""
    tree = ast.parse(text)
    for number, (node, _, changed) in enumerate(_places(tree)):
        if number == place:
            for parent in ast.walk(tree):
                for name, value in ast.iter_fields(parent):
                    if value is node:
                        setattr(parent, name, changed)
                    elif isinstance(value, list):
                        value[:] = [changed if item is node else item for item in value]
            return ast.fix_missing_locations(tree)
    raise ValueError(f"place {place} of {number + 1}: not found")


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    for node in _code(tree):
        yield from ((node, what, changed) for what, changed in _changes(node))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide something, in reading order."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in TEXT_METHODS:
        return
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Raise) or _is_silent_call(node) or _is_figure(node):
        return
    yield node
    annotations = (
        "annotation",
        "returns",
        "decorator_list",
        "bases",
        *(("keywords",) * isinstance(node, ast.ClassDef)),
    )
    for name, value in ast.iter_fields(node):
        if name not in annotations:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _code(child)


def _is_figure(node: ast.AST) -> bool:
    """Whether the statement names a number: `NAME = 16`."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and all(isinstance(target, ast.Name) and target.id.isupper() for target in node.targets)
    )


def _is_silent_call(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SILENT_CALLS


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What could stand in the node's place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        comparison = COMPARISONS[type(node.ops[0])]
        changed = ast.Compare(node.left, [comparison()], node.comparators)
        yield f"{type(node.ops[0]).__name__} → {comparison.__name__}", changed
    elif isinstance(node, ast.BoolOp):
        flipped: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"{type(node.op).__name__} → {type(flipped).__name__}", ast.BoolOp(flipped, node.values)
        for index in range(len(node.values)):
            kept = [value for number, value in enumerate(node.values) if number != index]
            yield f"without operand {index + 1}", kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "without not", node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
        operator = ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__} → {operator.__name__}", ast.BinOp(node.left, operator(), node.right)
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        negated = copy.copy(node)
        negated.test = ast.UnaryOp(ast.Not(), node.test)
        yield "negated condition", negated
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} → {not node.value}", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield f"{node.value} → {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Continue):
        yield "continue → break", ast.Break()
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "return nothing", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)):
        yield "statement left out", ast.Pass()


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )
