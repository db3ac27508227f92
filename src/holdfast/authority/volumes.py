"""Persistent volumes of a placement: the Volumes that a replica uses on a node, and those that its bind creates.

A Volume is created in the transaction that binds its first replica, and compared in every later bind. So a replica is
never bound away from its data, a volume is never on two nodes, and a volume that is being deleted gets no new user.
"""

from __future__ import annotations

import msgspec

from holdfast.authority.claims import VolumeHold, hold_of
from holdfast.authority.records import put_object
from holdfast.authority.state import VOLUME, AuthorityState
from holdfast.model.assignment import Purpose
from holdfast.model.errors import Refused
from holdfast.model.labels import LABEL_WORKLOAD
from holdfast.model.meta import ObjectMeta
from holdfast.model.ownership import VOLUME_DATA_FINALIZER
from holdfast.model.quantity import STORAGE, Amounts, amounts
from holdfast.model.reasons import Reason
from holdfast.model.replica import Replica
from holdfast.model.template import requests, template_claims
from holdfast.model.template_volume import ClaimVolume
from holdfast.model.volume import BoundVolume, Volume, VolumeSpec, volume_name, volume_refusal
from holdfast.store.contract import Put


class VolumeUse(msgspec.Struct, frozen=True):
    """The volumes of one placement: those in its Binding, and the ones to create with it."""

    bound: tuple[BoundVolume, ...] = ()
    created: tuple[Put, ...] = ()
    holds: tuple[VolumeHold, ...] = ()
    compares: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(volume.name for volume in self.bound)


NO_VOLUMES = VolumeUse()


def requested_amounts(replica: Replica, use: VolumeUse) -> Amounts:
    """Resources of a new claim. Space that a Volume holds already is not requested again."""
    template = replica.spec.template
    if not use.bound:
        return requests(template)
    wanted = amounts(template.resources)
    for hold in use.holds:
        for name, amount in hold.amounts.items():
            wanted[name] = wanted.get(name, 0) + amount
    return wanted


def without_volumes(claimed: Amounts, use: VolumeUse) -> Amounts:
    """The resources of the claim itself: its Volumes hold their space."""
    return {name: amount for name, amount in claimed.items() if name != STORAGE} if use.holds else claimed


def plan_volumes(state: AuthorityState, replica: Replica, node: str, created: str) -> VolumeUse | Refused:
    """The volumes that the replica uses on the node, or why it may not use the node."""
    claims = template_claims(replica.spec.template)
    if not claims:
        return NO_VOLUMES
    namespace, compares = replica.metadata.namespace, dict[str, int]()
    bound: list[BoundVolume] = []
    new: list[Put] = []
    for claim in claims:
        name = volume_name(claim.name, replica.metadata.name)
        volume: Volume | None = state.get(VOLUME, namespace, name)
        if volume is None:
            put = _new_volume(state, replica, claim, node, created)
            new.append(put)
            volume = put.attached
            compares[put.key] = 0
        else:
            refused = _refusal(state, volume, node)
            if refused is not None:
                return refused
            compares[VOLUME.store_key(namespace, name)] = volume.revision
        bound.append(BoundVolume(claim.name, name, volume.uid, volume.spec.size, new=volume.status.data is None))
    return VolumeUse(tuple(bound), tuple(new), tuple(hold_of(put.attached) for put in new), compares)


def new_volume_refusal(replica: Replica) -> Refused:
    """A Volume exists only together with a bind, so that none is left by a reservation that ends unused."""
    message = f"replica {replica.key}: {Reason.VOLUME_NOT_BOUND.sentence}"
    return Refused(Reason.VOLUME_NOT_BOUND, message, {"replica": str(replica.key)})


def _refusal(state: AuthorityState, volume: Volume, node: str) -> Refused | None:
    held_on, name = volume.spec.node, f"{volume.metadata.namespace}/{volume.metadata.name}"
    reason = volume_refusal(node, held_on, terminating=volume.metadata.terminating)
    if reason is not None:
        message = f"volume {name}: its data is on node {held_on}, not on {node}"
        if reason is Reason.VOLUME_TERMINATING:
            message = f"volume {name}: it is being deleted"
        return Refused(reason, message, {"volume": name, "node": node, "heldOn": held_on})
    user = state.ledger.user_of_volume(volume.metadata.namespace, volume.metadata.name, held_on)
    if user is None:
        return None
    return Refused(
        Reason.VOLUME_IN_USE,
        f"volume {name}: claim {user.key} on node {user.node} still uses it; next: wait for its release",
        {"volume": name, "node": node, "winner": user.facts()},
    )


def _new_volume(state: AuthorityState, replica: Replica, claim: ClaimVolume, node: str, created: str) -> Put:
    meta = ObjectMeta(
        name=volume_name(claim.name, replica.metadata.name),
        namespace=replica.metadata.namespace,
        uid=state.ports.ids.uid(),
        generation=1,
        creation_timestamp=created,
        labels={LABEL_WORKLOAD: replica.spec.workload, "holdfast.dev/node": node},
        finalizers=(VOLUME_DATA_FINALIZER,),
    )
    spec = VolumeSpec(
        claim=claim.name,
        workload=replica.spec.workload,
        replica=replica.metadata.name,
        node=node,
        size=claim.size,
        reclaim_policy=claim.reclaim_policy,
        recovery=replica.spec.purpose is Purpose.RECOVERY and not replica.spec.reclaimable,
        claim_uid=claim.uid,
    )
    return put_object(VOLUME, Volume(meta, spec))
