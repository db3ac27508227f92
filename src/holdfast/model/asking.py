"""Questions people have for an agent: what work wrote, what a command beside it says, what it uses."""

from __future__ import annotations

import enum

from holdfast.model.meta import Part, shown


class Kind(enum.StrEnum):
    LOGS = "Logs"
    EXEC = "Exec"
    USAGE = "Usage"


class Question(Part, frozen=True):
    """`tail` and `follow` are for logs, `command` and `timeoutSeconds` for commands."""

    kind: Kind
    tail: int = 200
    follow: bool = False
    command: tuple[str, ...] = ()
    timeout_seconds: float = 60.0


class Ask(Part, frozen=True):
    """A question on its way to an agent."""

    id: str
    question: Question
    namespace: str = ""
    replica: str = ""


class LogLine(Part, frozen=True):
    at: str = ""
    stream: str = "stdout"
    text: str = ""


class ExecOutput(Part, frozen=True):
    """The end of a command. What it wrote came before, as lines."""

    code: int = shown(0)
    output: str = ""


class UsageRow(Part, frozen=True):
    """What one replica uses now beside what it asked for, in base units: thousandths of a CPU, and bytes."""

    namespace: str
    workload: str
    replica: str
    cpu: int = shown(0)
    cpu_requested: int = shown(0)
    memory: int = shown(0)
    memory_requested: int = shown(0)
    processes: int = shown(0)
