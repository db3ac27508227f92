"""Validation of programs around the main task and of volumes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.host_paths import NodeHostPath, refused_host_path
from holdfast.model.template import Template, template_hash, validate_template
from holdfast.model.template_volume import volume_env_name

PROGRAM = {"name": "one", "command": ["true"]}
SCRATCH = {"name": "data", "mountPath": "/data", "scratch": {"sizeLimit": "1Mi"}}


def causes(**fields: Any) -> list[str]:
    template = msgspec.convert({"command": ["serve"], **fields}, Template)
    return [f"{cause.field} {cause.message}" for cause in validate_template("t", template)]


def test_template_without_programs_and_volumes_keeps_its_hash() -> None:
    assert template_hash(Template(command=("a",))) == "d3414b49be", "an upgrade must not restart every workload"


def test_programs_and_volumes_are_accepted() -> None:
    hook = {"exec": {"command": ["true"]}}
    assert not causes(
        initTasks=[PROGRAM],
        sidecars=[{**PROGRAM, "name": "two", "readiness": {"exec": {"command": ["true"]}}}],
        lifecycle={"preStop": hook, "postStart": hook},
        volumes=[SCRATCH, {"name": "host", "mountPath": "/srv/x", "hostPath": {"path": "/srv/models"}}],
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"initTasks": [{"name": "one"}]}, "initTasks[0].command"),
        ({"initTasks": [PROGRAM], "sidecars": [PROGRAM]}, "initTasks and t.sidecars"),
        ({"initTasks": [{**PROGRAM, "name": "work"}]}, "name of the main task"),
        ({"initTasks": [{**PROGRAM, "name": "../x"}]}, "initTasks[0].name"),
        ({"sidecars": [{**PROGRAM, "env": {"HOLDFAST_TASK": "x"}}]}, "sidecars[0].env"),
        ({"sidecars": [{**PROGRAM, "workingDir": "../x"}]}, "workingDir"),
        ({"sidecars": [{**PROGRAM, "args": ["a\0b"]}]}, "NUL"),
        ({"sidecars": [{**PROGRAM, "readiness": {"tcp": {}}}]}, "no TCP ports"),
        ({"initTasks": [{**PROGRAM, "name": f"n{i}"} for i in range(9)]}, "at most 8"),
        ({"initTasks": [{**PROGRAM, "timeoutSeconds": -1}]}, "timeoutSeconds"),
        ({"lifecycle": {"preStop": {}}}, "exactly one of http, exec"),
        ({"lifecycle": {"preStop": {"exec": {"command": []}}}}, "exec.command"),
    ],
)
def test_hostile_program_is_refused(fields: dict[str, Any], expected: str) -> None:
    found = causes(**fields)
    assert any(expected in text for text in found), found


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"mountPath": "/usr/lib/python3"}, "/usr"),
        ({"mountPath": "/proc/self"}, "/proc"),
        ({"mountPath": "/tmp/x"}, "/tmp"),
        ({"mountPath": "/etc"}, "cover /etc"),
        ({"mountPath": "/"}, "cover /"),
        ({"mountPath": "data"}, "absolute"),
        ({"mountPath": "/a/../etc"}, "normal"),
        ({"mountPath": "/a//b"}, "normal"),
        ({"mountPath": "/a\nb"}, "control"),
        ({"scratch": {"sizeLimit": "x"}}, "sizeLimit"),
        ({"scratch": {"sizeLimit": "1"}}, "at least 1Mi"),
        ({"scratch": {}}, "sizeLimit"),
        ({"scratch": {"sizeLimit": "1Mi", "medium": "Memory"}}, "resources.memory"),
        ({"hostPath": {"path": "/x"}}, "exactly one"),
        ({"scratch": None}, "exactly one"),
        ({"scratch": None, "hostPath": {"path": "/x/../y"}}, "hostPath.path"),
        ({"scratch": None, "hostPath": {"path": "/"}}, "root directory"),
    ],
)
def test_hostile_volume_is_refused(volume: dict[str, Any], expected: str) -> None:
    found = causes(volumes=[{**SCRATCH, **volume}])
    assert any(expected in text for text in found), found


def test_volumes_inside_each_other_and_larger_than_the_resources_are_refused() -> None:
    inner = {**SCRATCH, "name": "inner", "mountPath": "/data/inner"}
    assert any("must not contain" in text for text in causes(volumes=[SCRATCH, inner]))
    memory = {**SCRATCH, "scratch": {"sizeLimit": "64Mi", "medium": "Memory"}}
    assert any("resources.memory" in text for text in causes(volumes=[memory], resources={"memory": "32Mi"}))
    assert not causes(volumes=[memory], resources={"memory": "64Mi"})
    assert any("resources.disk" in text for text in causes(volumes=[SCRATCH], resources={"disk": "1Ki"}))


def test_variable_of_a_volume_is_a_name_that_shells_accept() -> None:
    assert volume_env_name("my-data") == "HOLDFAST_VOLUME_MY_DATA"


def test_node_refuses_host_paths_by_default() -> None:
    needs = (("/srv/models/a", True),)
    assert refused_host_path((), "acme", needs) == "/srv/models/a"
    assert not refused_host_path((NodeHostPath("/srv/models", True, ("acme",)),), "acme", needs)
    assert refused_host_path((NodeHostPath("/srv/models", True, ("acme",)),), "acme", (("/srv/models/a", False),))
    assert refused_host_path((NodeHostPath("/srv/models", True, ("acme",)),), "other", needs)
