"""`holdfast plan -f`: output of changes, refusals and removals, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.cli.commands.plan import as_text, print_what_if, read_manifest
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.insight.spec_diff import workload_change
from holdfast.insight.what_if import PlannedPlacement, PlannedRemoval, RejectedChange, WhatIfResult
from holdfast.model.workload import Workload, default_workload


def workload(**spec: Any) -> Workload:
    made = factories.workload()
    return default_workload(msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, **spec)))


def test_changed_fields_have_old_and_new_value() -> None:
    change = workload_change(workload(replicas=6), workload(replicas=8))
    assert [str(field) for field in change.fields] == ["replicas 8 → 6"]
    assert not workload_change(workload(replicas=6), workload(replicas=6))
    assert workload_change(workload(), None).new
    template = msgspec.structs.replace(workload().spec.template, env={"A": "b"})
    (field,) = workload_change(workload(template=template), workload()).fields
    assert str(field) == 'template.env nothing → {"A":"b"}'


def test_scale_down_is_a_change_without_placements(capsys: Any) -> None:
    """Regression: a file that only removes replicas was reported as no change."""
    outlook = WhatIfResult(
        changes=(workload_change(workload(replicas=1), workload(replicas=2)),),
        removals=(PlannedRemoval("us-east", "api-1", "n1", "shop", "api"),),
    )
    assert print_what_if("text", outlook) == ExitCode.PLAN_CHANGES
    output = capsys.readouterr().out
    assert "replicas 2 → 1" in output and "REMOVED REPLICA" in output and "api-1" in output
    assert print_what_if("json", outlook) == ExitCode.PLAN_CHANGES
    document = json.loads(capsys.readouterr().out)
    removal = {"region": "us-east", "replica": "api-1", "node": "n1", "tenant": "shop", "workload": "api"}
    assert document["removals"] == [removal] and document["placed"] == 0


def test_workload_refused_by_admission_cannot_be_placed(capsys: Any) -> None:
    outlook = WhatIfResult(refused=(RejectedChange("nosuch/w", 'namespaces "nosuch" not found'),))
    assert print_what_if("text", outlook) == ExitCode.PLAN_NOT_PLACEABLE
    assert capsys.readouterr().out == 'nosuch/w would be refused: namespaces "nosuch" not found\n'


def test_empty_plan_is_empty_and_fixes_are_not_repeated(capsys: Any) -> None:
    assert print_what_if("text", WhatIfResult()) == ExitCode.OK
    assert capsys.readouterr().out == "nothing would change\n"
    pending = tuple(
        PlannedPlacement("us-east", f"api-{i}", reason="InsufficientCpu", message="x", to_fit="less") for i in (0, 1)
    )
    assert as_text(WhatIfResult(placings=pending)).count("to fit: less") == 1


def test_invalid_yaml_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("a: [b")
    with pytest.raises(CommandError, match=r"not valid YAML .*expected ',' or '\]'"):
        read_manifest(str(path))


def test_tenant_and_quota_of_the_file_are_read_beside_its_workloads(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(
        """
kind: Tenant
metadata: {name: lab}
---
kind: Quota
metadata: {name: quota, namespace: lab}
spec: {hard: {cpu: 2, memory: 2Gi}}
---
kind: Workload
metadata: {name: big, namespace: lab}
spec: {type: Service, replicas: 1, template: {command: [serve]}}
"""
    )
    found = read_manifest(str(path))
    assert [m.workload.metadata.name for m in found.workloads] == ["big"]
    assert [type(item).__name__ for item in found.given] == ["Tenant", "Quota"]
    path.write_text("kind: Quota\nmetadata: {name: quota}\nspec: {hard: [1]}")
    with pytest.raises(CommandError, match="not a valid Tenant or Quota"):
        read_manifest(str(path))
