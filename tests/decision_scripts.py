"""Runs test scripts: text files of blocks, each with commands, a `----` line and the expected output.

A blank line ends a block and `#` starts a comment. The lines after a command are its input. Objects are stated as
`kind name,… field=value …`, with values in YAML flow style. A field belongs to the spec unless its path starts with
`metadata.` or `status.`. Fields are checked against the schema of the kind, so a misspelled one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests import factories

from holdfast.model.kinds import ALL
from holdfast.model.meta import Object
from holdfast.model.schema import Findings, schema_of, walk

Commands = Mapping[str, Callable[[list[str], list[str]], str]]
"""By name: from the arguments and input lines of a command to its output."""

KINDS = {kind.singular: kind for kind in ALL}


def scripts_beside(test_file: str) -> list[Path]:
    return sorted((Path(test_file).parent / "scripts").glob("*.txt"))


def run_script(path: Path, commands: Commands, *, rewrite: bool) -> None:
    """Compares the script with itself after its outputs are replaced by the actual ones. `rewrite` stores those."""
    written = path.read_text()
    actual = "\n\n".join(_with_output(block, commands) for block in written.strip().split("\n\n")) + "\n"
    if rewrite:
        path.write_text(actual)
    elif actual != written:
        lines = unified_diff(written.splitlines(), actual.splitlines(), path.name, "actual", lineterm="")
        pytest.fail("\n".join(lines), pytrace=False)


def _with_output(block: str, commands: Commands) -> str:
    head = block.split("\n----", maxsplit=1)[0]
    calls: list[tuple[list[str], list[str]]] = []
    for line in head.splitlines():
        if line.split(" ")[0] in commands:
            calls.append((words(line), []))
        elif not line.startswith("#"):
            calls[-1][1].append(line)
    outputs = [commands[name](arguments, lines) for (name, *arguments), lines in calls]
    output = "\n".join(text for text in outputs if text)
    return f"{head}\n----\n{output}" if output else head


def words(line: str) -> list[str]:
    """The line split at spaces outside of brackets and quotes."""
    found, depth, quoted = [""], 0, False
    for letter in line:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "[{") - (letter in "]}")
        if letter == " " and not depth and not quoted:
            found.append("")
        else:
            found[-1] += letter
    return [word for word in found if word]


def fields(given: list[str]) -> dict[str, Any]:
    """`a=1 b` as {"a": 1, "b": True}."""
    pairs = (word.partition("=") for word in given)
    return {name: yaml.safe_load(value) if equals else True for name, equals, value in pairs}


def make_object(kind: str, name: str, given: dict[str, Any], namespace: str = "acme") -> Any:
    """An object of this kind as it would be read from a cell."""
    row = KINDS[kind]
    metadata = msgspec.to_builtins(factories.meta(name, namespace if row.namespaced else ""))
    data: dict[str, Any] = {"metadata": metadata, "spec": {}}
    for path, value in given.items():
        at, (*parents, last) = data, path.split(".") if path.startswith(("metadata.", "status.")) else ["spec", path]
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = {**at.get(last, {}), **value} if isinstance(value, dict) else value
    found = Findings()
    data = walk(schema_of(row), data, found)
    if found.unknown or found.causes:
        raise ValueError(f"{kind} {name}: {found.unknown or found.causes}")
    return msgspec.convert(data, row.type)


def key_of(item: Object) -> tuple[str, str, str]:
    return type(item).__name__, item.metadata.namespace, item.metadata.name
