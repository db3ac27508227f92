"""Joining of cells' servers: the global cell exchanges a join token for the certificates of a server, and renews them.

- A token names its cell and is used once. The same keys repeat the same join, so a lost answer is asked for again.
- The use of the token, the Server, the region's endpoint and its certificate are one audited commit before the answer.
- A server gets no certificate for a name of another cell, unless an operator put the name into the token.
- A renewal needs the region's valid link certificate. It keeps the names of the join.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from holdfast.foundation import metrics
from holdfast.gate.gate import Gate
from holdfast.gate.scope import GLOBAL_CELL
from holdfast.identity.cell_certificates import LOCAL_HOSTS, CellCertificateAuthority
from holdfast.identity.node_certificates import RequestedKey, parse_csr
from holdfast.identity.server_records import other_urls
from holdfast.identity.tokens import token_hash
from holdfast.model.errors import BadRequest, Forbidden, Refused, Unauthorized, Unavailable
from holdfast.model.join import (
    CELL_HOSTS_MAX,
    CellRequests,
    JoinToken,
    JoinUse,
    RegionJoinRequest,
    RegionJoinResponse,
    is_host,
)
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.ownership import JOIN
from holdfast.model.principal import REGIONS, SERVERS, Principal
from holdfast.model.region import Region, RegionCertificate
from holdfast.model.server import Server, ServerSpec, ServerStatus, server_name
from holdfast.model.times import seconds_text
from holdfast.model.writes import Create, SetStatus, Update, Write

_TOKEN, _REGION, _SERVER = BY_NAME["JoinToken"], BY_NAME["Region"], BY_NAME["Server"]


class RegionJoinService:
    """One in each server of the global cell. Without the CA's key it refuses to join regions."""

    def __init__(self, gate: Gate, authority: CellCertificateAuthority | None, own_hosts: Sequence[str] = ()) -> None:
        self._gate = gate
        self._authority = authority
        self._own_hosts = frozenset(own_hosts)

    @property
    def signer(self) -> str:
        """SHA-256 of the CA that signs; empty without a CA key."""
        return self._authority.fingerprint if self._authority is not None else ""

    async def join(self, asked: RegionJoinRequest, *, request: str = "") -> RegionJoinResponse:
        """Raises Unauthorized for an unknown token, Forbidden with the reason for one that does not apply."""
        authority = self._require_authority()
        token = await self._token(asked.token, request)
        name = token.metadata.name
        who = Principal(name=f"holdfast:join:{name}", roles=frozenset({JOIN}), credential=f"join-token:{name}")
        found = self._gate.objects.get(_REGION, "", asked.region)
        region = found if isinstance(found, Region) else None
        keys = parse_requests(asked.requests, asked.region)
        hosts = _hosts(asked)
        again = any(use.node == asked.region and use.key == keys.digest for use in token.status.used)
        now_s = self._gate.ports.clock.now()
        refused = region_join_refusal(token, region, asked.region, now_s)
        if again and refused is not None and refused.reason in ("JoinTokenUsed", "JoinTokenExpired"):
            refused = None
        refused = refused or self._taken_host(token, asked.region, hosts)
        if refused is not None:
            self._gate.audit.record_refusal(
                who, "join", "regions", refused.reason, message=refused.message, request=request
            )
            metrics.GATE_JOINS.labels(refused.reason).inc()
            raise Forbidden(refused.message, facts={"reason": refused.reason})
        writes: list[Write] = []
        if not again:
            use = JoinUse(node=asked.region, key=keys.digest, at=seconds_text(now_s))
            blocks = {"used": (*token.status.used, use)}
            writes.append(
                SetStatus(kind="JoinToken", key=token.key, uid=token.uid, blocks=blocks, if_revision=token.revision)
            )
        others = other_urls(self._servers(asked.region), asked.endpoint)
        server = server_name(asked.region, keys.digest)
        made, certificate = self._sign(authority, asked.region, keys, hosts, name=server)
        spec = ServerSpec(
            cell=asked.region,
            url=asked.endpoint,
            hosts=hosts,
            key=keys.digest,
            token=name,
            joined_at=seconds_text(now_s),
        )
        writes += self.record_writes(server, spec, certificate)
        if region is not None:
            writes += _endpoint_writes(region, asked.endpoint, others if token.spec.server else ())
            writes.append(_record(region, certificate))
        await self._gate.commit(who, writes, request=request)
        metrics.GATE_JOINS.labels("ServerJoined" if token.spec.server else "RegionJoined").inc()
        return msgspec.structs.replace(made, servers=others)

    async def renew(self, who: Principal, asked: CellRequests, *, request: str = "") -> RegionJoinResponse:
        """New certificates for the server of a region that shows a valid link certificate."""
        authority = self._require_authority()
        region = self._gate.objects.get(_REGION, "", who.region) if REGIONS in who.groups and who.region else None
        if not isinstance(region, Region) or region.status.certificate is None:
            message = f'User "{who.name}" did not join as a region; next: holdfast region add, then init region --join'
            self._gate.audit.record_refusal(who, "renew", "regions", "NotJoined", message=message, request=request)
            raise Forbidden(message, facts={"reason": "NotJoined"})
        keys = parse_requests(asked, who.region)
        server = self._gate.objects.get(_SERVER, "", who.server) if who.server else None
        hosts = server.spec.hosts if isinstance(server, Server) else region.status.certificate.hosts
        made, certificate = self._sign(authority, who.region, keys, hosts, name=who.server)
        writes: list[Write] = [_record(region, certificate)]
        if isinstance(server, Server):
            writes += self.record_writes(who.server, server.spec, certificate)
        signer = msgspec.structs.replace(who, roles=frozenset({JOIN}))
        await self._gate.commit(signer, writes, request=request)
        metrics.GATE_JOINS.labels("RegionRenewed").inc()
        return made

    def record_writes(self, name: str, spec: ServerSpec, certificate: RegionCertificate) -> Iterator[Write]:
        """The record of a server and of its newest certificates. A revocation stays."""
        blocks = {"serial": certificate.serial, "expiresAt": certificate.expires_at, "issuer": certificate.issuer}
        held = self._gate.objects.get(_SERVER, "", name)
        if not isinstance(held, Server):
            status = ServerStatus(certificate.serial, certificate.expires_at, certificate.issuer)
            yield Create(Server(metadata=ObjectMeta(name=name), spec=spec, status=status))
            return
        if held.spec != msgspec.structs.replace(spec, revoked=held.spec.revoked, joined_at=held.spec.joined_at):
            kept = msgspec.structs.replace(spec, revoked=held.spec.revoked, joined_at=held.spec.joined_at)
            yield Update(msgspec.structs.replace(held, spec=kept))
        yield SetStatus(kind="Server", key=held.key, uid=held.uid, blocks=blocks)

    def _servers(self, cell: str) -> list[Server]:
        found = (s for s in self._gate.objects.list(_SERVER)[0] if isinstance(s, Server))
        return [s for s in found if s.spec.cell == cell and not s.spec.revoked]

    def _sign(
        self, authority: CellCertificateAuthority, cell: str, keys: RequestedKeys, hosts: Sequence[str], *, name: str
    ) -> tuple[RegionJoinResponse, RegionCertificate]:
        link = peer = None
        now_s = self._gate.ports.clock.now()
        if keys.link is not None:
            link = authority.sign(keys.link, f"holdfast:region:{cell}", (REGIONS,), now_s=now_s, server=name)
        if keys.peer is not None:
            peer = authority.sign(keys.peer, f"holdfast:server:{cell}", (SERVERS,), now_s=now_s, server=name)
        names = (*hosts, *(host for host in LOCAL_HOSTS if host not in hosts))
        server = authority.sign(keys.server, f"holdfast-cell-{cell}", hosts=names, now_s=now_s, server=name)
        signed = [each for each in (link, server, peer) if each is not None]
        expires = seconds_text(min(each.expires_s for each in signed))
        made = RegionJoinResponse(
            link=link.certificate if link is not None else "",
            server=server.certificate,
            peer=peer.certificate if peer is not None else "",
            ca=authority.bundle,
            expires_at=expires,
            name=name,
        )
        return made, RegionCertificate(
            serial=signed[0].serial,
            key=keys.digest,
            expires_at=expires,
            issuer=authority.fingerprint,
            hosts=tuple(hosts),
        )

    def _taken_host(self, token: JoinToken, region: str, hosts: Sequence[str]) -> Refused | None:
        """Why a name of the requested server certificate belongs to another cell; None if none does."""
        free = {*token.spec.hosts, *LOCAL_HOSTS}
        for host in hosts:
            if host in free:
                continue
            if token.spec.hosts:
                allowed = ", ".join(token.spec.hosts)
                return Refused("WrongHost", f"host {host}: the join token allows {allowed} (region add --host)")
            if owner := self._owner_of(host, region):
                message = f"host {host} belongs to {owner}; if both run on one machine: region add --host {host}"
                return Refused("WrongHost", message)
        return None

    def _owner_of(self, host: str, region: str) -> str:
        if host in self._own_hosts and region != GLOBAL_CELL:
            return "the global cell"
        for server in self._gate.objects.list(_SERVER)[0]:
            owner = server.spec.cell if isinstance(server, Server) and not server.spec.revoked else region
            if owner != region and isinstance(server, Server) and host in server.spec.hosts:
                return "the global cell" if owner == GLOBAL_CELL else f"region {owner}"
        for other in self._gate.objects.list(_REGION)[0]:
            if not isinstance(other, Region) or other.metadata.name == region:
                continue
            held = other.status.certificate.hosts if other.status.certificate is not None else ()
            if host in (*held, urlsplit(other.spec.endpoint).hostname):
                return f"region {other.metadata.name}"
        return ""

    def _require_authority(self) -> CellCertificateAuthority:
        if self._authority is None:
            next_step = "start the global cell with --cell-ca-key"
            raise Unavailable(f"cell {self._gate.cell}: has no CA key, so no region can join; next: {next_step}")
        return self._authority

    async def _token(self, text: str, request: str) -> JoinToken:
        found = self._find(text)
        if found is None:
            await self._gate.objects.newest_revision(_TOKEN)  # another server of this cell may have just created it
            found = self._find(text)
        if found is not None:
            return found
        self._gate.audit.record_refusal("holdfast:join", "join", "regions", "JoinTokenUnknown", request=request)
        metrics.GATE_JOINS.labels("JoinTokenUnknown").inc()
        raise Unauthorized("Unauthorized")

    def _find(self, text: str) -> JoinToken | None:
        """Compares all tokens, whichever matches, in constant time."""
        wanted, match = token_hash(text), None
        for held in self._gate.objects.list(_TOKEN)[0]:
            if isinstance(held, JoinToken) and hmac.compare_digest(held.spec.sha256, wanted):
                match = held
        return match


def region_join_refusal(token: JoinToken, region: Region | None, name: str, now_s: float) -> Refused | None:
    """Why the token does not let a server of this cell join; None if it does."""
    text = f"join token {token.metadata.name}"
    if token.spec.region != name:
        expected = token.spec.region or "none: it is for nodes"
        return Refused("WrongRegion", f"{text} is for another region (expected {expected}, found {name})")
    if region is None and not (token.spec.server and name == GLOBAL_CELL):
        return Refused("WrongRegion", f"region {name} does not exist; next: holdfast region add {name}")
    if token.spec.server and region is not None and not region.spec.servers:
        return Refused("WrongRegion", f"region {name} has no server yet; next: holdfast region token {name}")
    if now_s >= token.expires_at_s:
        return Refused("JoinTokenExpired", f"{text} expired at {seconds_text(token.expires_at_s)}")
    if len(token.status.used) >= token.spec.uses:
        return Refused("JoinTokenUsed", f"{text} has no uses left (limit {token.spec.uses})")
    return None


def _endpoint_writes(region: Region, url: str, others: Sequence[str]) -> Iterator[Write]:
    """A further server is added to those of the region. Otherwise the server is the region's only one."""
    known = tuple(dict.fromkeys((*others, url))) if others else ()
    first = region.spec.endpoint if others and region.spec.endpoint in known else url
    spec = msgspec.structs.replace(region.spec, endpoint=first, endpoints=known)
    if spec != region.spec:
        yield Update(msgspec.structs.replace(region, spec=spec))


def _hosts(asked: RegionJoinRequest) -> tuple[str, ...]:
    """The names of the server certificate: the endpoint's, and the further ones."""
    try:
        parts = urlsplit(asked.endpoint)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port is None or parts.scheme != "https" or parts.path.strip("/"):
        raise BadRequest(f"endpoint {asked.endpoint[:200]}: invalid (expected https://HOST:PORT)")
    hosts = tuple(dict.fromkeys((host, *asked.hosts)))
    if len(hosts) > CELL_HOSTS_MAX:
        raise BadRequest(f"hosts: too many (limit {CELL_HOSTS_MAX}, found {len(hosts)})")
    wrong = next((each for each in hosts if not is_host(each)), "")
    if wrong:
        raise BadRequest(f"host {wrong[:200]}: invalid (expected a DNS name or an IP address)")
    return hosts


class RequestedKeys(msgspec.Struct, frozen=True):
    """The keys of a server's signing requests. `digest` identifies the join."""

    link: RequestedKey | None
    server: RequestedKey
    peer: RequestedKey | None

    @property
    def digest(self) -> str:
        return (self.link or self.peer or self.server).digest


def parse_requests(asked: CellRequests, cell: str) -> RequestedKeys:
    """Raises BadRequest if a request is invalid, or if a link is missing in a region."""
    link = parse_csr(asked.link) if cell != GLOBAL_CELL else None
    return RequestedKeys(link, parse_csr(asked.server), parse_csr(asked.peer) if asked.peer else None)


def _record(region: Region, certificate: RegionCertificate) -> SetStatus:
    return SetStatus(kind="Region", key=region.key, uid=region.uid, blocks={"certificate": certificate})
