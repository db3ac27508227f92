"""Calls to a node's agent: read logs, execute a command in a task, read resource usage."""

from __future__ import annotations

import enum

from holdfast.model.meta import ApiStruct, visible_default


class AgentCallKind(enum.StrEnum):
    LOGS = "Logs"
    EXEC = "Exec"
    USAGE = "Usage"


class AgentCallArguments(ApiStruct, frozen=True):
    """`tail` and `follow` apply to Logs, `command` and `timeoutSeconds` to Exec."""

    kind: AgentCallKind
    tail: int = 200
    follow: bool = False
    command: tuple[str, ...] = ()
    timeout_seconds: float = 60.0


class AgentCall(ApiStruct, frozen=True):
    """One call in flight to an agent."""

    id: str
    arguments: AgentCallArguments
    namespace: str = ""
    replica: str = ""


class LogLine(ApiStruct, frozen=True):
    at: str = ""
    stream: str = "stdout"
    text: str = ""


class ExecOutput(ApiStruct, frozen=True):
    """The end of a command. Its output was sent before as LogLines."""

    code: int = visible_default(0)
    output: str = ""


class UsageRow(ApiStruct, frozen=True):
    """Current usage and requests of one replica, in base units: thousandths of a CPU, and bytes."""

    namespace: str
    workload: str
    replica: str
    cpu: int = visible_default(0)
    cpu_requested: int = visible_default(0)
    memory: int = visible_default(0)
    memory_requested: int = visible_default(0)
    processes: int = visible_default(0)
