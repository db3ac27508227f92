"""The supervisor with real processes: start, restart, adoption and stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.platform.layout import Layout
from holdfast.platform.processes import (
    ProcessIdentity,
    identify,
    is_alive,
    platform_processes,
    send_signal,
    wait_exited,
)
from holdfast.platform.supervisor import ProcessRecord, Program, load_records, running_supervisor, stop_programs

# Runs a supervisor of given programs as a process, as `holdfast supervise` does.
SUPERVISE = """
import sys, msgspec
from holdfast.platform.layout import Layout
from holdfast.platform.supervisor import Program, ProcessSupervisor
from holdfast.platform.processes import identify
programs = msgspec.json.decode(sys.argv[2], type=list[Program])
parent = identify(int(sys.argv[3])) if int(sys.argv[3]) else None
ProcessSupervisor(Layout(sys.argv[1]), programs, lambda line: print(line, flush=True)).run(parent=parent)
"""
SLEEPER = (sys.executable, "-c", "import time\nwhile True: time.sleep(60)")
IGNORES_SIGTERM = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('started', flush=True)\ntime.sleep(600)"
)
UNRESPONSIVE = (sys.executable, "-c", IGNORES_SIGTERM)


def wait_for(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


@pytest.fixture
def prepared(layout: Layout) -> Iterator[Layout]:
    layout.prepare()
    yield layout
    stop_programs(layout, lambda line: None)


def start(layout: Layout, programs: list[Program], *, parent: int = 0) -> subprocess.Popen[bytes]:
    import msgspec

    arguments = [str(layout.root), msgspec.json.encode(programs).decode(), str(parent)]
    log = layout.log("supervisor").open("ab")
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, *arguments], stdout=log, stderr=log, start_new_session=True
    )


def pid_of(layout: Layout, name: str) -> int:
    for record in load_records(layout):
        if record.program.name == name and record.identity is not None and is_alive(record.identity):
            return record.identity.pid
    return 0


def test_crashed_process_is_restarted_and_logged(prepared: Layout) -> None:
    supervisor = start(prepared, [Program(name="a", argv=SLEEPER), Program(name="b", argv=SLEEPER, start_order=1)])
    wait_for(lambda: bool(pid_of(prepared, "a") and pid_of(prepared, "b")))
    first, other = pid_of(prepared, "a"), pid_of(prepared, "b")
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: pid_of(prepared, "a") not in (0, first))
    assert pid_of(prepared, "b") == other
    record = next(r for r in load_records(prepared) if r.program.name == "a")
    assert record.restarts == 1
    assert record.last_exit == "was killed by SIGKILL"
    assert "a: was killed by SIGKILL" in prepared.log("supervisor").read_text()
    supervisor.terminate()
    assert supervisor.wait(20) == 0
    assert list(platform_processes(prepared.root)) == []
    assert load_records(prepared) == []


def test_stop_follows_start_order_and_kills_unresponsive_processes(prepared: Layout) -> None:
    unresponsive = Program(
        name="unresponsive", argv=UNRESPONSIVE, start_order=2, stop_signals=((int(signal.SIGTERM), 0.5),)
    )
    supervisor = start(prepared, [Program(name="cell", argv=SLEEPER), unresponsive])
    wait_for(lambda: prepared.log("unresponsive").exists() and b"started" in prepared.log("unresponsive").read_bytes())
    supervisor.terminate()
    assert supervisor.wait(20) == 0
    log_text = prepared.log("supervisor").read_text()
    assert log_text.index("unresponsive: did not stop in time and was killed") < log_text.index("cell: stopped")
    assert list(platform_processes(prepared.root)) == []


def test_new_supervisor_adopts_running_processes(prepared: Layout) -> None:
    programs = [Program(name="a", argv=SLEEPER)]
    first = start(prepared, programs)
    wait_for(lambda: pid_of(prepared, "a") != 0)
    pid = pid_of(prepared, "a")
    first.kill()
    first.wait()
    assert running_supervisor(prepared) is None
    second = start(prepared, programs)
    wait_for(lambda: running_supervisor(prepared) is not None)
    wait_for(lambda: "adopted" in prepared.log("supervisor").read_text())
    assert pid_of(prepared, "a") == pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid_of(prepared, "a") not in (0, pid))
    second.terminate()
    assert second.wait(20) == 0


def test_process_with_other_options_is_replaced(prepared: Layout) -> None:
    first = start(prepared, [Program(name="a", argv=SLEEPER)])
    wait_for(lambda: pid_of(prepared, "a") != 0)
    old = pid_of(prepared, "a")
    first.kill()
    first.wait()
    second = start(prepared, [Program(name="a", argv=(*SLEEPER, "other"))])
    wait_for(lambda: pid_of(prepared, "a") not in (0, old))
    assert identify(old) is None
    second.terminate()
    assert second.wait(20) == 0


def test_second_supervisor_is_refused(prepared: Layout) -> None:
    first = start(prepared, [Program(name="a", argv=SLEEPER)])
    wait_for(lambda: running_supervisor(prepared) is not None)
    second = start(prepared, [Program(name="a", argv=SLEEPER)])
    assert second.wait(20) != 0
    assert "already running" in prepared.log("supervisor").read_text()
    assert first.poll() is None
    first.terminate()
    assert first.wait(20) == 0


def test_foreground_platform_stops_with_its_parent(prepared: Layout) -> None:
    command = subprocess.Popen(SLEEPER)
    supervisor = start(prepared, [Program(name="a", argv=SLEEPER)], parent=command.pid)
    wait_for(lambda: pid_of(prepared, "a") != 0)
    command.kill()
    command.wait()
    assert supervisor.wait(20) == 0
    assert list(platform_processes(prepared.root)) == []


def test_down_stops_processes_of_a_killed_supervisor(prepared: Layout) -> None:
    prepared.platform.write_text("{}")
    # An unrecorded process, such as a task of a dead agent: it is found by its environment mark.
    spawning = textwrap.dedent("""
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        while True: time.sleep(60)
    """)
    supervisor = start(prepared, [Program(name="a", argv=(sys.executable, "-c", spawning))])
    wait_for(lambda: len(list(platform_processes(prepared.root))) == 2)
    supervisor.kill()
    supervisor.wait()
    completed = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "down", "--state", str(prepared.root)], capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert "orphaned process" in completed.stderr
    assert list(platform_processes(prepared.root)) == []


def test_reused_process_id_is_not_signalled() -> None:
    with subprocess.Popen(SLEEPER) as other:
        real = identify(other.pid)
        assert real is not None
        stale = ProcessIdentity(pid=real.pid, start_ticks=real.start_ticks - 1)
        assert not send_signal(stale, signal.SIGKILL)
        assert wait_exited(stale, 0)
        assert is_alive(real)
        assert send_signal(real, signal.SIGKILL)
    assert not is_alive(real)


def test_records_of_another_version_are_ignored(prepared: Layout) -> None:
    (prepared.run / "processes" / "x.json").write_text('{"not": "a record"}')
    assert load_records(prepared) == []
    assert isinstance(ProcessRecord(program=Program(name="a", argv=())), ProcessRecord)
