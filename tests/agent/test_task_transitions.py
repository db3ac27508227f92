"""State transitions of a task."""

from __future__ import annotations

from holdfast.agent.task_decision import Now, TaskObservation, TaskState
from holdfast.agent.task_transitions import to_ended, to_running, to_starting
from holdfast.model.replica import ExitStatus


def test_new_run_does_not_report_the_start_of_the_last_run() -> None:
    """The start time counts against the deadline of the stage Starting, so a restart after an hour would be late."""
    first = to_running(to_starting(TaskObservation(), 1), pid=7, started_at_s=100.0, now=Now(wall_s=100.0, mono_s=0.0))
    ended = to_ended(first, ExitStatus(code=0), "", Now(wall_s=4000.0, mono_s=3900.0))
    again = to_starting(ended, 2)
    assert again.state is TaskState.STARTING and again.run == 2
    assert again.started_at_s == 0.0
    assert again.exit == ExitStatus(code=0)
