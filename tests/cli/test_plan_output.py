"""`holdfast plan -f`: what is said of changes, refusals and removals, and the code it ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import making
from holdfast.cli.commands.plan import as_text, read_workloads, shown
from holdfast.cli.exits import Exit, Stop
from holdfast.cli.platform.foresight import Outlook, Placing, Refused, Removal
from holdfast.cli.platform.spec_diff import change_of
from holdfast.model.workload import Workload, default_workload


def workload(**spec: Any) -> Workload:
    made = making.workload()
    return default_workload(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, **spec)))


def test_fields_that_change_are_named_with_both_values() -> None:
    change = change_of(workload(replicas=6), workload(replicas=8))
    assert [str(field) for field in change.fields] == ["replicas 8 → 6"]
    assert not change_of(workload(replicas=6), workload(replicas=6))
    assert change_of(workload(), None).new
    template = msgspec.structs.replace(workload().spec.template, env={"A": "b"})
    (field,) = change_of(workload(template=template), workload()).fields
    assert str(field) == 'template.env nothing → {"A":"b"}'


def test_a_smaller_workload_is_a_change_though_nothing_is_placed(capsys: Any) -> None:
    """Once this said that nothing would change, of a file that takes two replicas away."""
    outlook = Outlook(
        changes=(change_of(workload(replicas=1), workload(replicas=2)),), removals=(Removal("us-east", "api-1", "n1"),)
    )
    assert shown("text", outlook) == Exit.PLAN_CHANGES
    said = capsys.readouterr().out
    assert "replicas 2 → 1" in said and "REMOVED REPLICA" in said and "api-1" in said
    assert shown("json", outlook) == Exit.PLAN_CHANGES
    told = json.loads(capsys.readouterr().out)
    assert told["removals"] == [{"region": "us-east", "replica": "api-1", "node": "n1"}] and told["placed"] == 0


def test_what_the_server_would_refuse_cannot_be_placed(capsys: Any) -> None:
    outlook = Outlook(refused=(Refused("nosuch/w", 'namespaces "nosuch" not found'),))
    assert shown("text", outlook) == Exit.PLAN_NOT_PLACEABLE
    assert capsys.readouterr().out == 'nosuch/w would be refused: namespaces "nosuch" not found\n'


def test_nothing_is_nothing_and_the_same_cure_is_told_once(capsys: Any) -> None:
    assert shown("text", Outlook()) == Exit.OK
    assert capsys.readouterr().out == "nothing would change\n"
    waits = tuple(Placing("us-east", f"api-{i}", reason="InsufficientCpu", message="x", to_fit="less") for i in (0, 1))
    assert as_text(Outlook(placings=waits)).count("to fit: less") == 1


def test_a_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("a: [b")
    with pytest.raises(Stop, match=r"not valid YAML .*expected ',' or '\]'"):
        read_workloads(str(path))
