"""From a verified credential to a principal. Everything else is `Unauthorized`, without saying which part was wrong.

A client certificate's subject says who (CN) and in which groups (O); TLS has verified the chain, and here the dates and
the list of revoked serials are checked again, as connections outlive both. A bearer token is looked up by its hash.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.gate.certificates import RevokedSerials
from holdfast.gate.principal import CONTROLLERS, HOLLOW_NODES, NODES, REGIONS, SERVERS, Principal, from_identity
from holdfast.gate.tokens import TokenFile
from holdfast.model.errors import Forbidden, Unauthorized
from holdfast.runtime.ports import Ports

MAX_TOKEN_CHARS = 4096
KNOWN_CERTIFICATES = 4096
_MACHINES = frozenset({CONTROLLERS, NODES, HOLLOW_NODES, REGIONS, SERVERS})


class Authenticator:
    def __init__(
        self, cell: str, ports: Ports, *, tokens: TokenFile | None = None, revoked: RevokedSerials | None = None
    ) -> None:
        self._cell = cell
        self._ports = ports
        self._tokens = tokens
        self._revoked = revoked

    def from_certificate(self, peer: Mapping[str, Any]) -> Principal:
        """`peer` is what `SSLSocket.getpeercert()` gives of a certificate that TLS has verified."""
        shown = _read(
            peer.get("subject", ()), str(peer.get("serialNumber", "")), peer.get("notBefore"), peer.get("notAfter")
        )
        if shown is None or not shown.start_s <= self._ports.clock.now() < shown.end_s:
            raise Unauthorized
        if self._revoked is not None and self._revoked.has(shown.serial):
            raise Unauthorized
        return shown.principal

    def from_bearer(self, header: str) -> Principal:
        """`header` is the value of Authorization."""
        scheme, _, token = header.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS:
            raise Unauthorized
        return self.from_token(token)

    def from_token(self, token: str) -> Principal:
        found = self._tokens.find(token) if self._tokens is not None else None
        if found is None or found.expired(self._ports.clock.now()):
            raise Unauthorized
        if found.cells and self._cell not in found.cells:
            raise Unauthorized
        return from_identity(found.user, found.groups, credential=f"token:{found.name}")


class _Shown(msgspec.Struct, frozen=True):
    """What a certificate says. Whether that still holds is another question, asked with every request."""

    principal: Principal
    serial: str
    start_s: float
    end_s: float


@lru_cache(maxsize=KNOWN_CERTIFICATES)
def _read(subject: tuple[Any, ...], serial: str, start: str | None, end: str | None) -> _Shown | None:
    """None for one without a name of its own, or without dates that can be read."""
    names: list[str] = []
    groups: list[str] = []
    for relative in subject:
        for key, value in relative:
            if key == "commonName":
                names.append(value)
            elif key == "organizationName":
                groups.append(value)
    if len(names) != 1 or not names[0]:
        return None
    try:
        start_s, end_s = ssl.cert_time_to_seconds(start or ""), ssl.cert_time_to_seconds(end or "")
    except ValueError:
        return None
    principal = from_identity(names[0], tuple(groups), credential=f"certificate:{serial}")
    return _Shown(principal, serial, start_s, end_s)


def impersonated(by: Principal, user: str, groups: tuple[str, ...]) -> Principal:
    """The principal an operator acts as (`--as`). Whoever calls this has authorized the verb `impersonate`.

    People only: an operator who could act as the authority or as a node could write what nobody but them may (S5, S6).
    """
    for group in groups:
        if group in _MACHINES:
            why = "cannot impersonate parts of the platform, only people"
            raise Forbidden(f'groups "{group}" is forbidden: User "{by.name}" {why}')
    return from_identity(user, groups, credential=f"impersonated by {by.name}")
