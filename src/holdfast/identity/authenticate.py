"""From a verified credential to a principal.

An unknown credential is refused without details. The holder of a rejected certificate is told why.

The subject of a client certificate names the user (CN) and its groups (O). TLS has verified the chain. Dates and
revoked serials are checked here, per request: connections outlive both, and TLS could tell nobody why. A bearer token
is looked up by its hash.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.foundation.ports import Ports
from holdfast.identity.certificates import RevokedSerials
from holdfast.identity.node_certificates import BACKDATED_S, parse_generation, parse_server
from holdfast.identity.oidc import OidcVerifier, is_jwt
from holdfast.identity.tokens import TokenFile
from holdfast.model.errors import Forbidden, Unauthorized
from holdfast.model.join import NodeIdentity
from holdfast.model.principal import COMPONENT_GROUPS, NODES, Principal, from_identity

# Maximum age of the certificate revocation list that a request is checked against. After that, the file is read again.
REVOCATION_CACHE_S = 0.5

# Length of a bearer token. A longer one is refused with 401. Tokens of an issuer may carry many groups.
MAX_TOKEN_CHARS = 16_384
# Parsed client certificates cached; the least recently used is dropped.
CERTIFICATES_CACHED = 4096


_REJECTIONS = {
    "CertificateRevoked": "was revoked",
    "CertificateExpired": "has expired",
    "CertificateNotYetValid": "is not valid yet by the clock of this cell",
}


def rejection_text(who: Principal, why: str) -> str:
    """What is wrong with a certificate, and what its holder does next."""
    said = _REJECTIONS.get(why, f"is not accepted here ({why})")
    if not who.node:
        steps = "for a user: holdfast user add --certificate, for a region: holdfast credentials rotate region"
        return f"certificate of {who.name}: it {said}; next: an operator makes a new one ({steps})"
    return (
        f"node {who.node}: its certificate {said}; next: join again: holdfast token create {who.node} "
        f"--join {who.region} --node {who.node}, and put the token into the agent's join token file"
    )


class Authenticator:
    def __init__(
        self,
        cell: str,
        ports: Ports,
        *,
        tokens: TokenFile | None = None,
        revoked: RevokedSerials | None = None,
        node_issuer: str = "",
        identities: Callable[[str], NodeIdentity | None] = lambda node: None,
        oidc: OidcVerifier | None = None,
        cells: Callable[[Principal, float], str] = lambda who, issued_s: "",
    ) -> None:
        """`node_issuer` is the common name of the region's node CA; `identities` looks up joined nodes. `cells` says
        why the certificate of a cell, issued at a time, is refused (`server_records`)."""
        self._cell = cell
        self._ports = ports
        self._tokens = tokens
        self._revoked = revoked
        self._serials: frozenset[str] = frozenset()
        self._reread_s = 0.0
        self._node_issuer = node_issuer
        self._identities = identities
        self._oidc = oidc
        self._cells = cells

    async def prepare(self, header: str) -> None:
        """Fetches what the token of this Authorization header is verified with, if it is not known yet."""
        token = header.partition(" ")[2].strip()
        if self._oidc is not None and len(token) <= MAX_TOKEN_CHARS and is_jwt(token):
            await self._oidc.prepare(token)

    def from_certificate(self, peer: Mapping[str, Any]) -> Principal:
        """`peer` is the result of `SSLSocket.getpeercert()` for a certificate that TLS has verified."""
        shown = _parse_certificate(
            peer.get("subject", ()), str(peer.get("serialNumber", "")), peer.get("notBefore"), peer.get("notAfter")
        )
        if shown is None:
            raise Unauthorized
        why = self._rejection_reason(shown, peer.get("issuer", ()))
        if why:
            # TLS has proven the identity, so the caller is told why, and the audit log may name it.
            raise Unauthorized(rejection_text(shown.principal, why), facts={"why": why, "principal": shown.principal})
        return shown.principal

    def _rejection_reason(self, shown: _CertificateContent, issuer: tuple[Any, ...]) -> str:
        """Why a certificate that TLS verified is rejected; empty if it is accepted."""
        who = shown.principal
        now_s = self._ports.clock.now()
        if not shown.start_s <= now_s < shown.end_s:
            return "CertificateExpired" if now_s >= shown.end_s else "CertificateNotYetValid"
        if shown.serial in self._revoked_serials():
            return "CertificateRevoked"
        if refused := self._cells(who, shown.start_s + BACKDATED_S):
            return refused
        joined = bool(self._node_issuer) and _common_names(issuer) == [self._node_issuer]
        if not who.node and not joined:
            return ""
        if joined and (NODES not in who.groups or not who.node or who.region != self._cell):
            return "NotANode"  # the node CA may certify only nodes of its own region
        identity = self._identities(who.node)
        accepted = (
            not joined if identity is None else identity.accepts(who.generation) if joined else not identity.revoked
        )
        return "" if accepted else "CertificateRevoked"

    def _revoked_serials(self) -> frozenset[str]:
        """The revoked serials, cached for REVOCATION_CACHE_S so that the file is not read on every request."""
        now_s = self._ports.clock.monotonic()
        if self._revoked is not None and now_s >= self._reread_s:
            self._reread_s = now_s + REVOCATION_CACHE_S
            self._serials = self._revoked.all()
        return self._serials

    def from_bearer(self, header: str) -> Principal:
        """`header` is the value of the Authorization header."""
        scheme, _, token = header.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARS:
            raise Unauthorized
        return self.from_token(token)

    def from_token(self, token: str) -> Principal:
        if self._oidc is not None and is_jwt(token):
            return self._oidc.verify(token)
        found = self._tokens.find(token) if self._tokens is not None else None
        if found is None:
            raise Unauthorized(facts={"why": "TokenUnknown"})
        if found.is_expired(self._ports.clock.now()):
            raise Unauthorized(facts={"why": "TokenExpired"})
        if found.cells and self._cell not in found.cells:
            raise Unauthorized(facts={"why": "TokenForOtherCell"})
        return from_identity(found.user, found.groups, credential=f"token:{found.name}")

    def credential_cells(self, who: Principal) -> frozenset[str] | None:
        """The cells that the principal's credential is limited to; None if it is not limited."""
        kind, _, name = who.credential.partition(":")
        if kind != "token" or self._tokens is None:
            return None
        held = next((token for token in self._tokens.all() if token.name == name), None)
        return frozenset(held.cells) if held is not None and held.cells else None

    def is_credential_valid(self, who: Principal) -> bool:
        """Whether the credential that a principal was authenticated with is still accepted, for sessions that outlive
        the request. A token must still grant the same groups."""
        kind, _, name = who.credential.partition(":")
        if kind == "certificate":
            return name.upper().lstrip("0") not in self._revoked_serials() and not self._cells(who, math.inf)
        if kind == "oidc":
            return self._oidc is not None and self._oidc.is_live(who.credential)
        if kind != "token" or self._tokens is None:
            return False
        held = next((token for token in self._tokens.all() if token.name == name), None)
        if held is None or held.is_expired(self._ports.clock.now()) or (held.cells and self._cell not in held.cells):
            return False
        return from_identity(held.user, held.groups, credential=who.credential) == who


class _CertificateContent(msgspec.Struct, frozen=True):
    """The content of a certificate. Its validity is checked separately on every request."""

    principal: Principal
    serial: str
    start_s: float
    end_s: float


@lru_cache(maxsize=CERTIFICATES_CACHED)
def _parse_certificate(
    subject: tuple[Any, ...], serial: str, start: str | None, end: str | None
) -> _CertificateContent | None:
    """None for a certificate without exactly one common name or without readable dates."""
    names: list[str] = []
    groups: list[str] = []
    generation, server = 0, ""
    for relative in subject:
        for key, value in relative:
            if key == "commonName":
                names.append(value)
            elif key == "organizationName":
                groups.append(value)
            elif key == "organizationalUnitName":
                generation, server = parse_generation(value), parse_server(value)
    if len(names) != 1 or not names[0]:
        return None
    try:
        start_s, end_s = ssl.cert_time_to_seconds(start or ""), ssl.cert_time_to_seconds(end or "")
    except ValueError:
        return None
    principal = from_identity(
        names[0], tuple(groups), credential=f"certificate:{serial}", generation=generation, server=server
    )
    return _CertificateContent(principal, serial.upper().lstrip("0"), start_s, end_s)


def _common_names(name: tuple[Any, ...]) -> list[str]:
    return [value for relative in name for key, value in relative if key == "commonName"]


def impersonated_principal(by: Principal, user: str, groups: tuple[str, ...]) -> Principal:
    """The principal that an operator acts as (`--as`). The caller must have authorized the verb `impersonate`.

    Only people can be impersonated: acting as the authority or a node would bypass S5 and S6.
    """
    for group in groups:
        if group in COMPONENT_GROUPS:
            why = "cannot impersonate components of the platform, only people"
            raise Forbidden(f'groups "{group}" is forbidden: User "{by.name}" {why}')
    return from_identity(user, groups, credential=f"impersonated by {by.name}")
