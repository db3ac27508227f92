"""Calls to a node's agent: read logs, execute a command in a task, read resource usage or the agent's metrics."""

from __future__ import annotations

import enum

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.pod_session import SessionArguments


class AgentCallKind(enum.StrEnum):
    LOGS = "Logs"
    EXEC = "Exec"
    USAGE = "Usage"
    METRICS = "Metrics"


class AgentCallArguments(ApiStruct, frozen=True):
    """`tail`, `follow`, `program`, `attempt` (0: the newest) and `previous` (runs before the newest) apply to Logs,
    `command` and `timeoutSeconds` to Exec.
    """

    kind: AgentCallKind
    tail: int = 200
    follow: bool = False
    command: tuple[str, ...] = ()
    timeout_seconds: float = 60.0
    program: str = ""
    attempt: int = 0
    previous: bool = False
    """`program` names an init task or a sidecar; empty: the main task."""


class AgentCall(ApiStruct, frozen=True):
    """One call in flight to an agent. With `session`, the agent opens a session of this id instead of responding.

    An agent of an older release ignores `session`, so such a call carries arguments that have no effect.
    """

    id: str
    arguments: AgentCallArguments
    namespace: str = ""
    replica: str = ""
    session: SessionArguments | None = None


class LogLine(ApiStruct, frozen=True):
    at: str = ""
    stream: str = "stdout"
    text: str = ""


class ExecOutput(ApiStruct, frozen=True):
    """The end of a command. Its output was sent before as LogLines."""

    code: int = visible_default(0)
    output: str = ""


class MetricsText(ApiStruct, frozen=True):
    """The agent's metrics as Prometheus text."""

    text: str = ""


class UsageRow(ApiStruct, frozen=True):
    """Current usage and requests of one replica, in base units: thousandths of a CPU, and bytes. Without names: the sum
    of all other tenants' replicas on the node.
    """

    namespace: str
    workload: str
    replica: str
    cpu: int = visible_default(0)
    cpu_requested: int = visible_default(0)
    memory: int = visible_default(0)
    memory_requested: int = visible_default(0)
    processes: int = visible_default(0)
