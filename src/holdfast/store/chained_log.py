"""The hash chain of the audit log: each record names the hash of the record before it.

The link is added when a commit is staged, where the order of records is decided, so it costs one hash of a few hundred
bytes and no write of its own. A restored record keeps the link that it had. `gate/audit_chain.py` verifies the chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from holdfast.store.contract import Append

CHAINED_LOG = "audit"
GENESIS = b"0" * 64
_FIELD = b',"prev":"'
_LINK_BYTES = len(_FIELD) + len(GENESIS) + 2


def record_hash(value: bytes) -> bytes:
    return hashlib.sha256(value).hexdigest().encode()


def is_linked(value: bytes) -> bool:
    """Whether the record has the link of an earlier chain, as restored records do."""
    return len(value) > _LINK_BYTES and value[-_LINK_BYTES:].startswith(_FIELD)


def link_of(value: bytes) -> bytes:
    """The hash of the record before it, as the record says; empty if it has none."""
    return value[-len(GENESIS) - 2 : -2] if is_linked(value) else b""


def linked(appends: Iterable[Append], link: bytes) -> tuple[tuple[Append, ...], bytes]:
    """The records with their links, and the hash of the last one. Only JSON objects of the audit log are linked."""
    made: list[Append] = []
    for append in appends:
        value = append.value
        if append.log == CHAINED_LOG and value[:1] == b"{" and value[-1:] == b"}":
            if not is_linked(value):
                value = b'%b,"prev":"%b"}' % (value[:-1], link)
                append = Append(append.log, value)  # noqa: PLW2901 - the same record with its link
            link = record_hash(value)
        made.append(append)
    return tuple(made), link
