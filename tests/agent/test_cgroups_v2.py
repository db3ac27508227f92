"""cgroup v2 on the present kernel: how an agent delegates controllers to its tasks.

If the system uses only v2, test_failing_tasks.py tests all limits on it. If v1 holds memory and pids, as is common, the
delegation rules of v2 are tested with a controller that nothing else uses.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.requirements import skip_or_fail

from holdfast.agent.cgroups import CgroupV2, RlimitIsolation, choose_isolation

pytestmark = pytest.mark.e2e

ENTERS = """
import os, sys
from pathlib import Path
from holdfast.agent import cgroups
root, own, controller = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
cgroups._V2_REQUIRED, cgroups._V2_OPTIONAL = (controller,), ("no-such-controller",)
(own / "cgroup.procs").write_text(str(os.getpid()))
found = cgroups.choose_isolation("n1", root=root)
print(found.kind, found.limitation, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def unified() -> Path:
    """Mount point of cgroup v2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if found is None or not os.access(found / "cgroup.procs", os.W_OK):
        skip_or_fail(
            "no control groups of version 2 that may be written; next: run as root on a system that mounts them"
        )
    return found


@pytest.fixture
def own(unified: Path) -> Iterator[Path]:
    """A group as a service manager creates it for an agent, with delegated controllers."""
    made = unified / f"holdfast-test-{os.getpid()}"
    made.mkdir()
    yield made
    for folder in sorted(made.rglob("*"), reverse=True):
        if folder.is_dir():
            folder.rmdir()
    made.rmdir()


@pytest.fixture
def controller(unified: Path, own: Path) -> Iterator[str]:
    """A v2 controller, delegated to the agent's group."""
    free = (unified / "cgroup.controllers").read_text().split()
    if not free:
        skip_or_fail("version 2 has no controller to give: all are bound to version 1")
    name = "hugetlb" if "hugetlb" in free else free[0]
    passed_on = name in (unified / "cgroup.subtree_control").read_text().split()
    (unified / "cgroup.subtree_control").write_text(f"+{name}")
    yield name
    for folder in sorted((own, *own.rglob("*")), reverse=True):  # cannot be withdrawn while a child group uses it
        if folder.is_dir():
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"-{name}")
    if not passed_on:
        (unified / "cgroup.subtree_control").write_text(f"-{name}")


def test_agent_alone_in_cgroup_moves_to_child_and_delegates_controllers(
    unified: Path, own: Path, controller: str
) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", ENTERS, str(unified), str(own), controller],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline().split() == ["cgroup2"]
        assert (own / "agent" / "cgroup.procs").read_text().split() == [str(agent.pid)]
        assert not (own / "cgroup.procs").read_text().split(), "a group with processes cannot delegate"
        base = own / "holdfast" / "n1"
        for folder in (own, own / "holdfast", base):
            assert (folder / "cgroup.subtree_control").read_text().split() == [controller]
        # The task's group has the controller, and is removed only after its process has ended.
        task = base / "t"
        task.mkdir()
        assert (task / "cgroup.controllers").read_text().split() == [controller]
        work = subprocess.Popen(["sleep", "60"])
        (task / "cgroup.procs").write_text(str(work.pid))
        groups = CgroupV2(base)
        groups.forget("t")
        assert task.exists() and (task / "cgroup.procs").read_text().split() == [str(work.pid)]
        work.kill()
        work.wait()
        groups.forget("t")
        assert not task.exists()
    finally:
        agent.communicate("")


def test_missing_cgroup_controllers_fall_back_to_rlimits_with_reason(unified: Path) -> None:
    if {"memory", "pids"} <= set((unified / "cgroup.controllers").read_text().split()):
        pytest.skip("version 2 has memory and pids here: test_failing_tasks.py runs on it")
    before = {entry.name for entry in unified.iterdir()}
    found = choose_isolation("n1", root=unified)
    assert isinstance(found, RlimitIsolation)
    assert "memory and pids not delegated to the agent's group" in found.limitation
    assert {entry.name for entry in unified.iterdir()} == before
