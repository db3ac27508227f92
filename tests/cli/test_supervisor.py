"""The supervisor with real processes: it starts, restarts, adopts, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
from holdfast.platform.supervisor import (
    ProcessRecord,
    Program,
    load_records,
    running_supervisor,
    stop_programs,
)

# A supervisor of given programs, as a process of its own: what `holdfast supervise` does with a platform's.
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
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
STUBBORN = (sys.executable, "-c", DEAF)


def until(true: Callable[[], bool], *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def prepared(layout: Layout) -> Iterator[Layout]:
    layout.prepare()
    yield layout
    stop_programs(layout, lambda line: None)


def start(layout: Layout, programs: list[Program], *, parent: int = 0) -> subprocess.Popen[bytes]:
    import msgspec

    words = [str(layout.root), msgspec.json.encode(programs).decode(), str(parent)]
    log = layout.log("supervisor").open("ab")
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, *words], stdout=log, stderr=log, start_new_session=True)


def pid_of(layout: Layout, name: str) -> int:
    for record in load_records(layout):
        if record.program.name == name and record.identity is not None and is_alive(record.identity):
            return record.identity.pid
    return 0


def test_a_crashed_process_is_started_again_and_it_says_so(prepared: Layout) -> None:
    supervisor = start(prepared, [Program(name="a", argv=SLEEPER), Program(name="b", argv=SLEEPER, start_order=1)])
    until(lambda: bool(pid_of(prepared, "a") and pid_of(prepared, "b")))
    first, other = pid_of(prepared, "a"), pid_of(prepared, "b")
    os.kill(first, signal.SIGKILL)
    until(lambda: pid_of(prepared, "a") not in (0, first))
    assert pid_of(prepared, "b") == other
    record = next(r for r in load_records(prepared) if r.program.name == "a")
    assert record.restarts == 1
    assert record.last_exit == "was killed by SIGKILL"
    assert "a: was killed by SIGKILL" in prepared.log("supervisor").read_text()
    supervisor.terminate()
    assert supervisor.wait(20) == 0
    assert list(platform_processes(prepared.root)) == []
    assert load_records(prepared) == []


def test_stopping_goes_by_rank_and_ends_the_deaf(prepared: Layout) -> None:
    deaf = Program(name="deaf", argv=STUBBORN, start_order=2, stop_signals=((int(signal.SIGTERM), 0.5),))
    supervisor = start(prepared, [Program(name="cell", argv=SLEEPER), deaf])
    until(lambda: prepared.log("deaf").exists() and b"deaf" in prepared.log("deaf").read_bytes())
    supervisor.terminate()
    assert supervisor.wait(20) == 0
    told = prepared.log("supervisor").read_text()
    assert told.index("deaf: did not stop in time and was killed") < told.index("cell: stopped")
    assert list(platform_processes(prepared.root)) == []


def test_a_new_supervisor_adopts_what_the_old_one_left(prepared: Layout) -> None:
    programs = [Program(name="a", argv=SLEEPER)]
    first = start(prepared, programs)
    until(lambda: pid_of(prepared, "a") != 0)
    kept = pid_of(prepared, "a")
    first.kill()
    first.wait()
    assert running_supervisor(prepared) is None
    second = start(prepared, programs)
    until(lambda: running_supervisor(prepared) is not None)
    until(lambda: "adopted" in prepared.log("supervisor").read_text())
    assert pid_of(prepared, "a") == kept
    os.kill(kept, signal.SIGKILL)
    until(lambda: pid_of(prepared, "a") not in (0, kept))
    second.terminate()
    assert second.wait(20) == 0


def test_a_process_with_other_options_is_replaced_not_adopted(prepared: Layout) -> None:
    first = start(prepared, [Program(name="a", argv=SLEEPER)])
    until(lambda: pid_of(prepared, "a") != 0)
    old = pid_of(prepared, "a")
    first.kill()
    first.wait()
    second = start(prepared, [Program(name="a", argv=(*SLEEPER, "other"))])
    until(lambda: pid_of(prepared, "a") not in (0, old))
    assert identify(old) is None
    second.terminate()
    assert second.wait(20) == 0


def test_there_is_one_supervisor(prepared: Layout) -> None:
    first = start(prepared, [Program(name="a", argv=SLEEPER)])
    until(lambda: running_supervisor(prepared) is not None)
    second = start(prepared, [Program(name="a", argv=SLEEPER)])
    assert second.wait(20) != 0
    assert "already running" in prepared.log("supervisor").read_text()
    assert first.poll() is None
    first.terminate()
    assert first.wait(20) == 0


def test_in_the_foreground_the_platform_ends_with_its_command(prepared: Layout) -> None:
    command = subprocess.Popen(SLEEPER)
    supervisor = start(prepared, [Program(name="a", argv=SLEEPER)], parent=command.pid)
    until(lambda: pid_of(prepared, "a") != 0)
    command.kill()
    command.wait()
    assert supervisor.wait(20) == 0
    assert list(platform_processes(prepared.root)) == []


def test_down_stops_what_a_killed_supervisor_left(prepared: Layout, tmp_path: Path) -> None:
    prepared.platform.write_text("{}")
    # A process the records do not know, such as work whose agent died: only its mark tells.
    spawning = textwrap.dedent("""
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        while True: time.sleep(60)
    """)
    supervisor = start(prepared, [Program(name="a", argv=(sys.executable, "-c", spawning))])
    until(lambda: len(list(platform_processes(prepared.root))) == 2)
    supervisor.kill()
    supervisor.wait()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "down", "--state", str(prepared.root)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "orphaned process" in done.stderr
    assert list(platform_processes(prepared.root)) == []


def test_a_recycled_process_id_is_never_signalled() -> None:
    with subprocess.Popen(SLEEPER) as stranger:
        real = identify(stranger.pid)
        assert real is not None
        impostor = ProcessIdentity(pid=real.pid, start_ticks=real.start_ticks - 1)
        assert not send_signal(impostor, signal.SIGKILL)
        assert wait_exited(impostor, 0)
        assert is_alive(real)
        assert send_signal(real, signal.SIGKILL)
    assert not is_alive(real)


def test_records_of_another_version_are_passed_over(prepared: Layout) -> None:
    (prepared.run / "processes" / "x.json").write_text('{"not": "a record"}')
    assert load_records(prepared) == []
    assert isinstance(ProcessRecord(program=Program(name="a", argv=())), ProcessRecord)
