"""Messages of a session with a running task: exec, attach and port-forward. Pure.

A message is one byte for the channel and its data, as in `v5.channel.k8s.io`. The region's API and the agent use the
same messages between them, so the API only relays. An outcome is a Status object on the ERROR channel, after all
output.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from holdfast.model.meta import ApiStruct

# Data of one message. Senders split longer output; a receiver refuses a longer message.
SESSION_MESSAGE_BYTES_MAX = 64 * 1024
# Arguments of an exec command, in all. The same limit as the request headers that carry them.
SESSION_COMMAND_BYTES_MAX = 60 * 1024


class Channel(enum.IntEnum):
    """`CLOSE` carries the number of the channel that its sender will not write again."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class SessionKind(enum.StrEnum):
    EXEC = "Exec"
    ATTACH = "Attach"
    PORT_FORWARD = "PortForward"


class SessionArguments(ApiStruct, frozen=True):
    """What the agent is asked to open. `binding` names the task; `port` belongs to PortForward, `command` to Exec."""

    kind: SessionKind
    binding: str = ""
    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False
    port: int = 0


class TerminalSize(msgspec.Struct, frozen=True):
    """Payload of RESIZE, with the names that clients use."""

    width: int = msgspec.field(default=0, name="Width")
    height: int = msgspec.field(default=0, name="Height")


_size_decoder = msgspec.json.Decoder(TerminalSize)
TERMINAL_SIDE_MAX = 65535


def decode_size(data: bytes) -> TerminalSize | None:
    """None if the client sent something else than a size that a terminal can have."""
    try:
        size = _size_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    is_valid = 0 < size.width <= TERMINAL_SIDE_MAX and 0 < size.height <= TERMINAL_SIDE_MAX
    return size if is_valid else None


def outcome_of_code(code: int) -> bytes:
    """The Status of a command that ended. A command killed by signal N has the code 128 + N, as in shells."""
    shown = 128 - code if code < 0 else code
    if shown == 0:
        return msgspec.json.encode({"metadata": {}, "status": "Success"})
    status: dict[str, Any] = {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with exit code {shown}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(shown)}]},
        "code": 500,
    }
    return msgspec.json.encode(status)


def outcome_of_failure(message: str, reason: str = "InternalError", code: int = 500) -> bytes:
    """The Status of a session that did not reach its own end."""
    return msgspec.json.encode(
        {"metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    )


def exit_code_of(outcome: bytes) -> tuple[int, str]:
    """Exit code and message of an outcome, for our own clients. A failure without an exit code has code 1."""
    try:
        status = msgspec.json.decode(outcome)
        if status.get("status") == "Success":
            return 0, ""
        causes = (status.get("details") or {}).get("causes") or []
        codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
        return (int(codes[0]) if codes else 1), "" if codes else str(status.get("message", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, ValueError, TypeError):
        return 1, "the server's report of the end cannot be read"
