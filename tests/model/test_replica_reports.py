"""Agent reports: a late, older report does not overwrite a newer one."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import replica, serving_status

from holdfast.model.replica import ExecutionBlock, Phase, Replica, validate_replica


def report(phase: Phase, attempt: int) -> Replica:
    made = replica(status=serving_status())
    block = ExecutionBlock(phase=phase, attempt=attempt)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, execution=block))


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ((Phase.RUNNING, 1), (Phase.SUCCEEDED, 1), False),
        ((Phase.SUCCEEDED, 1), (Phase.RUNNING, 1), True),
        ((Phase.FAILED, 2), (Phase.BACKING_OFF, 2), True),
        ((Phase.SUCCEEDED, 1), (Phase.SUCCEEDED, 1), False),
        ((Phase.SUCCEEDED, 1), (Phase.STARTING, 2), False),
        ((Phase.STARTING, 2), (Phase.STOPPED, 1), True),
        ((Phase.BACKING_OFF, 1), (Phase.STARTING, 1), False),
    ],
)
def test_report_older_than_the_stored_one_is_refused(
    old: tuple[Phase, int], new: tuple[Phase, int], refused: bool
) -> None:
    causes = [c.field for c in validate_replica(report(*new), report(*old))]
    assert causes == (["status.execution"] if refused else [])
