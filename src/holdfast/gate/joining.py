"""Nodes join: a token becomes a certificate, and a certificate its successor.

What always holds: the use of a token and the identity it made are one commit, audited under the token's name, before
a certificate leaves; a use is counted once however often the same node asks with the same key; a token that is bound
to no node never takes over a name that has a live identity. Never says more than `Unauthorized` to who has no token.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from itertools import islice

import msgspec

from holdfast.gate.gate import Gate
from holdfast.gate.node_certificates import AskedKey, Certified, NodeAuthority, key_of
from holdfast.gate.principal import NODES, Principal
from holdfast.gate.tokens import digest
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Forbidden, Refused, Unauthorized, Unavailable
from holdfast.model.join import (
    Joined,
    JoinRequest,
    JoinToken,
    JoinUse,
    NodeIdentity,
    NodeIdentitySpec,
    RenewalRequest,
    region_of,
)
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.ownership import JOIN
from holdfast.model.times import seconds_text
from holdfast.model.validation import check_subdomain
from holdfast.model.writes import Create, Delete, SetStatus, Update, Write
from holdfast.runtime import metrics

_TOKEN, _IDENTITY = BY_NAME["JoinToken"], BY_NAME["NodeIdentity"]
MAX_TOKEN_CHARS = 256


class Joining:
    """One per cell. Without an authority nobody can join here, and is told so."""

    def __init__(self, gate: Gate, authority: NodeAuthority | None) -> None:
        self._gate = gate
        self._authority = authority

    def identity(self, node: str) -> NodeIdentity | None:
        found = self._gate.objects.get(_IDENTITY, "", node)
        return found if isinstance(found, NodeIdentity) else None

    async def join(self, asked: JoinRequest, *, request: str = "") -> Joined:
        """Raises Unauthorized for a token nobody made, Forbidden with the reason for one that does not do."""
        authority = self._signing()
        token = await self._token(asked.token, request)
        who = Principal(
            name=f"holdfast:join:{token.metadata.name}", roles=frozenset({JOIN}), region=self._gate.cell,
            credential=f"join-token:{token.metadata.name}",
        )  # fmt: skip
        name_causes = list(check_subdomain("node", asked.node))
        if name_causes:
            raise BadRequest(f"node {asked.node!r}: {name_causes[0].message}")
        key = key_of(asked.csr)
        held = self.identity(asked.node)
        again = _is_again(token, held, asked.node, key.digest)
        refused = None if again else why_not(token, held, asked.node, self._gate.ports.clock.now())
        if refused is not None:
            self._gate.audit.refused(who, "join", "nodes", refused.reason, message=refused.message, request=request)
            metrics.GATE_JOINS.labels(refused.reason).inc()
            raise Forbidden(refused.message, facts={"reason": refused.reason})
        now_s = self._gate.ports.clock.now()
        generation = held.spec.generation if again and held is not None else self._next_generation(held)
        seconds = token.spec.certificate_seconds
        made = authority.certify(key, asked.node, generation, now_s=now_s, seconds=seconds)
        writes = tuple(_joining(token, held, asked.node, key, made, generation, now_s, again=again))
        await self._gate.commit(who, (*writes, *self._old(now_s)), request=request)
        metrics.GATE_JOINS.labels("Joined").inc()
        return Joined(made.certificate, generation, seconds_text(made.expires_s))

    async def renew(self, who: Principal, asked: RenewalRequest, *, request: str = "") -> Joined:
        """A node's own certificate, shown and good, becomes a newer one of the same generation."""
        authority = self._signing()
        held = self.identity(who.node) if NODES in who.groups and who.region == self._gate.cell else None
        if held is None or not held.accepts(who.generation):
            message = f'User "{who.name}" has no certificate that a join gave it here: join with a token'
            self._gate.audit.refused(who, "renew", "nodeidentities", "NotJoined", message=message, request=request)
            raise Forbidden(message, facts={"reason": "NotJoined"})
        key = key_of(asked.csr)
        made = authority.certify(
            key, who.node, who.generation, now_s=self._gate.ports.clock.now(), seconds=held.spec.certificate_seconds
        )
        signer = Principal(
            name=who.name, roles=frozenset({JOIN}), region=who.region, credential=who.credential, groups=who.groups
        )
        await self._gate.commit(signer, [_renewed(held, made)], request=request)
        metrics.GATE_JOINS.labels("Renewed").inc()
        return Joined(made.certificate, who.generation, seconds_text(made.expires_s))

    def _next_generation(self, held: NodeIdentity | None) -> int:
        """Above that of any certificate this name ever had, also when its identity was removed or the store restored:
        revisions only rise, and each join makes one."""
        least = held.spec.generation + 1 if held is not None else 1
        return max(least, self._gate.objects.head(_IDENTITY))

    def _signing(self) -> NodeAuthority:
        if self._authority is None:
            why = "it was started without --node-ca and --node-ca-key"
            raise Unavailable(f"the {self._gate.cell} cell signs no nodes' certificates: {why}")
        return self._authority

    async def _token(self, text: str, request: str) -> JoinToken:
        """The token with this secret, expired or not."""
        match = self._find(digest(text))
        if match is None:
            await self._gate.objects.newest(_TOKEN)  # another server of this cell may have made it just now
            match = self._find(digest(text))
        if match is not None and len(text) <= MAX_TOKEN_CHARS:
            return match
        region = region_of(text[:MAX_TOKEN_CHARS])
        reason = "WrongRegion" if region and region != self._gate.cell else "JoinTokenUnknown"
        self._gate.audit.refused("holdfast:join", "join", "nodes", reason, request=request)
        metrics.GATE_JOINS.labels(reason).inc()
        if reason == "WrongRegion":
            raise Unauthorized(f"the join token is for another region; this is {self._gate.cell}")
        raise Unauthorized("Unauthorized")

    def _old(self, now_s: float) -> Iterator[Delete]:
        """Tokens that ended a while ago go with the next join: nobody else would tidy up."""
        held = (t for t in self._gate.objects.list(_TOKEN)[0] if isinstance(t, JoinToken))
        ended = (t for t in held if now_s >= t.expires_at_s + limits.JOIN_TOKEN_KEPT_S)
        for token in islice(ended, limits.JOIN_TOKENS_SWEPT):
            yield Delete(kind="JoinToken", key=token.key, uid=token.uid)

    def _find(self, wanted: str) -> JoinToken | None:
        """Goes through all of them whichever matches."""
        match: JoinToken | None = None
        for held in self._gate.objects.list(_TOKEN)[0]:
            if isinstance(held, JoinToken) and hmac.compare_digest(held.spec.sha256, wanted):
                match = held
        return match


def why_not(token: JoinToken, held: NodeIdentity | None, node: str, now_s: float) -> Refused | None:
    """Why a token does not let this node join, whose identity so far is `held`."""
    name = token.metadata.name
    if now_s >= token.expires_at_s:
        ended = seconds_text(token.expires_at_s)
        return Refused("JoinTokenExpired", f"join token {name} ended at {ended}; make another")
    if token.spec.node and token.spec.node != node:
        return Refused("WrongNode", f"join token {name} is for node {token.spec.node}, and {node} asked")
    if len(token.status.used) >= token.spec.uses:
        by = ", ".join(use.node for use in token.status.used[-3:])
        return Refused("JoinTokenUsed", f"join token {name} was used {token.spec.uses} times already, by {by}")
    if held is not None and not held.revoked and not token.spec.node:
        message = f"node {node} has an identity; let it join again with a token made for it (--node {node})"
        return Refused("NodeNameTaken", message)
    return None


def _is_again(token: JoinToken, held: NodeIdentity | None, node: str, key: str) -> bool:
    """Whether this is the join that made the identity, asked again because its answer was lost."""
    known = any(use.node == node and use.key == key for use in token.status.used)
    return known and held is not None and not held.revoked and held.spec.key == key


def _joining(  # noqa: PLR0917 - what a join consists of
    token: JoinToken, held: NodeIdentity | None, node: str, key: AskedKey, made: Certified, generation: int,
    now_s: float, *, again: bool,
) -> Iterator[Write]:  # fmt: skip
    if again:
        assert held is not None
        yield _renewed(held, made)
        return
    now = seconds_text(now_s)
    use = JoinUse(node=node, key=key.digest, at=now)
    yield SetStatus(
        kind="JoinToken", key=token.key, uid=token.uid, blocks={"used": (*token.status.used, use)},
        if_revision=token.revision,
    )  # fmt: skip
    spec = NodeIdentitySpec(
        generation=generation, key=key.digest, token=token.metadata.name, joined_at=now, serial=made.serial,
        expires_at=seconds_text(made.expires_s), certificate_seconds=token.spec.certificate_seconds,
        revoked_generation=held.spec.revoked_generation if held is not None else 0,
    )  # fmt: skip
    if held is None:
        yield Create(NodeIdentity(metadata=ObjectMeta(name=node), spec=spec))
    else:
        yield Update(msgspec.structs.replace(held, spec=spec))


def _renewed(held: NodeIdentity, made: Certified) -> Update:
    spec = msgspec.structs.replace(held.spec, serial=made.serial, expires_at=seconds_text(made.expires_s))
    return Update(msgspec.structs.replace(held, spec=spec))
