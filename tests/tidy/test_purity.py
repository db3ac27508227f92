"""`model`, `scheduling` and `fleet` are pure: no I/O, no clock, no globals, and no order that comes from a set."""

from __future__ import annotations

import ast
from pathlib import Path

PURE = ("model", "scheduling", "fleet")
EFFECT_MODULES = {
    "asyncio",
    "time",
    "random",
    "uuid",
    "os",
    "socket",
    "logging",
    "threading",
    "subprocess",
    "secrets",
    "pathlib",
    "structlog",
    "apsw",
    "aiohttp",
    "uvicorn",
    "prometheus_client",
    "ssl",
    "http",
    "urllib",
    "shutil",
    "tempfile",
}
EFFECT_CALLS = {"open", "print", "input", "exec", "eval", "id", "hash", "globals"}


def pure_sources(root: Path, sources: dict[Path, ast.Module]) -> dict[str, ast.Module]:
    found: dict[str, ast.Module] = {}
    for name in PURE:
        folder = root / "src" / "holdfast" / name
        inside = {p.relative_to(root).as_posix(): tree for p, tree in sources.items() if p.is_relative_to(folder)}
        assert inside, f"package {name}: not found"
        found |= inside
    return found


def test_decisions_import_no_effects(root: Path, sources: dict[Path, ast.Module]) -> None:
    found = []
    for name, tree in pure_sources(root, sources).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            else:
                continue
            found += [f"{name}:{node.lineno} imports {m}" for m in modules if m.split(".")[0] in EFFECT_MODULES]
    assert not found, found


def test_decisions_call_no_effects(root: Path, sources: dict[Path, ast.Module]) -> None:
    found = [
        f"{name}:{node.lineno} calls {node.func.id}"
        for name, tree in pure_sources(root, sources).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EFFECT_CALLS
    ]
    assert not found, found


def test_decisions_are_not_coroutines(root: Path, sources: dict[Path, ast.Module]) -> None:
    found = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in pure_sources(root, sources).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    assert not found, f"coroutines in decisions: {found}"


def test_decisions_have_no_mutable_globals(root: Path, sources: dict[Path, ast.Module]) -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, tree in pure_sources(root, sources).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global | ast.Nonlocal)
    ]
    assert not found, found


def test_order_does_not_come_from_a_set(root: Path, sources: dict[Path, ast.Module]) -> None:
    """`for x in {…}` and `for x in set(…)` have no stable order; sort first."""
    found = []
    for name, tree in pure_sources(root, sources).items():
        loops = [n.iter for n in ast.walk(tree) if isinstance(n, ast.For | ast.comprehension)]
        for over in loops:
            is_set = isinstance(over, ast.Set | ast.SetComp) or (
                isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in ("set", "frozenset")
            )
            if is_set:
                found.append(f"{name}:{over.lineno}")
    assert not found, f"iterates over a set: {found}"


def test_cancellation_is_not_suppressed(sources: dict[Path, ast.Module]) -> None:
    """Before Python 3.12 `asyncio.wait_for` may suppress a cancellation; use `asyncio.timeout`."""
    found = [
        f"{path.name}:{node.lineno}"
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "wait_for"
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
    ]
    assert not found, found


def test_finalizers_change_nothing_shared(sources: dict[Path, ast.Module]) -> None:
    """Python may call `__del__` between any two instructions, also while another method iterates or holds a lock. So it
    only hands the object to a method `abandon`, which appends it to a list for later.
    """
    found = [
        f"{path.name}:{call.lineno} calls {ast.unparse(call.func)}"
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "__del__"
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and not (isinstance(call.func, ast.Attribute) and call.func.attr == "abandon")
    ]
    assert not found, found
