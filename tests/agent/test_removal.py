"""Directories of ended tasks are removed, whatever the task made of them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.agent_world import task

from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.drivers.removal import remove_tree
from holdfast.foundation.ports import SystemClock

DEEP = """
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
    os.symlink("/", "root")
"""


@pytest.fixture
def few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def nested(root: Path, depth: int) -> None:
    here = os.getcwd()
    root.mkdir()
    os.chdir(root)
    for index in range(depth):
        os.mkdir("d")
        os.chdir("d")
        if index % 100 == 0:
            Path("file").write_text("x")
    os.chdir(here)


def test_tree_deeper_than_any_stack_is_removed(tmp_path: Path, few_files: None) -> None:
    nested(tmp_path / "deep", 5000)
    remove_tree(tmp_path / "deep")
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "out").symlink_to(outside)
    (tree / "loop").symlink_to(".")
    os.mkfifo(tree / "a" / "pipe")
    (tree / "a" / "closed").mkdir(mode=0o000)
    remove_tree(tree)
    assert os.listdir(tmp_path) == ["outside"] and os.listdir(outside) == ["kept"]
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "link")
    assert os.listdir(tmp_path) == ["outside"] and os.listdir(outside) == ["kept"]


async def test_task_that_left_a_deep_tree_is_forgotten(tmp_path: Path) -> None:
    driver = ProcessDriver(tmp_path, SystemClock())
    await driver.start(task("deep", "/usr/bin/env", "python3", "-c", DEEP))
    assert (await driver.next_exit()).exit.code == 0
    await driver.forget("deep")
    assert not (tmp_path / "deep" / "work").exists()
    await driver.close()
    assert await ProcessDriver(tmp_path, SystemClock()).inspect() == [], "the task is forgotten permanently"
