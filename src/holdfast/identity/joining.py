"""Node join: exchanges a join token for a certificate, and a certificate for its successor.

- The use of a token and the identity it creates are one commit, audited under the token's name, before the certificate
  is returned.
- A use is counted once, however often the same node retries with the same key.
- A token that is not bound to a node never takes over a name with a live identity.
- A caller without a valid token learns nothing but `Unauthorized`.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from holdfast.foundation import metrics
from holdfast.gate.gate import Gate
from holdfast.identity.node_certificates import NodeCertificateAuthority, SignedCertificate, parse_csr
from holdfast.identity.region_joining import RegionJoinService
from holdfast.identity.server_records import REVOKED_SERVERS_MAX, ServerRecords
from holdfast.identity.shared_material import MaterialFiles, read_epoch, seal
from holdfast.identity.tokens import token_hash
from holdfast.model.errors import BadRequest, Forbidden, Invalid, Refused, Unauthorized, Unavailable
from holdfast.model.join import (
    JoinRequest,
    JoinResponse,
    JoinToken,
    JoinUse,
    MaterialRequest,
    NodeIdentity,
    NodeIdentitySpec,
    RenewalRequest,
    SealedMaterial,
    TrustBundle,
    token_region,
)
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.ownership import JOIN
from holdfast.model.principal import NODES, SERVERS, Principal
from holdfast.model.times import seconds_text
from holdfast.model.validation import check_subdomain
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write

# How long an expired join token is kept, so that its use can be inspected.
EXPIRED_JOIN_TOKEN_RETENTION_S = 86400.0
# Expired join tokens deleted with one join. The rest follows with the next join.
JOIN_TOKENS_DELETED_MAX = 16

_TOKEN, _IDENTITY = BY_NAME["JoinToken"], BY_NAME["NodeIdentity"]
# Length of a join token. A longer one is refused as unknown.
MAX_TOKEN_CHARS = 256


class JoinService:
    """One per cell. A cell without a node CA refuses to join nodes."""

    def __init__(
        self,
        gate: Gate,
        authority: NodeCertificateAuthority | None,
        *,
        regions: RegionJoinService | None = None,
        trusted: Path | None = None,
        servers: ServerRecords | None = None,
        material: MaterialFiles | None = None,
    ) -> None:
        """`regions` lets regions join the global cell. `trusted` is the file of CA certificates of the platform.
        `material` are the files that the servers of this cell share."""
        self._gate = gate
        self._authority = authority
        self.regions = regions or RegionJoinService(gate, None)
        self._trusted = trusted
        self._servers = servers
        self._material = material

    def trust_bundle(self) -> TrustBundle:
        """The platform's CA certificates: public, and verified by whoever asks, with the hash in a join token."""
        ca = self._trusted.read_text(encoding="ascii") if self._trusted is not None else ""
        servers = self._servers
        return TrustBundle(
            ca=ca,
            signer=self.regions.signer,
            at=seconds_text(self._gate.ports.clock.now()),
            servers=servers.own_urls() if servers is not None else (),
            revoked=tuple(sorted(servers.revoked()))[-REVOKED_SERVERS_MAX:] if servers is not None else (),
            epoch=read_epoch(self._trusted.parent) if self._trusted is not None else 0,
        )

    def share_material(self, who: Principal, asked: MaterialRequest, *, request: str = "") -> SealedMaterial:
        """The keys that the servers of this cell share, for another one of them. Recorded in the audit log."""
        if SERVERS not in who.groups or who.name != f"holdfast:server:{self._gate.cell}" or not who.server:
            message = f'User "{who.name}" is no server of cell {self._gate.cell} that joined with a token'
            self._gate.audit.record_refusal(who, "share", "servers", "NotAServer", message=message, request=request)
            raise Forbidden(message, facts={"reason": "NotAServer"})
        if self._material is None:
            step = "install the cell with --start-etcd, or with --etcd"
            raise Invalid(f"cell {self._gate.cell}: its store is SQLite, so it has one server; next: {step}")
        sealed = seal(asked.csr, self._material.read())
        self._gate.audit.record_use(who, "share", "servers", message=who.server, request=request)
        return sealed

    def identity(self, node: str) -> NodeIdentity | None:
        found = self._gate.objects.get(_IDENTITY, "", node)
        return found if isinstance(found, NodeIdentity) else None

    async def join(self, join_request: JoinRequest, *, request: str = "") -> JoinResponse:
        """Raises Unauthorized for an unknown token, Forbidden with the reason for a token that does not apply."""
        authority = self._require_authority()
        token = await self._token(join_request.token, request)
        who = Principal(
            name=f"holdfast:join:{token.metadata.name}",
            roles=frozenset({JOIN}),
            region=self._gate.cell,
            credential=f"join-token:{token.metadata.name}",
        )
        name_causes = list(check_subdomain("node", join_request.node))
        if name_causes:
            raise BadRequest(f"node {join_request.node}: {name_causes[0].message}")
        key = parse_csr(join_request.csr)
        held = self.identity(join_request.node)
        again = _is_retry(token, held, join_request.node, key.digest)
        refused = None if again else join_refusal(token, held, join_request.node, self._gate.ports.clock.now())
        if refused is not None:
            self._gate.audit.record_refusal(
                who, "join", "nodes", refused.reason, message=refused.message, request=request
            )
            metrics.GATE_JOINS.labels(refused.reason).inc()
            raise Forbidden(refused.message, facts={"reason": refused.reason})
        now_s = self._gate.ports.clock.now()
        generation = held.spec.generation if again and held is not None else self._next_generation(held)
        seconds = token.spec.certificate_seconds
        made = authority.certify(key, join_request.node, generation, now_s=now_s, seconds=seconds)
        if again and held is not None:
            writes: tuple[Write, ...] = (_renewal_write(held, made),)
        else:
            use = JoinUse(node=join_request.node, key=key.digest, at=seconds_text(now_s))
            writes = tuple(_join_writes(token, held, use, made, generation))
        await self._gate.commit(who, (*writes, *self._expired_tokens(now_s)), request=request)
        metrics.GATE_JOINS.labels("Joined").inc()
        return JoinResponse(made.certificate, generation, seconds_text(made.expires_s))

    async def renew(self, who: Principal, join_request: RenewalRequest, *, request: str = "") -> JoinResponse:
        """Replaces a node's valid certificate with a newer one of the same generation."""
        authority = self._require_authority()
        held = self.identity(who.node) if NODES in who.groups and who.region == self._gate.cell else None
        if held is None or not held.accepts(who.generation):
            message = f'User "{who.name}" did not join this region; next: join with a token'
            self._gate.audit.record_refusal(
                who, "renew", "nodeidentities", "NotJoined", message=message, request=request
            )
            raise Forbidden(message, facts={"reason": "NotJoined"})
        key = parse_csr(join_request.csr)
        made = authority.certify(
            key, who.node, who.generation, now_s=self._gate.ports.clock.now(), seconds=held.spec.certificate_seconds
        )
        signer = Principal(
            name=who.name, roles=frozenset({JOIN}), region=who.region, credential=who.credential, groups=who.groups
        )
        await self._gate.commit(signer, [_renewal_write(held, made)], request=request)
        metrics.GATE_JOINS.labels("Renewed").inc()
        return JoinResponse(made.certificate, who.generation, seconds_text(made.expires_s))

    def _next_generation(self, held: NodeIdentity | None) -> int:
        """Higher than the generation of any certificate this name ever had, even if its identity was deleted or the
        store restored: store revisions only increase, and each join commits one.
        """
        least = held.spec.generation + 1 if held is not None else 1
        return max(least, self._gate.objects.head(_IDENTITY))

    def _require_authority(self) -> NodeCertificateAuthority:
        if self._authority is None:
            next_step = "start it with --node-ca and --node-ca-key"
            raise Unavailable(f"cell {self._gate.cell}: has no node CA, so no node can join; next: {next_step}")
        return self._authority

    async def _token(self, text: str, request: str) -> JoinToken:
        """The token with this secret, expired or not."""
        match = self._find(token_hash(text))
        if match is None:
            await self._gate.objects.newest_revision(_TOKEN)  # another server of this cell may have just created it
            match = self._find(token_hash(text))
        if match is not None and len(text) <= MAX_TOKEN_CHARS:
            return match
        region = token_region(text[:MAX_TOKEN_CHARS])
        reason = "WrongRegion" if region and region != self._gate.cell else "JoinTokenUnknown"
        self._gate.audit.record_refusal("holdfast:join", "join", "nodes", reason, request=request)
        metrics.GATE_JOINS.labels(reason).inc()
        if reason == "WrongRegion":
            raise Unauthorized(f"join token: wrong region (expected {self._gate.cell}, found {region})")
        raise Unauthorized("Unauthorized")

    def _expired_tokens(self, now_s: float) -> Iterator[Delete]:
        """Deletes tokens that expired a while ago, with the next join: no other component cleans them up."""
        held = (t for t in self._gate.objects.list(_TOKEN)[0] if isinstance(t, JoinToken))
        ended = (t for t in held if now_s >= t.expires_at_s + EXPIRED_JOIN_TOKEN_RETENTION_S)
        for token in islice(ended, JOIN_TOKENS_DELETED_MAX):
            yield Delete(kind="JoinToken", key=token.key, uid=token.uid)

    def _find(self, wanted: str) -> JoinToken | None:
        """Compares all tokens, whichever matches, in constant time."""
        match: JoinToken | None = None
        for held in self._gate.objects.list(_TOKEN)[0]:
            if isinstance(held, JoinToken) and hmac.compare_digest(held.spec.sha256, wanted):
                match = held
        return match


def join_refusal(token: JoinToken, held: NodeIdentity | None, node: str, now_s: float) -> Refused | None:
    """Why the token does not let this node join; None if it does. `held` is the node's present identity."""
    name = token.metadata.name
    if now_s >= token.expires_at_s:
        ended = seconds_text(token.expires_at_s)
        return Refused("JoinTokenExpired", f"join token {name} expired at {ended}")
    if token.spec.node and token.spec.node != node:
        return Refused("WrongNode", f"join token {name} is for another node (expected {token.spec.node}, found {node})")
    if len(token.status.used) >= token.spec.uses:
        by = ", ".join(use.node for use in token.status.used[-3:])
        return Refused("JoinTokenUsed", f"join token {name} has no uses left (limit {token.spec.uses}, used by {by})")
    if held is not None and not held.revoked and not token.spec.node:
        message = (
            f"the name {node} has an identity that is not revoked; to join again it needs a token created with "
            f"--node {node}, or the identity is revoked before: holdfast node revoke {node}"
        )
        return Refused("NodeNameTaken", message)
    return None


def _is_retry(token: JoinToken, held: NodeIdentity | None, node: str, key: str) -> bool:
    """Whether this repeats the join that created the identity, because its response was lost."""
    known = any(use.node == node and use.key == key for use in token.status.used)
    return known and held is not None and not held.revoked and held.spec.key == key


def _join_writes(
    token: JoinToken, held: NodeIdentity | None, use: JoinUse, made: SignedCertificate, generation: int
) -> Iterator[Write]:
    """The use of the token, and the identity that it gives the node."""
    yield SetStatus(
        kind="JoinToken",
        key=token.key,
        uid=token.uid,
        blocks={"used": (*token.status.used, use)},
        if_revision=token.revision,
    )
    spec = NodeIdentitySpec(
        generation=generation,
        key=use.key,
        token=token.metadata.name,
        joined_at=use.at,
        serial=made.serial,
        expires_at=seconds_text(made.expires_s),
        certificate_seconds=token.spec.certificate_seconds,
        revoked_generation=held.spec.revoked_generation if held is not None else 0,
    )
    if held is None:
        yield Create(NodeIdentity(metadata=ObjectMeta(name=use.node), spec=spec))
    else:
        yield Update(msgspec.structs.replace(held, spec=spec))


def _renewal_write(held: NodeIdentity, made: SignedCertificate) -> Update:
    spec = msgspec.structs.replace(held.spec, serial=made.serial, expires_at=seconds_text(made.expires_s))
    return Update(msgspec.structs.replace(held, spec=spec))
