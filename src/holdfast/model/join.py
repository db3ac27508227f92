"""Node join: a JoinToken lets a machine request a certificate, a NodeIdentity says which certificates are valid.

- A token is stored as its hash and counts its uses.
- Each certificate carries the generation of the node's identity. A join raises the generation; a renewal keeps it.
- A certificate of an older or revoked generation is refused.
- Generations never decrease and are never reused for a name, even after its identity was deleted: they are revisions
  of the region's store.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.model import limits
from holdfast.model.meta import ApiStruct, Object, visible_default
from holdfast.model.times import parse_time
from holdfast.model.validation import (
    Causes,
    check_dns_label,
    check_range,
    check_subdomain,
    forbidden,
    invalid,
    required,
)

# Longest lifetime of a join token. A longer one is refused.
JOIN_TOKEN_TTL_MAX_S = 7 * 86400.0
# Uses of one join token. More are refused.
JOIN_TOKEN_USES_MAX = 256
# Highest generation of a node identity. Generations are store revisions, which stay far below.
NODE_GENERATION_MAX = 10**15
# Shortest lifetime of a node certificate. Shorter ones could expire before they are renewed.
NODE_CERTIFICATE_LIFETIME_MIN_S = 10.0
# Longest lifetime of a node certificate. A longer one is refused.
NODE_CERTIFICATE_LIFETIME_MAX_S = 366 * 86400.0

# Names in the server certificate of a region's cell. More are refused.
CELL_HOSTS_MAX = 16

TOKEN_PREFIX = "hfj"
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62}\.?)*|[0-9A-Fa-f:.]{2,45}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class JoinTokenSpec(ApiStruct, frozen=True):
    """If `node` is set, only that node may join, also repeatedly. Otherwise any name may join that no node has yet.

    In the global cell, `region` names the region whose cell may join. Its certificate may have the names in `hosts`;
    if `hosts` is empty, any names but those of other cells."""

    sha256: str
    ttl_seconds: float = visible_default(limits.JOIN_TOKEN_TTL_S)
    node: str = ""
    uses: int = visible_default(1)
    certificate_seconds: float = visible_default(limits.NODE_CERTIFICATE_LIFETIME_S)
    region: str = ""
    hosts: tuple[str, ...] = ()
    server: bool = False
    """In the global cell: a further server of the cell `region`, which may be `global`, joins with it."""


class JoinUse(ApiStruct, frozen=True):
    """One join: node and public key. The same node with the same key repeats the same join."""

    node: str
    key: str
    at: str = ""


class JoinTokenStatus(ApiStruct, frozen=True):
    used: tuple[JoinUse, ...] = ()


class JoinToken(Object, frozen=True):
    spec: JoinTokenSpec
    status: JoinTokenStatus = msgspec.field(default_factory=JoinTokenStatus)

    @property
    def expires_at_s(self) -> float:
        """Expiry by the clock of the region that stored the token."""
        return parse_time(self.metadata.creation_timestamp) + self.spec.ttl_seconds


class NodeIdentitySpec(ApiStruct, frozen=True):
    """`key` is the digest of the public key that joined. Generations up to `revokedGeneration` are refused.

    `serial` and `expiresAt` describe the newest certificate.
    """

    generation: int
    key: str
    serial: str = ""
    expires_at: str = ""
    token: str = ""
    joined_at: str = ""
    certificate_seconds: float = visible_default(limits.NODE_CERTIFICATE_LIFETIME_S)
    revoked_generation: int = visible_default(0)


class NodeIdentityStatus(ApiStruct, frozen=True):
    pass


class NodeIdentity(Object, frozen=True):
    """Has the name of its node."""

    spec: NodeIdentitySpec
    status: NodeIdentityStatus = msgspec.field(default_factory=NodeIdentityStatus)

    @property
    def revoked(self) -> bool:
        return self.spec.generation <= self.spec.revoked_generation

    def accepts(self, generation: int) -> bool:
        return generation == self.spec.generation and not self.revoked


class JoinRequest(ApiStruct, frozen=True):
    """`csr` is a PKCS#10 request in PEM. Only its key is used; its subject is ignored."""

    token: str
    node: str
    csr: str


class RenewalRequest(ApiStruct, frozen=True):
    csr: str


class JoinResponse(ApiStruct, frozen=True):
    """The certificate in PEM, with its generation and expiry."""

    certificate: str
    generation: int
    expires_at: str


class CellRequests(ApiStruct, frozen=True):
    """Signing requests of a cell's server: for its link to the global cell (regions only), for the API that it serves,
    and for its calls to the other servers of its cell."""

    link: str
    server: str
    peer: str = ""


class RegionJoinRequest(ApiStruct, frozen=True):
    """A server of a cell asks for its certificates. `region` is the cell. `endpoint` is the server's URL; `hosts` are
    further names that it serves."""

    token: str
    region: str
    endpoint: str
    requests: CellRequests
    hosts: tuple[str, ...] = ()


class RegionJoinResponse(ApiStruct, frozen=True):
    """The certificates, and the CA certificates to trust, in PEM. `name` is the server's name, `servers` are the URLs
    of the cell's other servers."""

    link: str
    server: str
    ca: str
    expires_at: str
    peer: str = ""
    name: str = ""
    servers: tuple[str, ...] = ()


class MaterialRequest(ApiStruct, frozen=True):
    """A server asks another one of its cell for the keys that all of them share. The answer is sealed for the key of
    this signing request."""

    csr: str


class SealedMaterial(ApiStruct, frozen=True):
    """`sealed` is encrypted with the key that `sender` (a public key in PEM) and the request's key agree on."""

    sender: str
    nonce: bytes
    sealed: bytes


class RevokeRequest(ApiStruct, frozen=True):
    """Asks to revoke a region or a server. Without `confirm`, a revocation that ends work is refused with its
    effects."""

    confirm: bool = False
    reason: str = ""


class TrustBundle(ApiStruct, frozen=True):
    """The CA certificates that a cell trusts, in PEM. `signer` is the SHA-256 of the one that signs now, `at` the
    cell's time. `servers` are the URLs of the cell's servers, `revoked` the names of revoked servers of all cells.
    `epoch` rises with each step of a rotation of the CA."""

    ca: str
    signer: str = ""
    at: str = ""
    servers: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    epoch: int = 0


def token_text(region: str, secret: str) -> str:
    """The token as given to an operator. It names its region, so that a refusal by another region can name it."""
    return f"{TOKEN_PREFIX}.{region}.{secret}"


def token_region(token: str) -> str:
    """The region that a token names, or "" if the text is not a join token."""
    parts = token.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == TOKEN_PREFIX else ""


def is_host(text: str) -> bool:
    """Whether the text has the form of a DNS name or an IP address."""
    return _HOST.fullmatch(text) is not None and not text.startswith(".") and ".." not in text


def join_token_purpose(token: JoinToken) -> str:
    """What joins with the token, in a few words."""
    spec = token.spec
    if spec.region:
        return f"{'server of' if spec.server else 'region'} {spec.region}"
    return f"node {spec.node}" if spec.node else "any node"


def validate_join_token(token: JoinToken, old: JoinToken | None) -> Causes:
    spec = token.spec
    if not _SHA256.fullmatch(spec.sha256):
        yield invalid("spec.sha256", spec.sha256, "the SHA-256 of the token in 64 lower-case hexadecimal digits")
    if spec.node:
        yield from check_subdomain("spec.node", spec.node)
    yield from check_dns_label("metadata.name", token.metadata.name)
    if spec.region:
        yield from check_dns_label("spec.region", spec.region)
    if spec.server and not spec.region:
        yield required("spec.region", "the cell that the server joins: global, or a region")
    yield from check_range("spec.hosts", len(spec.hosts), 0, CELL_HOSTS_MAX)
    for index, host in enumerate(spec.hosts):
        if not is_host(host):
            yield invalid(f"spec.hosts[{index}]", host, "a DNS name or an IP address")
    yield from check_range("spec.uses", spec.uses, 1, JOIN_TOKEN_USES_MAX)
    yield from check_range(
        "spec.certificateSeconds",
        spec.certificate_seconds,
        NODE_CERTIFICATE_LIFETIME_MIN_S,
        NODE_CERTIFICATE_LIFETIME_MAX_S,
    )
    yield from check_range("spec.ttlSeconds", spec.ttl_seconds, 1, JOIN_TOKEN_TTL_MAX_S)
    if old is not None and old.spec != spec:
        yield forbidden("spec", "immutable; delete the token and create another")


def validate_node_identity(identity: NodeIdentity, old: NodeIdentity | None) -> Causes:
    spec = identity.spec
    yield from check_range("spec.generation", spec.generation, 1, NODE_GENERATION_MAX)
    yield from check_range("spec.revokedGeneration", spec.revoked_generation, 0, spec.generation)
    if old is not None and spec.generation < old.spec.generation:
        yield forbidden("spec.generation", f"must not decrease; the stored generation is {old.spec.generation}")
    if old is not None and spec.revoked_generation < old.spec.revoked_generation:
        yield forbidden("spec.revokedGeneration", "a revocation cannot be undone; let the node join again")
