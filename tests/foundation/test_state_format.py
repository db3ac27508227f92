"""State directories: the version is noted, a newer format is refused, an older one is migrated after a copy."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from holdfast import __version__
from holdfast.foundation.state_format import VERSION_FILE, Migration, StateFormat, StateVersion, open_state
from holdfast.model.errors import StoreFailed

FILES = ("*.json", "tasks/*/task.json")
FIRST = StateFormat("agent", FILES)


def uppercase(folder: Path) -> None:
    """Not idempotent across a crash: it renames and rewrites."""
    for path in folder.glob("tasks/*/task.json"):
        path.write_text(path.read_text() + "!")
    (folder / "old.json").rename(folder / "new.json")


def add_file(folder: Path) -> None:
    (folder / "third.json").write_text("3")


SECOND = StateFormat("agent", FILES, (Migration(2, "old.json is new.json", uppercase),))
THIRD = StateFormat("agent", FILES, (*SECOND.migrations, Migration(3, "third.json is new", add_file)))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A directory of format 1, of a release that did not note it."""
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "tasks" / "t").mkdir(parents=True)
    (tmp_path / "tasks" / "t" / "task.json").write_text("task")
    (tmp_path / "tasks" / "t" / "output.log").write_text("output")
    return tmp_path


def version_of(folder: Path) -> StateVersion:
    return msgspec.json.decode((folder / VERSION_FILE).read_bytes(), type=StateVersion)


def test_directory_without_a_version_has_format_1_and_gets_the_file(state: Path) -> None:
    assert open_state(state, FIRST) == StateVersion(1, __version__, "agent")
    assert version_of(state) == StateVersion(1, __version__, "agent")
    assert (state / VERSION_FILE).stat().st_mode & 0o077 == 0


def test_new_directory_has_the_current_format_without_a_migration(tmp_path: Path) -> None:
    assert open_state(tmp_path, THIRD).format == 3
    assert [path.name for path in tmp_path.iterdir()] == [VERSION_FILE]


def test_older_directory_is_migrated_after_a_copy(state: Path) -> None:
    found = open_state(state, THIRD)
    assert found.format == 3 and not found.migrating_to
    assert not (state / "old.json").exists()
    assert (state / "new.json").read_text() == "old" and (state / "third.json").read_text() == "3"
    assert (state / "tasks" / "t" / "task.json").read_text() == "task!"
    first = next(state.glob("before-format-2-*"))
    assert (first / "old.json").read_text() == "old" and version_of(first).format == 1
    assert (first / "tasks" / "t" / "task.json").read_text() == "task"
    assert not (first / "tasks" / "t" / "output.log").exists()
    assert version_of(next(state.glob("before-format-3-*"))).format == 2
    assert first.stat().st_mode & 0o077 == 0
    assert open_state(state, THIRD) == found, "a second start migrates nothing"
    assert (state / "tasks" / "t" / "task.json").read_text() == "task!"


def test_interrupted_migration_starts_again_from_the_copy(state: Path) -> None:
    def interrupted(folder: Path) -> None:
        uppercase(folder)
        (folder / "half.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_state(state, StateFormat("agent", FILES, (Migration(2, "ends halfway", interrupted),)))
    assert version_of(state).migrating_to == 2
    assert open_state(state, SECOND).format == 2
    assert (state / "tasks" / "t" / "task.json").read_text() == "task!"
    assert (state / "new.json").read_text() == "old" and not (state / "half.json").exists()


def test_going_back_with_the_copy_and_upgrading_again_works(state: Path) -> None:
    open_state(state, SECOND)
    copy = next(state.glob("before-format-2-*"))
    (state / "new.json").unlink()
    for path in (copy / "old.json", copy / VERSION_FILE):
        (state / path.name).write_bytes(path.read_bytes())
    assert open_state(state, FIRST).format == 1
    (state / "old.json").write_text("written since")
    assert open_state(state, SECOND).format == 2
    assert (state / "new.json").read_text() == "written since"


def test_newer_directory_is_refused_and_unchanged(state: Path) -> None:
    open_state(state, SECOND)
    before = (state / VERSION_FILE).read_bytes()
    with pytest.raises(StoreFailed, match=r"newer release \(expected format 1 or older, found 2 .*; next: start that"):
        open_state(state, FIRST)
    assert (state / VERSION_FILE).read_bytes() == before


def test_failed_migration_names_the_directory_and_can_start_again(state: Path) -> None:
    (state / "old.json").rename(state / "hidden")
    with pytest.raises(StoreFailed, match=r"not migrated to format 2 .*; next: "):
        open_state(state, SECOND)
    assert version_of(state).format == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "x"}', b'{"format": 1, "holdfast": "1", "kind": "cell"}'])
def test_unreadable_or_foreign_version_is_refused(state: Path, content: bytes) -> None:
    (state / VERSION_FILE).write_bytes(content)
    with pytest.raises(StoreFailed, match="; next: "):
        open_state(state, FIRST)
    assert (state / VERSION_FILE).read_bytes() == content


def test_fields_of_a_later_release_are_ignored(state: Path) -> None:
    (state / VERSION_FILE).write_text(json.dumps({"format": 1, "holdfast": "9.9", "kind": "agent", "later": True}))
    assert open_state(state, FIRST).holdfast == __version__


def test_link_of_a_task_is_neither_copied_nor_written_through(
    state: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "target"
    outside.write_text("outside")
    (state / "tasks" / "u").mkdir()
    (state / "tasks" / "u" / "task.json").symlink_to(outside)
    open_state(state, StateFormat("agent", FILES, (Migration(2, "adds a file", add_file),)))
    assert not list(state.glob("before-format-2-*/tasks/u"))
    assert outside.read_text() == "outside"
