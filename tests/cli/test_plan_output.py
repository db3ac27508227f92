"""`holdfast plan -f`: what is said of changes, refusals and removals, and the code it ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.cli.commands.plan import as_text, print_what_if, read_workloads
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.insight.spec_diff import workload_change
from holdfast.insight.what_if import PlannedPlacement, PlannedRemoval, RejectedChange, WhatIfResult
from holdfast.model.workload import Workload, default_workload


def workload(**spec: Any) -> Workload:
    made = factories.workload()
    return default_workload(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, **spec)))


def test_fields_that_change_are_named_with_both_values() -> None:
    change = workload_change(workload(replicas=6), workload(replicas=8))
    assert [str(field) for field in change.fields] == ["replicas 8 → 6"]
    assert not workload_change(workload(replicas=6), workload(replicas=6))
    assert workload_change(workload(), None).new
    template = msgspec.structs.replace(workload().spec.template, env={"A": "b"})
    (field,) = workload_change(workload(template=template), workload()).fields
    assert str(field) == 'template.env nothing → {"A":"b"}'


def test_a_smaller_workload_is_a_change_though_nothing_is_placed(capsys: Any) -> None:
    """Once this said that nothing would change, of a file that takes two replicas away."""
    outlook = WhatIfResult(
        changes=(workload_change(workload(replicas=1), workload(replicas=2)),),
        removals=(PlannedRemoval("us-east", "api-1", "n1"),),
    )
    assert print_what_if("text", outlook) == ExitCode.PLAN_CHANGES
    said = capsys.readouterr().out
    assert "replicas 2 → 1" in said and "REMOVED REPLICA" in said and "api-1" in said
    assert print_what_if("json", outlook) == ExitCode.PLAN_CHANGES
    told = json.loads(capsys.readouterr().out)
    assert told["removals"] == [{"region": "us-east", "replica": "api-1", "node": "n1"}] and told["placed"] == 0


def test_what_the_server_would_refuse_cannot_be_placed(capsys: Any) -> None:
    outlook = WhatIfResult(refused=(RejectedChange("nosuch/w", 'namespaces "nosuch" not found'),))
    assert print_what_if("text", outlook) == ExitCode.PLAN_NOT_PLACEABLE
    assert capsys.readouterr().out == 'nosuch/w would be refused: namespaces "nosuch" not found\n'


def test_nothing_is_nothing_and_the_same_cure_is_told_once(capsys: Any) -> None:
    assert print_what_if("text", WhatIfResult()) == ExitCode.OK
    assert capsys.readouterr().out == "nothing would change\n"
    waits = tuple(
        PlannedPlacement("us-east", f"api-{i}", reason="InsufficientCpu", message="x", to_fit="less") for i in (0, 1)
    )
    assert as_text(WhatIfResult(placings=waits)).count("to fit: less") == 1


def test_a_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("a: [b")
    with pytest.raises(CommandError, match=r"not valid YAML .*expected ',' or '\]'"):
        read_workloads(str(path))
