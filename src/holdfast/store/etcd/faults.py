"""What an etcd error means here. A refusal that etcd states is definite; silence about a write is `Ambiguous`.

The texts are those of etcd's `rpctypes`, the same in 3.4 and 3.5. What is not known is taken for unknown: a write that
met an unfamiliar error may have happened.
"""

from __future__ import annotations

import grpc

from holdfast.model.errors import Ambiguous, BadRequest, Expired, Fault, Overloaded, StoreFailed, Unavailable

NEVER_SENT = "failed to connect to all addresses"
"""How gRPC says that no connection stood: nothing was sent."""

BAD_TOKEN = ("invalid auth token", "revision in header is old")
"""Definite refusals that a new login cures."""

# A part of etcd's text → whether another member may do better, and the fault.
_DEFINITE: tuple[tuple[str, type[Fault], str], ...] = (
    ("database space exceeded", Unavailable,
     "it is out of space (alarm NOSPACE): compact, defragment, raise its quota, then `etcdctl alarm disarm`"),
    ("too many requests", Overloaded, "it is overloaded: come back later"),
    ("request is too large", BadRequest, "the commit is larger than it takes (--max-request-bytes): split it"),
    ("too many operations in txn", BadRequest, "more operations than it takes at once (--max-txn-ops): split it"),
    ("duplicate key", BadRequest, "a commit names a key twice"),
    ("required revision has been compacted", Expired, "the revision is compacted: list again"),
    ("required revision is a future revision", BadRequest, "the revision is in the future"),
    ("no leader", Unavailable, "this member sees no leader: a majority of members must be up"),
    ("not supported for learner", Unavailable, "this member is a learner and serves nothing yet"),
    ("not capable", Unavailable, "this member cannot serve it yet"),
    ("corrupt", StoreFailed, "it has found its own data corrupt (alarm CORRUPT): restore the member"),
    ("permission denied", StoreFailed, "the user may not read and write the cell's keys: grant it the prefix"),
    ("user name is empty", StoreFailed, "it asks for a user: give --etcd-user and --etcd-password-file"),
    ("authentication failed", StoreFailed, "it refused the user or the password"),
    ("invalid auth token", Unavailable, "it asks to log in again"),
)  # fmt: skip


def is_unsent(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call surely never left."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and NEVER_SENT in (error.details() or "")


def wants_login(error: grpc.aio.AioRpcError) -> bool:
    return any(text in (error.details() or "") for text in BAD_TOKEN)


def definite(error: grpc.aio.AioRpcError, where: str) -> Fault | None:
    """The fault, when etcd itself said no; None when nobody can say."""
    details = error.details() or ""
    for text, fault, meaning in _DEFINITE:
        if text in details:
            return fault(f"etcd at {where} refused: {meaning} ({details})")
    if is_unsent(error):
        return Unavailable(f"etcd at {where} cannot be reached: {_dial_problem(details)}")
    if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
        return StoreFailed(f"etcd at {where} refused: {details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return StoreFailed(f"{where} does not speak etcd's v3 protocol ({details}): check the endpoint")
    return None


def unknown(error: grpc.aio.AioRpcError, where: str) -> Ambiguous:
    return Ambiguous(
        f"etcd at {where} gave no answer to a write ({error.code().name}: {error.details()}): it may have happened; "
        "read back before anything else"
    )


def unanswered(error: grpc.aio.AioRpcError, where: str) -> Unavailable:
    return Unavailable(f"etcd at {where} did not answer ({error.code().name}: {error.details()})")


def _dial_problem(details: str) -> str:
    reason = details.partition("last error: ")[2] or details
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"its certificate is not signed by --etcd-ca, or is for another name ({reason})"
    if "Ssl handshake failed" in reason or "SSL_ERROR" in reason:
        return f"the TLS handshake failed: check --etcd-ca, --etcd-cert and --etcd-key ({reason})"
    if "Connection refused" in reason:
        return f"nothing listens there: check --etcd-endpoints ({reason})"
    return reason
