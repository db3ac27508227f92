"""Region join: the global cell exchanges a join token for the certificates of a region's cell, and renews them.

- A token names its region and is used once. The same keys repeat the same join, so a lost answer is asked for again.
- The use of the token, the region's endpoint and its certificate are one audited commit before the answer.
- A region gets no server certificate for a name of another cell, unless an operator put the name into the token.
- A renewal needs the region's valid link certificate. It keeps the names of the join.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from holdfast.foundation import metrics
from holdfast.gate.gate import Gate
from holdfast.identity.cell_certificates import LOCAL_HOSTS, CellCertificateAuthority
from holdfast.identity.node_certificates import RequestedKey, parse_csr
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
from holdfast.model.ownership import JOIN
from holdfast.model.principal import REGIONS, Principal
from holdfast.model.region import Region, RegionCertificate
from holdfast.model.times import seconds_text
from holdfast.model.writes import SetStatus, Update, Write

_TOKEN, _REGION = BY_NAME["JoinToken"], BY_NAME["Region"]


class RegionJoinService:
    """One in the global cell. Without the CA's key it refuses to join regions."""

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
        region = self._gate.objects.get(_REGION, "", asked.region)
        keys = _parse_requests(asked.requests)
        hosts = _hosts(asked)
        again = any(use.node == asked.region and use.key == keys[0].digest for use in token.status.used)
        now_s = self._gate.ports.clock.now()
        refused = region_join_refusal(token, region if isinstance(region, Region) else None, asked.region, now_s)
        if again and refused is not None and refused.reason in ("JoinTokenUsed", "JoinTokenExpired"):
            refused = None
        refused = refused or self._taken_host(token, asked.region, hosts)
        if refused is not None or not isinstance(region, Region):
            refused = refused or Refused("WrongRegion", f"region {asked.region} does not exist")
            self._gate.audit.record_refusal(
                who, "join", "regions", refused.reason, message=refused.message, request=request
            )
            metrics.GATE_JOINS.labels(refused.reason).inc()
            raise Forbidden(refused.message, facts={"reason": refused.reason})
        writes: list[Write] = []
        if not again:
            use = JoinUse(node=asked.region, key=keys[0].digest, at=seconds_text(now_s))
            blocks = {"used": (*token.status.used, use)}
            writes.append(
                SetStatus(kind="JoinToken", key=token.key, uid=token.uid, blocks=blocks, if_revision=token.revision)
            )
        if region.spec.endpoint != asked.endpoint:
            spec = msgspec.structs.replace(region.spec, endpoint=asked.endpoint)
            writes.append(Update(msgspec.structs.replace(region, spec=spec)))
        made, certificate = self._sign(authority, asked.region, keys, hosts, now_s)
        writes.append(_record(region, certificate))
        await self._gate.commit(who, writes, request=request)
        metrics.GATE_JOINS.labels("RegionJoined").inc()
        return made

    async def renew(self, who: Principal, asked: CellRequests, *, request: str = "") -> RegionJoinResponse:
        """New certificates for the region that shows a valid link certificate."""
        authority = self._require_authority()
        region = self._gate.objects.get(_REGION, "", who.region) if REGIONS in who.groups and who.region else None
        if not isinstance(region, Region) or region.status.certificate is None:
            message = f'User "{who.name}" did not join as a region; next: holdfast region add, then init region --join'
            self._gate.audit.record_refusal(who, "renew", "regions", "NotJoined", message=message, request=request)
            raise Forbidden(message, facts={"reason": "NotJoined"})
        keys = _parse_requests(asked)
        made, certificate = self._sign(
            authority, who.region, keys, region.status.certificate.hosts, self._gate.ports.clock.now()
        )
        signer = msgspec.structs.replace(who, roles=frozenset({JOIN}))
        await self._gate.commit(signer, [_record(region, certificate)], request=request)
        metrics.GATE_JOINS.labels("RegionRenewed").inc()
        return made

    def _sign(
        self,
        authority: CellCertificateAuthority,
        region: str,
        keys: tuple[RequestedKey, RequestedKey],
        hosts: Sequence[str],
        now_s: float,
    ) -> tuple[RegionJoinResponse, RegionCertificate]:
        link = authority.sign(keys[0], f"holdfast:region:{region}", (REGIONS,), now_s=now_s)
        names = (*hosts, *(host for host in LOCAL_HOSTS if host not in hosts))
        server = authority.sign(keys[1], f"holdfast-cell-{region}", hosts=names, now_s=now_s)
        expires = seconds_text(min(link.expires_s, server.expires_s))
        made = RegionJoinResponse(
            link=link.certificate, server=server.certificate, ca=authority.bundle, expires_at=expires
        )
        return made, RegionCertificate(
            serial=link.serial, key=keys[0].digest, expires_at=expires, issuer=authority.fingerprint, hosts=tuple(hosts)
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
        if host in self._own_hosts:
            return "the global cell"
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
    """Why the token does not let this region join; None if it does."""
    text = f"join token {token.metadata.name}"
    if token.spec.region != name:
        expected = token.spec.region or "none: it is for nodes"
        return Refused("WrongRegion", f"{text} is for another region (expected {expected}, found {name})")
    if region is None:
        return Refused("WrongRegion", f"region {name} does not exist; next: holdfast region add {name}")
    if now_s >= token.expires_at_s:
        return Refused("JoinTokenExpired", f"{text} expired at {seconds_text(token.expires_at_s)}")
    if len(token.status.used) >= token.spec.uses:
        return Refused("JoinTokenUsed", f"{text} has no uses left (limit {token.spec.uses})")
    return None


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


def _parse_requests(asked: CellRequests) -> tuple[RequestedKey, RequestedKey]:
    return parse_csr(asked.link), parse_csr(asked.server)


def _record(region: Region, certificate: RegionCertificate) -> SetStatus:
    return SetStatus(kind="Region", key=region.key, uid=region.uid, blocks={"certificate": certificate})
