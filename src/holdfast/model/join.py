"""How a node becomes a member: JoinToken lets it ask for a certificate, NodeIdentity says which of them are good.

What always holds: a token is kept as its hash and counts its uses; the certificates of a node carry the generation of
its identity, each join raises that, and what is not of the newest generation, or of a revoked one, is refused.
Renewing a certificate keeps the generation. Generations never fall, and none is given twice to a name, not even when
its identity was removed in between: they are taken from the revisions of the region's store.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.model import limits
from holdfast.model.meta import Object, Part, shown
from holdfast.model.times import parse_time
from holdfast.model.validation import Causes, check_dns_label, check_range, check_subdomain, forbidden, invalid

TOKEN_PREFIX = "hfj"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class JoinTokenSpec(Part, frozen=True):
    """`node` "" lets any name join that no node has yet; a name lets that one join, again if need be."""

    sha256: str
    ttl_seconds: float = shown(limits.JOIN_TTL_S)
    node: str = ""
    uses: int = shown(1)
    certificate_seconds: float = shown(limits.NODE_CERTIFICATE_S)


class JoinUse(Part, frozen=True):
    """One join: the node, and the key it showed. The same node with the same key is the same join, asked again."""

    node: str
    key: str
    at: str = ""


class JoinTokenStatus(Part, frozen=True):
    used: tuple[JoinUse, ...] = ()


class JoinToken(Object, frozen=True):
    spec: JoinTokenSpec
    status: JoinTokenStatus = msgspec.field(default_factory=JoinTokenStatus)

    @property
    def expires_at_s(self) -> float:
        """Counted from the moment the region stored it: nobody else's clock matters."""
        return parse_time(self.metadata.creation_timestamp) + self.spec.ttl_seconds


class NodeIdentitySpec(Part, frozen=True):
    """`key` is the digest of the public key that joined; `revokedGeneration` and everything before it is refused.

    `serial` and `expiresAt` are those of the newest certificate.
    """

    generation: int
    key: str
    serial: str = ""
    expires_at: str = ""
    token: str = ""
    joined_at: str = ""
    certificate_seconds: float = shown(limits.NODE_CERTIFICATE_S)
    revoked_generation: int = shown(0)


class NodeIdentityStatus(Part, frozen=True):
    pass


class NodeIdentity(Object, frozen=True):
    """Named as its node."""

    spec: NodeIdentitySpec
    status: NodeIdentityStatus = msgspec.field(default_factory=NodeIdentityStatus)

    @property
    def revoked(self) -> bool:
        return self.spec.generation <= self.spec.revoked_generation

    def accepts(self, generation: int) -> bool:
        return generation == self.spec.generation and not self.revoked


class JoinRequest(Part, frozen=True):
    """`csr` is a PKCS#10 request in PEM; only its key counts, its subject does not."""

    token: str
    node: str
    csr: str


class RenewalRequest(Part, frozen=True):
    csr: str


class Joined(Part, frozen=True):
    """The certificate in PEM, and what it says."""

    certificate: str
    generation: int
    expires_at: str


def token_text(region: str, secret: str) -> str:
    """A token as people carry it: it names its region, so that the wrong one can say so."""
    return f"{TOKEN_PREFIX}.{region}.{secret}"


def region_of(token: str) -> str:
    """The region a token names, or "" for what is no join token."""
    parts = token.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == TOKEN_PREFIX else ""


def validate_join_token(token: JoinToken, old: JoinToken | None) -> Causes:
    spec = token.spec
    if not _SHA256.fullmatch(spec.sha256):
        yield invalid("spec.sha256", spec.sha256, "the SHA-256 of the token in 64 lower-case hexadecimal digits")
    if spec.node:
        yield from check_subdomain("spec.node", spec.node)
    yield from check_dns_label("metadata.name", token.metadata.name)
    yield from check_range("spec.uses", spec.uses, 1, limits.JOIN_USES_MAX)
    yield from check_range(
        "spec.certificateSeconds",
        spec.certificate_seconds,
        limits.NODE_CERTIFICATE_MIN_S,
        limits.NODE_CERTIFICATE_MAX_S,
    )
    yield from check_range("spec.ttlSeconds", spec.ttl_seconds, 1, limits.JOIN_TTL_MAX_S)
    if old is not None and old.spec != spec:
        yield forbidden("spec", "a join token never changes; revoke it and make another")


def validate_node_identity(identity: NodeIdentity, old: NodeIdentity | None) -> Causes:
    spec = identity.spec
    yield from check_range("spec.generation", spec.generation, 1, limits.NODE_GENERATION_MAX)
    yield from check_range("spec.revokedGeneration", spec.revoked_generation, 0, spec.generation)
    if old is not None and spec.generation < old.spec.generation:
        yield forbidden("spec.generation", f"generations never fall; the stored one is {old.spec.generation}")
    if old is not None and spec.revoked_generation < old.spec.revoked_generation:
        yield forbidden("spec.revokedGeneration", "what is revoked stays revoked; let the node join again")
