"""Calls to a node's agent: read logs, execute a command in a task, read resource usage."""

from __future__ import annotations

import enum

from holdfast.model.meta import Part, shown


class Kind(enum.StrEnum):
    LOGS = "Logs"
    EXEC = "Exec"
    USAGE = "Usage"


class Question(Part, frozen=True):
    """`tail` and `follow` apply to Logs, `command` and `timeoutSeconds` to Exec."""

    kind: Kind
    tail: int = 200
    follow: bool = False
    command: tuple[str, ...] = ()
    timeout_seconds: float = 60.0


class Ask(Part, frozen=True):
    """One call in flight to an agent."""

    id: str
    question: Question
    namespace: str = ""
    replica: str = ""


class LogLine(Part, frozen=True):
    at: str = ""
    stream: str = "stdout"
    text: str = ""


class ExecOutput(Part, frozen=True):
    """The end of a command. Its output was sent before as LogLines."""

    code: int = shown(0)
    output: str = ""


class UsageRow(Part, frozen=True):
    """Current usage and requests of one replica, in base units: thousandths of a CPU, and bytes."""

    namespace: str
    workload: str
    replica: str
    cpu: int = shown(0)
    cpu_requested: int = shown(0)
    memory: int = shown(0)
    memory_requested: int = shown(0)
    processes: int = shown(0)
