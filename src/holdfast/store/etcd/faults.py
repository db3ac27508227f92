"""Meaning of etcd errors. A refusal stated by etcd is definite; a write without a response is `Ambiguous`.

The texts are those of etcd's `rpctypes`, equal in 3.4 and 3.5. An unknown error counts as no response: the write may
have happened.
"""

from __future__ import annotations

import grpc

from holdfast.model.errors import Ambiguous, BadRequest, Expired, Fault, Overloaded, StoreFailed, Unavailable

NOT_CONNECTED = "failed to connect to all addresses"
"""gRPC's text for a failed connection: nothing was sent."""

LOGIN_ERRORS = ("invalid auth token", "revision in header is old")
"""Definite refusals that a new login resolves."""

# Part of etcd's text → fault and message. Unavailable faults are retried at another member.
_DEFINITE: tuple[tuple[str, type[Fault], str], ...] = (
    (
        "database space exceeded",
        Unavailable,
        "out of space (alarm NOSPACE); next: compact, defragment or raise the quota, then etcdctl alarm disarm",
    ),
    ("too many requests", Overloaded, "overloaded; next: retry later"),
    ("request is too large", BadRequest, "the commit exceeds --max-request-bytes; next: split it"),
    ("too many operations in txn", BadRequest, "the commit exceeds --max-txn-ops; next: split it"),
    ("duplicate key", BadRequest, "the commit writes a key twice"),
    ("required revision has been compacted", Expired, "the revision is compacted; next: list again"),
    ("required revision is a future revision", BadRequest, "the revision is in the future"),
    ("no leader", Unavailable, "no leader; next: bring a majority of the members up"),
    ("not supported for learner", Unavailable, "the member is a learner and does not serve yet"),
    ("not capable", Unavailable, "the member cannot serve this call yet"),
    ("corrupt", StoreFailed, "its data is corrupt (alarm CORRUPT); next: restore the member"),
    ("permission denied", StoreFailed, "the user may not access the cell's keys; next: grant it the prefix"),
    ("user name is empty", StoreFailed, "it requires a user; next: add --etcd-user and --etcd-password-file"),
    ("authentication failed", StoreFailed, "wrong user or password"),
    ("invalid auth token", Unavailable, "the login expired"),
)


def is_unsent(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call certainly never left."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and NOT_CONNECTED in (error.details() or "")


def needs_login(error: grpc.aio.AioRpcError) -> bool:
    return any(text in (error.details() or "") for text in LOGIN_ERRORS)


def definite_fault(error: grpc.aio.AioRpcError, where: str) -> Fault | None:
    """The fault if etcd refused or was not reached; None if the result is unknown."""
    details = error.details() or ""
    for text, fault, meaning in _DEFINITE:
        if text in details:
            return fault(f"etcd at {where}: {details}: {meaning}")
    if is_unsent(error):
        return Unavailable(f"etcd at {where}: unreachable ({_dial_problem(details)})")
    if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
        return StoreFailed(f"etcd at {where}: request refused ({details})")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return StoreFailed(f"--etcd-endpoints {where}: not an etcd v3 server ({details})")
    return None


def ambiguous_fault(error: grpc.aio.AioRpcError, where: str) -> Ambiguous:
    return Ambiguous(
        f"etcd at {where}: no response to a write, which may have happened ({error.code().name}: {error.details()}); "
        "next: read back first"
    )


def unavailable_fault(error: grpc.aio.AioRpcError, where: str) -> Unavailable:
    return Unavailable(f"etcd at {where}: no response ({error.code().name}: {error.details()})")


def _dial_problem(details: str) -> str:
    reason = details.partition("last error: ")[2] or details
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"its certificate is not signed by --etcd-ca, or has another name: {reason}"
    if "Ssl handshake failed" in reason or "SSL_ERROR" in reason:
        return f"TLS handshake failed, check --etcd-ca, --etcd-cert and --etcd-key: {reason}"
    if "Connection refused" in reason:
        return f"connection refused, check --etcd-endpoints: {reason}"
    return reason
