"""Which container runtime an agent uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.foundation.container_runtime import find_runtime


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs named crun and runc, and nothing else, on PATH."""
    for name in ("crun", "runc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def mounted(folder: Path, unified: str | None) -> Path:
    """A directory like /sys/fs/cgroup; `unified` lists the controllers of cgroup v2 mounted beside v1."""
    if unified is not None:
        (folder / "unified").mkdir(parents=True)
        (folder / "unified" / "cgroup.controllers").write_text(unified)
    return folder


@pytest.mark.parametrize(
    ("unified", "chosen"), [(None, "crun"), ("\n", "crun"), ("hugetlb\n", "runc")], ids=["v2", "v1", "both"]
)
def test_crun_is_preferred_where_it_runs(installed: Path, tmp_path: Path, unified: str | None, chosen: str) -> None:
    assert find_runtime(mounted(tmp_path / "cgroup", unified)) == str(installed / chosen)


def test_crun_alone_is_no_runtime_where_both_versions_have_controllers(installed: Path, tmp_path: Path) -> None:
    (installed / "runc").unlink()
    assert find_runtime(mounted(tmp_path / "cgroup", "hugetlb\n")) == ""
