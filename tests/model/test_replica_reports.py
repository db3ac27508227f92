"""Agent reports: a late, older report does not overwrite a newer one."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import node, replica, serving_status

from holdfast.model.node import Node, NodeExecution, validate_node
from holdfast.model.replica import ExecutionBlock, Phase, Replica, validate_replica


def report(phase: Phase, attempt: int, sequence: int = 0) -> Replica:
    made = replica(status=serving_status())
    block = ExecutionBlock(phase=phase, attempt=attempt, sequence=sequence)
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
        ((Phase.RUNNING, 1, 8), (Phase.STARTING, 1, 7), True),
        ((Phase.RUNNING, 1, 8), (Phase.BACKING_OFF, 1, 9), False),
        ((Phase.RUNNING, 1, 8), (Phase.STARTING, 2, 3), False),
        ((Phase.RUNNING, 1, 8), (Phase.BACKING_OFF, 1), False),
    ],
)
def test_report_older_than_the_stored_one_is_refused(
    old: tuple[Phase, int], new: tuple[Phase, int], refused: bool
) -> None:
    causes = [c.field for c in validate_replica(report(*new), report(*old))]
    assert causes == (["status.execution"] if refused else [])


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ((1, 5), (1, 6), False),
        ((1, 5), (1, 4), True),
        ((2, 5), (1, 9), True),
        ((1, 9), (2, 1), False),
        ((1, 5), (1, 0), False),
        ((1, 0), (1, 3), False),
    ],
)
def test_node_report_older_than_the_stored_one_is_refused(
    old: tuple[int, int], new: tuple[int, int], refused: bool
) -> None:
    def stored(epoch: int, sequence: int) -> Node:
        made = node("n1")
        execution = NodeExecution(epoch=epoch, sequence=sequence)
        return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, execution=execution))

    causes = [c.field for c in validate_node(stored(*new), stored(*old))]
    assert causes == (["status.execution"] if refused else [])
