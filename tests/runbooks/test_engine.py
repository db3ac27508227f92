"""The engine with real commands, and a global cell that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout
from holdfast.runbooks.definition import Act, Fact, Look, Parameter, Person, Runbook, Step, Verify, WaitUntil
from holdfast.runbooks.engine import RunbookEngine
from holdfast.runbooks.records import RunArchive, RunRecord

WORKS, FAILS = ("runbook", "history"), ("runbook", "show", "{what}")
VALUES = {"what": "no-such-run; rm -rf /"}


class Answers:
    """An operator who agrees or not, and keeps what was said."""

    def __init__(self, *, agrees: bool = True, has_done: bool = False) -> None:
        self._agrees, self._has_done = agrees, has_done
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def agrees(self, question: str) -> bool:
        return self._agrees

    def has_done(self, question: str) -> bool:
        return self._has_done


@pytest.fixture
def archive(tmp_path: Path) -> RunArchive:
    return RunArchive(Layout(tmp_path))


def run(tmp_path: Path, operator: Answers, *steps: Step, record: RunRecord | None = None) -> tuple[ExitCode, RunRecord]:
    runbook = Runbook("test", "A test", "", (Parameter("what", "a word"),), steps, "It was {what}.")
    record = record or RunRecord("1-test", "test", "now", VALUES)
    api = CellApi("https://127.0.0.1:1", name="global", ca=None, timeout_s=1.0)
    engine = RunbookEngine(runbook, RunArchive(Layout(tmp_path)), operator, str(tmp_path), api)
    return engine.run(record), record


def outcomes(record: RunRecord) -> list[str]:
    return [step.outcome for step in record.steps]


def test_run_ends_with_what_to_tell_users_and_its_record(tmp_path: Path, archive: RunArchive) -> None:
    operator = Answers()
    code, record = run(tmp_path, operator, Look("look", WORKS), Act("act", WORKS), Verify("check", WORKS, 5.0))
    assert (code, record.state, outcomes(record)) == (ExitCode.OK, "Finished", ["done", "done", "done"])
    assert "It was no-such-run; rm -rf /." in operator.said[-1]
    kept = archive.find("last")
    assert (kept.state, kept.steps[1].exit_code, kept.steps[1].command) == ("Finished", 0, "holdfast runbook history")


def test_declined_action_does_not_run_and_the_run_can_continue(tmp_path: Path, archive: RunArchive) -> None:
    step = Act("act", WORKS)
    code, record = run(tmp_path, Answers(agrees=False), step)
    assert (code, record.state, outcomes(record)) == (ExitCode.FAILED, "Declined", ["declined"])
    code, record = run(tmp_path, Answers(), step, record=archive.find("1-test"))
    assert (code, record.state, outcomes(record)) == (ExitCode.OK, "Finished", ["declined", "done"])


def test_step_for_a_person_waits_and_counts_as_done_when_continued(tmp_path: Path, archive: RunArchive) -> None:
    steps = (Person("yours", "do it"), Look("look", WORKS))
    code, record = run(tmp_path, Answers(), *steps)
    assert (code, record.state, record.next_step) == (ExitCode.OK, "Waiting", 0)
    _, record = run(tmp_path, Answers(), *steps, record=archive.find("last"))
    assert (record.state, outcomes(record)) == ("Finished", ["waits", "done", "done"])


def test_failed_action_stops_the_run_with_its_output_and_no_shell(tmp_path: Path) -> None:
    code, record = run(tmp_path, Answers(), Act("act", FAILS), Look("never", WORKS))
    assert (code, record.state, outcomes(record)) == (ExitCode.FAILED, "Failed", ["failed"])
    assert "error: run no-such-run; rm -rf /: not found" in record.steps[0].output
    assert record.steps[0].command == "holdfast runbook show 'no-such-run; rm -rf /'"


def test_failed_dry_run_stops_before_the_question(tmp_path: Path) -> None:
    code, record = run(tmp_path, Answers(), Act("act", WORKS, dry_run=FAILS))
    assert (code, record.state) == (ExitCode.FAILED, "Failed")


def test_action_is_skipped_when_its_fact_does_not_hold(tmp_path: Path) -> None:
    fact = Fact("overrides", "{what}", ("status", "phase"), ("Active",))
    _, record = run(tmp_path, Answers(), Act("act", WORKS, only_if=fact))
    assert outcomes(record) == ["skipped"]


def test_wait_ends_at_its_limit_and_says_what_was_found(tmp_path: Path) -> None:
    fact = Fact("regions", "{what}", ("status",), ("Healthy",))
    code, record = run(tmp_path, Answers(), WaitUntil("wait", fact, 0.1))
    assert (code, record.state, record.steps[0].output) == (ExitCode.FAILED, "Failed", "found: none")


def test_look_that_finds_something_does_not_stop_the_run(tmp_path: Path) -> None:
    _, record = run(tmp_path, Answers(), Look("look", FAILS))
    assert (record.state, record.steps[0].exit_code) == ("Finished", int(ExitCode.USAGE))


def test_unknown_run_is_refused_with_the_next_step(archive: RunArchive) -> None:
    with pytest.raises(CommandError, match="run nothing: not found"):
        archive.find("nothing")
