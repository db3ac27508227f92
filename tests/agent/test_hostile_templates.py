"""Whatever template is accepted, the files that a node writes for it are inside the task's directory, and its launch
file says what the template says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from tests.agent.agent_world import task
from tests.agent.test_archives import facts
from tests.hostile_templates import FUZZ, plain_artifacts, templates

from holdfast.agent.drivers.artifact_sources import ArtifactSources
from holdfast.agent.drivers.artifacts import ArtifactCache
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.program_launch import program_settings
from holdfast.agent.drivers.records import TaskDir
from holdfast.agent.drivers.volumes import TaskVolumes
from holdfast.agent.shim_launch import Launch
from holdfast.model.task_programs import InitTask, Sidecar
from holdfast.model.template import DriverName, Template, validate_template


def accepted(fields: dict[str, Any]) -> Template | None:
    try:
        template = msgspec.convert(fields, Template)
    except msgspec.ValidationError:
        return None
    return None if list(validate_template("template", template)) else template


def test_accepted_template_leads_only_into_the_task_directory() -> None:
    prepared = installed = 0

    @FUZZ
    @given(templates() | plain_artifacts)
    def prepare(fields: dict[str, Any]) -> None:
        nonlocal prepared, installed
        template = accepted(fields)
        if template is None or template.driver is DriverName.HOLLOW:
            return
        with tempfile.TemporaryDirectory() as made:
            root = Path(made)
            (root / "shared").mkdir()
            (root / "shared" / "f").write_text("content")
            folder = TaskDir(root / "tasks" / "t")
            folder.path.mkdir(parents=True)
            before = facts(root, root / "tasks")
            decided = msgspec.structs.replace(task("t"), template=template)
            settings = program_settings(decided, folder.path / "work")
            with contextlib.suppress(StartFailed):
                settings += TaskVolumes(can_mount=True).prepare(decided, folder.path, [])
            folder.prepare(decided, dict(template.env), settings)
            assert facts(root, root / "tasks") == before and os.listdir(root / "tasks") == ["t"]
            prepared += 1
            check_launch(folder, template)
            installed += asyncio.run(install(root, folder, template))

    prepare()
    assert prepared >= 20 and installed >= 20, f"too few templates were accepted ({prepared}, {installed})"


def encode(texts: Iterable[str]) -> list[bytes]:
    return [text.encode(errors="surrogateescape") for text in texts]


def check_launch(folder: TaskDir, template: Template) -> None:
    launch = Launch(str(folder.run_dir(1) / "launch"))
    assert launch.argv == encode((*template.command, *template.args))
    assert launch.env == dict(zip(encode(template.env), encode(template.env.values()), strict=True))
    assert (launch.groups, launch.lease) == ([], "")
    who = launch.confinement
    assert (who.uid, who.gid, who.is_root, who.view, who.visible) == (0, 0, False, "", [])
    work = str(folder.path / "work")
    around: list[InitTask | Sidecar] = [*template.init_tasks, *template.sidecars]
    assert [program.argv for program in launch.around] == [encode((*one.command, *one.args)) for one in around]
    assert all(os.path.dirname(str(volume["stage"])) == str(folder.path / "volumes") for volume in launch.volumes)
    if template.working_dir.startswith("/"):
        assert os.path.normpath(launch.cwd) == os.path.normpath(template.working_dir)
    else:
        normal = os.path.normpath(launch.cwd)
        assert normal == work or normal.startswith(work + "/")


async def install(root: Path, folder: TaskDir, template: Template) -> int:
    """Installs the template's artifacts with an allowed source, and returns how many there were."""
    wanted = [msgspec.structs.replace(a, source=f"{root}/shared/f", digest="") for a in template.artifacts]
    cache = ArtifactCache(root / "cache", ArtifactSources(directories=(f"{root}/shared",)))
    before = facts(root, root / "tasks")
    await cache.fetch("shop", "t", wanted)
    cache.install("t", folder.path / "work")
    assert sorted(os.listdir(folder.path / "work")) == sorted(artifact.name for artifact in template.artifacts)
    inside = {path for path in facts(root, root / "tasks") if not path.startswith(f"{root}/cache")}
    assert inside == {path for path in before if not path.startswith(f"{root}/cache")}
    return len(wanted)


@pytest.mark.parametrize(
    "fields",
    [{"working_dir": "/x\0group=/tmp"}, {"working_dir": "x\0root=1"}, {"args": ("a\0b",)}, {"env": {"A": "b\0c"}}],
)
def test_launch_file_never_contains_injected_settings(fields: dict[str, Any], tmp_path: Path) -> None:
    """Stored objects may be older than a rule of admission, so the agent checks again."""
    (tmp_path / "t").mkdir()
    folder = TaskDir(tmp_path / "t")
    plain = task("t", "true")
    decided = msgspec.structs.replace(plain, template=msgspec.structs.replace(plain.template, **fields))
    with pytest.raises(StartFailed) as failure:
        folder.prepare(decided, dict(decided.template.env))
    assert "NUL" in failure.value.message
    assert not (folder.run_dir(1) / "launch").exists()
