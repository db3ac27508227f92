"""A tenant must not own a node: a task, and every command run for it, has a user of its own, no privileges, and no
sight of the agent's state or of other tasks. Real processes, started by root.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.agent_world import eventually, task
from tests.expected import of_type
from tests.requirements import skip_or_fail

from holdfast.agent import logs
from holdfast.agent.cgroups import NoIsolation, RlimitIsolation, choose_isolation
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.task_users import TASK_UID_BLOCK, TaskUsers, claim_block
from holdfast.foundation.ports import SystemClock
from holdfast.model.errors import Invalid

LOOK = """id -u; id -G
grep -E 'CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs' /proc/self/status
ls /proc/self/fd | tr '\\n' ' '"""
NO_CAPABILITIES = "0000000000000000"


@pytest.fixture(autouse=True)
def as_root() -> None:
    if os.geteuid() != 0:
        skip_or_fail("only root can give tasks users of their own; next: run as root")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture(params=["groups", "rlimits", "none"])
async def driver(request: pytest.FixtureRequest, tmp_path: Path, registry: Path) -> AsyncIterator[ProcessDriver]:
    held: Any = {
        "groups": lambda: choose_isolation(f"test-{os.getpid()}"),
        "rlimits": lambda: RlimitIsolation("for this test"),
        "none": NoIsolation,
    }[request.param]()
    state = tmp_path / "state"
    (state / "identity").mkdir(parents=True)
    (state / "identity" / "node.pem").write_text("PRIVATE KEY")
    users = TaskUsers(state, registry=registry)
    made = ProcessDriver(state / "tasks", SystemClock(), confinement=held, users=users)
    yield made
    for name in list(made._live):
        await made.stop(name, 0.0)
        await made.forget(name)
    await made.close()
    held.close()


def text(driver: ProcessDriver, name: str) -> str:
    path = driver.logs(name)
    assert path is not None
    return "\n".join(line.text for line in logs.tail(path, 1000)) if path.exists() else ""


async def printed(driver: ProcessDriver, name: str, *command: str, run: int = 1, **more: Any) -> str:
    """What a task prints until it has ended."""
    await driver.start(task(name, *command, run=run, **more))
    await driver.next_exit()
    return text(driver, name)


def assert_harmless(shown: str) -> int:
    """Checks the output of LOOK. Returns the uid."""
    uid, groups, *facts = shown.splitlines()
    found = dict(line.replace(":", "").split() for line in facts[:5])
    assert int(uid) >= 20_000 and groups == uid
    assert found.pop("NoNewPrivs") == "1" and set(found.values()) == {NO_CAPABILITIES}, found
    assert set(facts[5].split()) <= {"0", "1", "2", "3"}, "no descriptor is inherited; 3 is the directory that ls reads"
    return int(uid)


async def whole_look(driver: ProcessDriver, name: str) -> str:
    return of_type(await eventually(lambda: (t := text(driver, name)).count("\n") >= 7 and t), str)


async def test_task_and_commands_beside_it_have_own_uid_and_no_privileges(driver: ProcessDriver) -> None:
    leaked = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    await driver.start(task("a", "sh", "-c", f"{LOOK}; echo; exec sleep 60"))
    await driver.start(task("b", "sh", "-c", f"{LOOK}; echo; exec sleep 60"))
    uids = [assert_harmless(await whole_look(driver, name)) for name in ("a", "b")]
    os.close(leaked)
    assert uids[0] != uids[1]
    beside = await driver.execute("a", ("sh", "-c", LOOK), 10.0, 4096)
    assert beside.code == 0 and assert_harmless(beside.output) == uids[0], "an exec probe has the user of its task"


async def test_task_sees_neither_state_of_agent_nor_other_tasks(driver: ProcessDriver, tmp_path: Path) -> None:
    state = tmp_path / "state"
    await driver.start(task("victim", "sh", "-c", "echo secret > mine; echo secret > /tmp/mine; exec sleep 60"))
    victim = state / "tasks" / "victim"
    await eventually((victim / "work" / "mine").exists)
    tried = [
        f"cat {state}/identity/node.pem",
        f"ls -A {state} | grep -v ^tasks$",
        f"ls -A {state}/tasks | grep -v ^spy$",
        f"ls -A {state}/tasks/spy | grep -v ^work$",
        f"cat {victim / 'work' / 'mine'}",
        f"cat {victim / 'tmp' / 'mine'}",
        "cat /tmp/mine",
        f"cat {state}/tasks/spy/run-1/launch",
        f"cat {state}/tasks/spy/task.json",
        f"touch {state}/tasks/lease",
        "cat /proc/1/environ",
        "kill -0 1",
        "cat /etc/shadow",
    ]
    script = "; ".join(f'if {command} 2>/dev/null | grep -q .; then echo "OPEN: {command}"; fi' for command in tried)
    shown = await printed(driver, "spy", "sh", "-c", f"{script}; echo done; pwd")
    assert shown == f"done\n{state}/tasks/spy/work"


async def test_tmp_is_private_shared_with_commands_beside_and_empty_at_next_run(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    name = f"holdfast-{os.getpid()}"
    places = (f"/tmp/{name}", f"/var/tmp/{name}", f"/dev/shm/{name}")
    script = "; ".join(f"echo x > {place}" for place in places)
    await driver.start(task("a", "sh", "-c", f"{script}; echo up; exec sleep 60"))
    await eventually(lambda: "up" in text(driver, "a"))
    assert not [place for place in places if Path(place).exists()], "the node's own directories are untouched"
    beside = await driver.execute("a", ("sh", "-c", f"cat {' '.join(places)}; echo $TMPDIR; echo y > $HOME/y"), 10.0)
    assert beside.output.split() == ["x", "x", "x", "/tmp"]
    await driver.stop("a", 0.0)
    assert await printed(driver, "a", "sh", "-c", "ls /tmp/holdfast-* 2>/dev/null; ls; echo end", run=2) == "up\ny\nend"


async def test_loopback_of_node_is_shared(driver: ProcessDriver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('connected')"
        assert await printed(driver, "a", sys.executable, "-c", script) == "connected"


async def test_named_user_is_refused_unless_allowed(tmp_path: Path, registry: Path) -> None:
    tasks = tmp_path / "state" / "tasks"
    closed = ProcessDriver(tasks, SystemClock(), users=TaskUsers(tmp_path / "state", registry=registry))
    for user in ("root", "nobody", "0"):
        with pytest.raises(StartFailed) as failure:
            await closed.start(task("a", "id", "-u", user=user))
        assert failure.value.reason == "UserNotAllowed" and f"user {user}" in failure.value.message
    users = TaskUsers(tmp_path / "state", registry=registry, allowed={"acme": ("nobody", "root"), "other": ("daemon",)})
    driver = ProcessDriver(tasks, SystemClock(), users=users)
    shown = await printed(
        driver, "b", "sh", "-c", "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status", user="nobody"
    )
    uid, capabilities, privileges = shown.splitlines()
    assert int(uid) == pwd.getpwnam("nobody").pw_uid and capabilities.endswith(NO_CAPABILITIES)
    assert privileges.split()[1] == "1"
    assert await printed(driver, "c", "sh", "-c", f"id -u; ls {tmp_path}/state", user="root") == "0\ntasks"
    await driver.close()


async def test_uid_is_given_again_only_after_all_others_and_never_while_in_use(tmp_path: Path, registry: Path) -> None:
    first = 1_999_000_000
    state = tmp_path / "state"

    def opened() -> tuple[TaskUsers, ProcessDriver]:
        users = TaskUsers(state, uids=(first, first + 2), registry=registry)
        return users, ProcessDriver(state / "tasks", SystemClock(), users=users)

    _, driver = opened()
    seen = [await printed(driver, name, "id", "-u") for name in ("a", "b")]
    assert seen == [str(first), str(first + 1)]
    assert await printed(driver, "a", "id", "-u", run=2) == f"{first}\n{first}", "a restarted task keeps its uid"
    await driver.forget("b")
    assert await printed(driver, "c", "id", "-u") == str(first + 2), "the uid of b waits for its turn"
    await driver.close()
    _, driver = opened()
    await driver.inspect()
    assert await printed(driver, "d", "id", "-u") == str(first + 1), "a and c keep theirs after a restart of the agent"
    with pytest.raises(StartFailed, match="all 3 task uids are in use"):
        await driver.start(task("e", "true"))
    await driver.forget("d")
    await driver.close()
    holder = subprocess.Popen(["sleep", "60"], user=first + 1)
    try:
        _, driver = opened()
        await driver.inspect()
        with pytest.raises(StartFailed, match="in use"):
            await driver.start(task("e", "true"))
        await driver.close()
    finally:
        holder.kill()
        holder.wait()


def test_agents_of_one_machine_have_disjoint_uids(tmp_path: Path, registry: Path) -> None:
    states = [tmp_path / name for name in ("a", "b", "c")]
    for state in states:
        state.mkdir()
    blocks = [claim_block(state, registry) for state in states]
    assert len({first for first, _ in blocks}) == 3 and all(
        last - first + 1 == TASK_UID_BLOCK for first, last in blocks
    )
    assert claim_block(states[1], registry) == blocks[1], "an agent keeps its block"
    holder = subprocess.Popen(["sleep", "60"], user=blocks[1][0] + 7)
    try:
        states[1].rmdir()
        states[0].rmdir()
        (tmp_path / "d").mkdir()
        (tmp_path / "e").mkdir()
        assert claim_block(tmp_path / "d", registry) == blocks[0]
        assert claim_block(tmp_path / "e", registry)[0] > blocks[2][0], "a process of the former owner still runs"
    finally:
        holder.kill()
        holder.wait()


WITHOUT_VIEWS = """
import asyncio, os, sys
from pathlib import Path
from holdfast.agent import logs
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.task_users import TaskUsers
from holdfast.foundation.ports import SystemClock
sys.path[:0] = [sys.argv[2]]
from tests.agent.agent_world import task
async def main():
    state = Path(sys.argv[1])
    (state / "identity").mkdir(parents=True)
    os.chmod(state / "identity", 0o700)
    (state / "identity" / "node.pem").write_text("PRIVATE KEY")
    users = TaskUsers(state, registry=state.parent / "registry")
    driver = ProcessDriver(state / "tasks", SystemClock(), users=users)
    script = f"id -u; pwd; touch $TMPDIR/x && echo x > y && cat y; ls {state} {state}/tasks; "
    script += f"cat {state}/identity/node.pem"
    await driver.start(task("a", "sh", "-c", script))
    await driver.next_exit()
    print(users.switches, users.makes_views, users.limitation)
    for line in logs.tail(driver.logs("a"), 100):
        print(line.text)
asyncio.run(main())
"""


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that all users can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run_script(script: str, *arguments: str, prelude: str) -> list[str]:
    here = Path(__file__).parent
    code = f"{prelude}\nimport os, sys; os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", code, script, *arguments, str(here)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_mount_namespaces_permissions_alone_hide_the_state(open_dir: Path) -> None:
    """Root without CAP_SYS_ADMIN, as in a container."""
    state = open_dir / "state"
    drop = "import ctypes; assert ctypes.CDLL(None).prctl(24, 21, 0, 0, 0) == 0"
    first, uid, where, written, *rest = run_script(WITHOUT_VIEWS, str(state), prelude=drop)
    assert first.startswith("True False no mount namespaces")
    assert int(uid) >= 20_000 and where == f"{state}/tasks/a/work" and written == "x"
    assert len(rest) == 3 and all("Permission denied" in line for line in rest), rest


NOT_ROOT = """
import os, sys
from pathlib import Path
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.task_users import TaskUsers
sys.path[:0] = [sys.argv[2]]
from tests.agent.agent_world import task
os.setgroups([]); os.setgid(65534); os.setuid(65534)
users = TaskUsers(Path(sys.argv[1]), allowed={"acme": ("root", "nobody")})
print(users.switches, users.limitation)
print(users.prepare(task("a", "true"), Path(sys.argv[1]) / "a"))
try:
    users.prepare(task("b", "true", user="root"), Path(sys.argv[1]) / "b")
except StartFailed as refused:
    print(refused.reason)
"""


def test_agent_that_is_not_root_runs_tasks_as_itself_and_says_so(open_dir: Path) -> None:
    state = open_dir / "state"
    state.mkdir()
    state.chmod(0o777)
    says, settings, refused = run_script(NOT_ROOT, str(state), prelude="")
    assert says.startswith("False the agent is not root") and settings == "[]" and refused == "UserNotAllowed"


def test_registry_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="next: set `task_uids`"):
        TaskUsers(tmp_path / "state", registry=tmp_path / "file" / "registry")
    TaskUsers(tmp_path / "state", uids=(30_000, 30_009), registry=tmp_path / "file" / "registry")


def test_range_outside_of_user_ids_is_refused() -> None:
    from holdfast.agent.config import load

    with pytest.raises(Invalid, match="task_uids"):
        load(None, name="n1", region="r", zone="z", state_dir="/nowhere", task_uids=(0, 5))


async def test_start_with_own_user_and_view_stays_fast(driver: ProcessDriver) -> None:
    """Guards the hot path: user, groups and view cost a few milliseconds, not an interpreter."""
    took = []
    loop = asyncio.get_running_loop()
    for index in range(5):
        began = loop.time()
        await driver.start(task(f"t{index}", "true"))
        took.append(loop.time() - began)
        await driver.next_exit()
    assert min(took) < 1.0, took
