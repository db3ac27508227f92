"""The order of the programs of one run: init tasks, sidecars, the main task, and back.

- Init tasks run one after the other. The first that fails ends the run.
- Sidecars start in order, each after the one before it is ready. One that ends starts again after a pause.
- The main task starts when every sidecar is ready. Its end ends the run: sidecars stop in reverse order.
- A stop runs `preStop`, signals the main task, kills it in time for the sidecars, and stops these. The kill time of the
  run bounds all of it, in every phase.

Times are CLOCK_BOOTTIME. Nothing here waits: the shim calls `advance` after every event and at `next_at`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from holdfast.agent.shim_checks import fork_check
from holdfast.agent.shim_guard import boottime
from holdfast.agent.shim_launch import Launch
from holdfast.agent.shim_programs import ProgramsFile, RunProgram, start_failure_reason

# First pause before a sidecar is started again. Doubles with every failure.
SIDECAR_BACKOFF_FIRST_S = 1.0
# Longest pause before a sidecar is started again.
SIDECAR_BACKOFF_MAX_S = 60.0
# Run time after which the failure count of a sidecar starts again.
SIDECAR_BACKOFF_RESET_S = 600.0
# Longest time of a grace period that is kept for the sidecars, which stop after the main task.
SIDECAR_STOP_S = 2.0
# Share of the grace period that `preStop` may use. The rest is left for the main task to end after its signal.
PRE_STOP_SHARE = 0.75

INIT, SIDECARS, MAIN, CLOSING, DONE = "init", "sidecars", "main", "closing", "done"

StartProgram = Callable[[RunProgram], str]
"""Starts a program; returns why it could not start, empty on success."""


class Check:
    """The readiness check of the sidecar that the start waits for, or a hook: at most one of them runs at a time."""

    def __init__(self) -> None:
        self.pid = 0
        self.until = 0.0
        self.next_at = 0.0
        self.passes = 0

    def start(self, pid: int, timeout_s: float) -> None:
        self.pid, self.until = pid, boottime() + timeout_s

    def kill(self) -> None:
        if self.pid:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(self.pid, signal.SIGKILL)  # it does not lead a session yet


class Sequence:
    def __init__(self, launch: Launch, start: StartProgram, publish: ProgramsFile | None) -> None:
        self._launch, self._start, self._file = launch, start, publish
        self.main = RunProgram(launch.main)
        self.init = [RunProgram(one) for one in launch.around if one.kind == "init"]
        self.sidecars = [RunProgram(one) for one in launch.around if one.kind == "sidecar"]
        self.stage = INIT if self.init else SIDECARS if self.sidecars else MAIN
        self.failure = ("", "")
        """Reason and message of a run that ended before its main task could run."""
        self.ended_by_itself = False
        """Whether the run reached its end before anybody asked for a stop."""
        self._index = 0
        self._check = Check()
        self._hook = Check()
        self._post_start_running = False
        self.kill_at: float | None = None
        self.main_kill_at: float | None = None
        self.terminate_at: float | None = None
        """When SIGTERM follows the checkpoint signal, if the main task is still running."""
        self.main_killed = False
        self._stop_sidecar_at: float | None = None

    @property
    def programs(self) -> list[RunProgram]:
        return [*self.init, *self.sidecars, self.main]

    @property
    def checks(self) -> tuple[Check, Check]:
        return self._check, self._hook

    @property
    def first(self) -> RunProgram:
        return (self.init or self.sidecars or [self.main])[0]

    def publish(self) -> None:
        if self._file is not None:
            self._file.write("starting" if self._post_start_running else self.stage, self.programs)

    # --- forward -----------------------------------------------------------------------------------------------

    def begin(self) -> str:
        """Starts the first program. Returns why it could not start; empty on success."""
        failure = self._run(self.first)
        if not failure and self.first is self.main:
            self._start_post_start()
        self.publish()
        return failure

    def _run(self, program: RunProgram) -> str:
        program.status = program.next_at = None
        program.started_boot, program.started_at = boottime(), time.time()
        failure = self._start(program)
        program.ready = program.ready or (not failure and not program.launch.check)
        return failure

    def advance(self) -> None:
        """Takes every step that is due."""
        if self.kill_at is not None and boottime() >= self.kill_at:
            self.signal_all(signal.SIGKILL)
        before = None
        while before != (self.stage, self._index) and self.stage != DONE:
            before = (self.stage, self._index)
            if self.stage == INIT:
                self._advance_init()
            elif self.stage == SIDECARS:
                self._advance_sidecars()
            elif self.stage == MAIN:
                self._advance_main()
            elif self.stage == CLOSING:
                self._advance_closing()
        if self.stage in (SIDECARS, MAIN):
            self._restart_sidecars()

    def _advance_init(self) -> None:
        program = self.init[self._index]
        where = f"init task {program.name} ({self._index + 1} of {len(self.init)})"
        if program.runs:
            limit_s = program.launch.timeout_s
            if limit_s and boottime() >= program.started_boot + limit_s:
                program.note = f"did not end within {limit_s:g} s"
                program.signal(signal.SIGKILL)
            return
        if self.kill_at is not None:
            self._close()
            return
        if program.status != 0:
            self._fail("InitTaskFailed", f"{where} {program.note or program.describe_end()}")
            return
        self._index += 1
        if self._index < len(self.init):
            self._run_next(self.init[self._index])
        else:
            self.stage, self._index = SIDECARS, 0
            if self.sidecars:
                self._run_next(self.sidecars[0])

    def _advance_sidecars(self) -> None:
        if self.kill_at is not None:
            self._close()
            return
        if self._index >= len(self.sidecars):
            self.stage, self._index = MAIN, 0
            if not self._run_next(self.main):
                self._start_post_start()
            self.publish()
            return
        program = self.sidecars[self._index]
        if not program.ready:
            self._check_sidecar(program)
            return
        self._index += 1
        self._check = Check()
        if self._index < len(self.sidecars):
            self._run_next(self.sidecars[self._index])

    def _check_sidecar(self, program: RunProgram) -> None:
        check, now = program.launch.check, boottime()
        if not program.runs or self._check.pid:
            if self._check.pid and now >= self._check.until:
                self._check.kill()
            return
        if now >= max(self._check.next_at, program.started_boot + float(str(check["delay"]))):
            timeout_s = float(str(check["timeout"]))
            self._check.next_at = now + float(str(check["period"]))
            self._check.start(fork_check(self._launch, check, timeout_s), timeout_s)

    def _run_next(self, program: RunProgram) -> str:
        """Starts a program that is not the first one. If it cannot start, the run has failed."""
        failure = self._run(program)
        if failure:
            number, _, message = failure.partition(" ")
            kind = {"init": "init task", "sidecar": "sidecar"}.get(program.launch.kind, "command")
            program.note = message
            what = f"{kind} {program.name}: {os.fsdecode(program.launch.argv[0])}: {message}"
            self._fail(start_failure_reason(int(number), message), what)
        self.publish()
        return failure

    def _fail(self, reason: str, message: str) -> None:
        self.failure = (reason, message)
        self._close()

    def _start_post_start(self) -> None:
        hook = self._launch.hook("post_start")
        if hook is not None:
            timeout_s = float(str(hook[0]["timeout"]))
            self._post_start_running = True
            self.main.note = "postStart is running"
            self._hook.start(fork_check(self._launch, hook[0], timeout_s), timeout_s)

    def _restart_sidecars(self) -> None:
        """A sidecar that ended starts again after its pause, also while a later one starts."""
        started = self.sidecars if self.stage == MAIN else self.sidecars[: self._index + 1]
        for program in started:
            if program.next_at is not None and boottime() >= program.next_at and self.kill_at is None:
                program.restarts += 1
                failure = self._run(program)
                if failure:
                    program.status, program.note = 127 << 8, failure.partition(" ")[2]
                    self._back_off(program)
                self.publish()

    def _back_off(self, program: RunProgram) -> None:
        ran_s = boottime() - program.started_boot
        program.failures = 1 if ran_s >= SIDECAR_BACKOFF_RESET_S else program.failures + 1
        pause_s = min(SIDECAR_BACKOFF_MAX_S, SIDECAR_BACKOFF_FIRST_S * 2.0 ** min(program.failures - 1, 16))
        program.next_at = boottime() + pause_s

    # --- ends --------------------------------------------------------------------------------------------------

    def owns(self, pid: int) -> bool:
        """Whether the child is a program or a check of this run, rather than an orphan of one."""
        return pid in [*(program.pid for program in self.programs), *(check.pid for check in self.checks)]

    def ended(self, pid: int, status: int) -> None:
        """Records the end of a program or check."""
        for program in self.programs:
            if program.pid == pid:
                program.pid, program.status, program.ended_at = 0, status, time.time()
                if program in self.sidecars and self.stage in (SIDECARS, MAIN):
                    self._back_off(program)
                self.publish()
                return
        if pid == self._check.pid:
            self._check.pid = 0
            self._on_check(status == 0)
        elif pid == self._hook.pid:
            self._hook.pid = 0
            self._on_hook(status)

    def _on_check(self, ok: bool) -> None:
        program = self.sidecars[self._index] if self._index < len(self.sidecars) else None
        if program is None or self.stage != SIDECARS:
            return
        self._check.passes = self._check.passes + 1 if ok else 0
        program.note = "" if ok else "its readiness probe does not pass"
        program.ready = self._check.passes >= int(str(program.launch.check.get("passes", 1)))
        self.publish()

    def _on_hook(self, status: int) -> None:
        if self._post_start_running:
            self._post_start_running = False
            self.main.note = ""
            if status != 0 and self.kill_at is None:
                self.failure = ("PostStartFailed", "postStart did not succeed, and the main task was stopped")
                self.stop_by(boottime() + self._launch.grace_s)
            self.publish()
        elif self.kill_at is not None and self.main.runs:
            self._signal_main()

    def _advance_main(self) -> None:
        now = boottime()
        if self._hook.pid and now >= self._hook.until:
            self._hook.kill()
        if self.terminate_at is not None and now >= self.terminate_at:
            self.terminate_at = None
            self.main.signal(signal.SIGTERM)
        if self.main_kill_at is not None and now >= self.main_kill_at and not self.main_killed and self.main.runs:
            self.main_killed = True
            self.main.signal(signal.SIGKILL)
        if not self.main.runs and self.main.status is not None:
            self._close()

    def _close(self) -> None:
        """The end of the main task, or of a run that does not reach it: now the sidecars stop."""
        self.stage, self._index = CLOSING, len(self.sidecars)
        if self.kill_at is None:
            self.ended_by_itself = True
            self.kill_at = boottime() + (self._launch.grace_s if self.sidecars else 0.0)
        self._check.kill()
        self._hook.kill()
        for program in self.sidecars:
            program.next_at = None
        self.publish()

    def _advance_closing(self) -> None:
        now = boottime()
        assert self.kill_at is not None
        if self._index < len(self.sidecars):
            program = self.sidecars[self._index]
            if program.runs:
                if self._stop_sidecar_at is not None and now >= self._stop_sidecar_at:
                    program.signal(signal.SIGKILL)
                return
        if self._index == 0:
            self.stage = DONE
            self.publish()
            return
        self._index -= 1
        self._stop_sidecar_at = now + max(0.0, self.kill_at - now) / (self._index + 1)
        self.sidecars[self._index].signal(signal.SIGTERM)

    # --- stop --------------------------------------------------------------------------------------------------

    def stop_by(self, kill_at: float) -> None:
        """The first call begins to stop, if there is time for it; later calls can only move the kill time earlier."""
        now = boottime()
        first = self.kill_at is None
        if not first and self.kill_at is not None and kill_at >= self.kill_at:
            return
        grace_s = max(0.0, kill_at - now)
        reserve_s = min(SIDECAR_STOP_S, grace_s / 4) if self.sidecars else 0.0
        self.kill_at, self.main_kill_at = kill_at, kill_at - reserve_s
        if first and grace_s > 0 and self.stage in (INIT, MAIN):
            self._begin_stop(now)
        elif not first:
            self._hook.until = min(self._hook.until, now + (self.main_kill_at - now) * PRE_STOP_SHARE)
            if self.terminate_at is not None:
                self.terminate_at = min(self.terminate_at, now + (self.main_kill_at - now) / 2)
        self.publish()

    def _begin_stop(self, now: float) -> None:
        if self.stage == INIT:
            self.init[self._index].signal(signal.SIGTERM)
            return
        hook = self._launch.hook("pre_stop")
        if hook is None or not self.main.runs or self.main_kill_at is None:
            self._signal_main()
            return
        if self._hook.pid:
            self._hook.kill()  # postStart
            self._post_start_running = False
            self.main.note = ""
        allowed_s = (self.main_kill_at - now) * PRE_STOP_SHARE
        given_s = float(str(hook[0]["timeout"]))
        timeout_s = min(allowed_s, given_s) if given_s else allowed_s
        self._hook = Check()
        self._hook.start(fork_check(self._launch, hook[0], timeout_s), timeout_s)

    def _signal_main(self) -> None:
        """The checkpoint signal and SIGTERM after half of the rest of the grace period, or SIGTERM at once."""
        if self._launch.checkpoint and self.main_kill_at is not None:
            now = boottime()
            self.terminate_at = now + max(0.0, self.main_kill_at - now) / 2
            self.main.signal(self._launch.checkpoint)
        else:
            self.main.signal(signal.SIGTERM)

    def signal_all(self, number: int) -> None:
        for program in self.programs:
            program.signal(number)
        for check in self.checks:
            if number == signal.SIGKILL:
                check.kill()
        if self.main.runs:
            self.main_killed = True

    def next_at(self) -> float | None:
        """When something is due although nothing happens; None: nothing."""
        due = [at for at in (self.kill_at, self.terminate_at) if at is not None]
        if self.main_kill_at is not None and not self.main_killed:
            due.append(self.main_kill_at)
        due += [check.until for check in self.checks if check.pid]
        if self.stage == INIT and self.init[self._index].launch.timeout_s:
            due.append(self.init[self._index].started_boot + self.init[self._index].launch.timeout_s)
        if self.stage == CLOSING and self._stop_sidecar_at is not None:
            due.append(self._stop_sidecar_at)
        if self.stage in (SIDECARS, MAIN):
            due += [program.next_at for program in self.sidecars if program.next_at is not None]
        if self.stage == SIDECARS and self._index < len(self.sidecars) and not self._check.pid:
            program = self.sidecars[self._index]
            if program.runs and program.launch.check:
                delay_s = float(str(program.launch.check["delay"]))
                due.append(max(self._check.next_at, program.started_boot + delay_s))
        return min(due) if due else None
