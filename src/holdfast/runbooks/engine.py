"""Runs the steps of one record: shows each command, asks before it acts, and records every outcome.

The platform is changed only by commands that run as processes of their own, with the rights of the caller. An
interrupted run continues at the step that was not recorded as done; a person's step counts as done when its run is
continued.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from typing import Any, Protocol

import msgspec

from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model.times import micro_text
from holdfast.platform.supervisor import python_command
from holdfast.runbooks.definition import (
    Act,
    Fact,
    Look,
    Person,
    Runbook,
    Verify,
    WaitUntil,
    Words,
    filled,
    filled_fact,
    filled_words,
)
from holdfast.runbooks.records import OUTPUT_CHARS_MAX, RunArchive, RunRecord, StepRecord

POLL_EVERY_S = 1.0
VERIFY_EVERY_S = 3.0
# Time limit of one command of a runbook. Drains and rotations take minutes.
COMMAND_TIMEOUT_S = 900.0


class CommandRun(msgspec.Struct, frozen=True):
    """A command that was run, with the end of its output."""

    text: str
    exit_code: int
    output: str


class RunOperator(Protocol):
    """The person, or `--yes`."""

    def say(self, text: str) -> None: ...

    def agrees(self, question: str) -> bool:
        """Asks before an action."""

    def has_done(self, question: str) -> bool:
        """Asks whether a step that only a person can do is done. False: the run waits."""


class RunbookEngine:
    """`state` is the value of `--state` for the commands. `api` reads the global cell."""

    def __init__(self, runbook: Runbook, archive: RunArchive, operator: RunOperator, state: str, api: CellApi) -> None:
        self._runbook, self._archive, self._operator = runbook, archive, operator
        self._state, self._api = state, api

    def dry_run(self, values: dict[str, str]) -> None:
        """Runs what changes nothing, and says what would be done."""
        total = len(self._runbook.steps)
        for number, step in enumerate(self._runbook.steps, 1):
            self._operator.say(f"\nStep {number} of {total}: {filled(step.title, values)}")
            match step:
                case Look(_, command):
                    self._show(filled_words(command, values))
                case Act(_, command, dry_run, _):
                    if dry_run:
                        self._show(filled_words(dry_run, values))
                    self._operator.say(f"  would run: {_text(filled_words(command, values))}")
                case Person(_, text):
                    self._operator.say(f"  you: {filled(text, values)}")
                case WaitUntil(_, until, within_s):
                    now, bound = self._value(filled_fact(until, values)) or "none", f"at most {within_s:.0f} s"
                    self._operator.say(f"  would wait for {' or '.join(until.one_of)} (now: {now}, {bound})")
                case Verify(_, command, _):
                    self._operator.say(f"  would check: {_text(filled_words(command, values))}")

    def run(self, record: RunRecord) -> ExitCode:
        """Continues the run until its end, a person's step, a refusal or a failure."""
        if record.state == "Waiting":
            self._note(record, "done", by="the person who continued the run")
            record.next_step += 1
        record.state = "Running"
        total = len(self._runbook.steps)
        while record.next_step < total:
            step = self._runbook.steps[record.next_step]
            self._operator.say(f"\nStep {record.next_step + 1} of {total}: {filled(step.title, record.values)}")
            self._note(record, "started")
            state = self._do(step, record)
            if state != "Running":
                record.state = state
                self._archive.save(record)
                return ExitCode.OK if state == "Waiting" else ExitCode.FAILED
            record.next_step += 1
        record.state = "Finished"
        self._archive.save(record)
        self._operator.say(f"\nFinished. Tell users:\n  {filled(self._runbook.tell_users, record.values)}")
        return ExitCode.OK

    def _do(self, step: Look | Act | Person | WaitUntil | Verify, record: RunRecord) -> str:
        """Does one step and returns the state of the run after it."""
        match step:
            case Look(_, command):
                self._finish(record, "done", self._show(filled_words(command, record.values)))
                return "Running"
            case Act():
                return self._act(step, record)
            case Person(_, text):
                self._operator.say(f"  you: {filled(text, record.values)}")
                if self._operator.has_done("  Done?"):
                    self._finish(record, "done", by="the person at the terminal")
                    return "Running"
                self._finish(record, "waits")
                return "Waiting"
            case WaitUntil(_, until, within_s):
                found = self._wait(filled_fact(until, record.values), within_s)
                self._finish(record, "done" if found in until.one_of else "failed", output=f"found: {found or 'none'}")
                return "Running" if found in until.one_of else "Failed"
            case Verify(_, command, within_s):
                return self._verify(filled_words(command, record.values), within_s, record)

    def _act(self, step: Act, record: RunRecord) -> str:
        values = record.values
        found = "" if step.only_if is None else self._value(filled_fact(step.only_if, values))
        if step.only_if is not None and found not in step.only_if.one_of:
            self._operator.say(f"  not needed (found {found or 'none'})")
            self._finish(record, "skipped", output=f"found: {found or 'none'}")
            return "Running"
        if step.dry_run and (shown := self._show(filled_words(step.dry_run, values))).exit_code != ExitCode.OK:
            return self._judge(record, shown)
        command = filled_words(step.command, values)
        self._operator.say(f"  to run: {_text(command)}")
        if not self._operator.agrees("  Run it?"):
            self._finish(record, "declined", output=_text(command))
            return "Declined"
        return self._judge(record, self._show(command))

    def _verify(self, command: Words, within_s: float, record: RunRecord) -> str:
        deadline = time.monotonic() + within_s
        while True:
            ran = self._call(command)
            if ran.exit_code == 0 or time.monotonic() >= deadline:
                break
            left_s = deadline - time.monotonic()
            first = ran.output.strip().partition("\n")[0]
            self._operator.say(f"  not yet ({first}); waits at most {left_s:.0f} s more")
            time.sleep(VERIFY_EVERY_S)
        self._print(ran)
        return self._judge(record, ran)

    def _judge(self, record: RunRecord, ran: CommandRun) -> str:
        """Records a command that had to succeed, and returns the state of the run after it."""
        failed = ran.exit_code != ExitCode.OK
        self._finish(record, "failed" if failed else "done", ran)
        return "Failed" if failed else "Running"

    def _wait(self, fact: Fact, within_s: float) -> str:
        deadline = time.monotonic() + within_s
        while True:
            found = self._value(fact)
            if found in fact.one_of or time.monotonic() >= deadline:
                self._operator.say(f"  {fact.plural} {fact.name}: {found or 'none'}")
                return found
            time.sleep(POLL_EVERY_S)

    def _value(self, fact: Fact) -> str:
        """The field's value; empty if the object or field is missing, or the cell does not answer now."""
        namespace = f"namespaces/{fact.namespace}/" if fact.namespace else ""
        try:
            found: Any = self._api.get(f"/apis/holdfast.dev/v1/{namespace}{fact.plural}/{fact.name}")
        except ApiRefusal as refusal:
            if refusal.status in (401, 403):
                raise
            return ""
        except CommandError as stop:
            if stop.code is not ExitCode.UNREACHABLE:
                raise
            return ""
        for key in fact.path:
            found = found.get(key) if isinstance(found, dict) else None
        return "" if found is None else str(found)

    def _show(self, command: Words) -> CommandRun:
        ran = self._call(command)
        self._print(ran)
        return ran

    def _print(self, ran: CommandRun) -> None:
        self._operator.say(f"  $ {ran.text}")
        for line in ran.output.splitlines():
            self._operator.say(f"    {line}")

    def _call(self, command: Words) -> CommandRun:
        """Runs a command with this platform's `--state`, unless it names its own."""
        own = () if "--state" in command else ("--state", self._state)
        try:
            ended = subprocess.run(
                [*python_command(*command), *own],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return CommandRun(_text(command), int(ExitCode.TIMED_OUT), f"no end within {COMMAND_TIMEOUT_S:.0f} s")
        return CommandRun(_text(command), ended.returncode, (ended.stdout + ended.stderr)[-OUTPUT_CHARS_MAX:])

    def _note(self, record: RunRecord, outcome: str, *, by: str = "") -> None:
        step = self._runbook.steps[record.next_step]
        title = filled(step.title, record.values)
        record.steps.append(StepRecord(record.next_step + 1, title, outcome, micro_text(time.time()), by=by))
        self._archive.save(record)

    def _finish(
        self, record: RunRecord, outcome: str, ran: CommandRun | None = None, *, output: str = "", by: str = ""
    ) -> None:
        """Replaces the note that the step started."""
        command, code, text = (ran.text, ran.exit_code, ran.output) if ran is not None else ("", None, output)
        record.steps[-1] = msgspec.structs.replace(
            record.steps[-1], outcome=outcome, command=command, exit_code=code, output=text, by=by
        )
        self._archive.save(record)


def _text(command: Words) -> str:
    return shlex.join(("holdfast", *command))
