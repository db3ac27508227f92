"""Server: one machine that serves a cell. The global cell records those of all cells, and which are revoked.

- The name contains the hash of the key that joined, so that no two joins share a name. Certificates carry the name.
- A revocation cannot be undone: the machine joins again, as another Server.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.validation import Causes, check_dns_label, check_range, forbidden, required

# Length of a server's URL. A longer one is refused.
SERVER_URL_CHARS_MAX = 300


class ServerSpec(ApiStruct, frozen=True):
    """`cell` is `global` or a region. `hosts` are the names of the server certificate."""

    cell: str
    url: str
    hosts: tuple[str, ...] = ()
    key: str = ""
    token: str = ""
    joined_at: str = ""
    revoked: bool = visible_default(False)


class ServerStatus(ApiStruct, frozen=True):
    """The newest certificates of the server. `issuer` is the SHA-256 of the CA certificate that signed them."""

    serial: str = ""
    expires_at: str = ""
    issuer: str = ""


class Server(Object, frozen=True):
    spec: ServerSpec
    status: ServerStatus = msgspec.field(default_factory=ServerStatus)


def server_name(cell: str, key: str) -> str:
    """The name of the server that joined with this key (the digest of its public key)."""
    return f"{cell[:50]}-{key[:8]}"


def validate_server(server: Server, old: Server | None) -> Causes:
    spec = server.spec
    yield from check_dns_label("spec.cell", spec.cell)
    if not spec.url.startswith("https://"):
        yield required("spec.url", "https://HOST:PORT")
    yield from check_range("spec.url", len(spec.url), 1, SERVER_URL_CHARS_MAX)
    if old is not None and old.spec.cell != spec.cell:
        yield forbidden("spec.cell", "immutable; the machine joins again with another token")
    if old is not None and old.spec.revoked and not spec.revoked:
        yield forbidden("spec.revoked", "a revocation cannot be undone; let the machine join again")
