"""Configuration of a container: what the image says, what the template overrides, and who the task is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.agent.test_images import image_task

from holdfast.agent.drivers.image_bundle import ROOT_CAPABILITIES, container_args, container_env, runtime_config
from holdfast.registry.manifests import ImageConfig

IMAGE = ImageConfig(
    entrypoint=("/entry",), cmd=("default",), env=("A=image", "B=image"), working_dir="/app", user="app", uid=5, gid=6
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["/entry", "default"]),
        ({"args": ("x",)}, ["/entry", "x"]),
        ({"command": ("/own",)}, ["/own"]),
        ({"command": ("/own",), "args": ("x",)}, ["/own", "x"]),
    ],
)
def test_command_and_args_override_the_image_as_in_kubernetes(given: dict[str, Any], expected: list[str]) -> None:
    assert container_args(image_task("a", "web:1", **given), IMAGE) == expected


def test_environment_of_the_template_wins() -> None:
    wanted = msgspec.structs.replace(image_task("a", "web:1"), env={"B": "template"})
    env = dict(pair.split("=", 1) for pair in container_env(wanted, IMAGE))
    assert (env["A"], env["B"], env["HOLDFAST_TASK"]) == ("image", "template", "a") and env["PATH"]


@pytest.mark.parametrize(
    ("identity", "user", "capabilities"),
    [
        ({"uid": 20_001, "gid": 20_001}, {"uid": 20_001, "gid": 20_001}, {}),
        ({"root": 1}, {"uid": 5, "gid": 6}, set(ROOT_CAPABILITIES)),
    ],
)
def test_user_is_that_of_the_task_unless_root_is_allowed(
    identity: dict[str, object], user: dict[str, int], capabilities: Any
) -> None:
    config = runtime_config(image_task("a", "web:1"), IMAGE, root="/r", writable=True, identity=identity)
    process = config["process"]
    assert process["user"] == user and process["noNewPrivileges"] and process["cwd"] == "/app/"
    assert {name for names in process["capabilities"].values() for name in names} == set(capabilities)
    assert {"type": "network"} not in config["linux"]["namespaces"]
