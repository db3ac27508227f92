"""Names that a reader can trust: one class per name, and a name that reads as a statement returns a bool."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

# First words that make a name a statement: `is_ready`, `may_evict`, `covers`.
STATEMENT_VERBS = re.compile(
    "(accepts|allows|applies|awaits|beats|belongs|can|cannot|contains|covers|decides|depends|did|differs|does|exists|fails"
    "|fits|had|has|have|holds|is|includes|knows|matches|may|must|needs|passes|permits|preempts|replaces|requires"
    "|satisfies|serves|should|suffices|supports|tolerates|uses|waits|wants|was|were|will)(_|$)"
)
BOOLEAN_TYPES = frozenset({"bool", "Bools", "TypeGuard", "TypeIs"})  # Bools is an array with one bool per node


def statements_without_bool(tree: ast.Module) -> list[str]:
    """Functions whose name is a statement and whose annotated result is not a bool."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returns = node.returns.value if isinstance(node.returns, ast.Subscript) else node.returns
            named = returns.attr if isinstance(returns, ast.Attribute) else getattr(returns, "id", "")
            if STATEMENT_VERBS.match(node.name.removeprefix("_")) and named not in BOOLEAN_TYPES:
                found.append(f"{node.name} (line {node.lineno})")
    return found


def test_class_names_are_unique(root: Path, sources: dict[Path, ast.Module]) -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name.lstrip("_")].append(f"{path.relative_to(root)}:{node.lineno}")
    repeated = {name: places for name, places in defined.items() if len(places) > 1}
    assert not repeated, f"one name, one class: {repeated}"


def test_functions_named_as_statements_return_bool(root: Path, sources: dict[Path, ast.Module]) -> None:
    found = {str(path.relative_to(root)): statements_without_bool(tree) for path, tree in sources.items()}
    wrong = {path: names for path, names in found.items() if names}
    assert not wrong, f"name the result instead, such as refusal_reason: {wrong}"


def test_statement_without_bool_is_found() -> None:
    tree = ast.parse(
        "def may_take() -> str | None: ...\n"
        "class C:\n"
        "    @property\n"
        "    def is_ready(self) -> bool: ...\n"
        "    async def _has_room(self) -> int: ...\n"
        "def is_node(x: object) -> TypeGuard[int]: ...\n"
        "def missing_reason() -> str: ...\n"
    )
    assert statements_without_bool(tree) == ["may_take (line 1)", "_has_room (line 5)"]
