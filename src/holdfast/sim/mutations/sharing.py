"""Mistakes with grants, ordinals and the queue."""

from __future__ import annotations

from typing import Any

from holdfast.fleet import assign, grants, ordinals
from holdfast.link import grant_sync
from holdfast.runtime.proposals import Proposals


def shrink_unacknowledged(patch: Any) -> None:
    """What a region still enforces is not counted: a smaller limit frees at once."""
    share_out = grants.__dict__["share_out"]

    def blind(hard: Any, caps: Any, wanted: Any, current: Any, enforced: Any, *more: Any, **named: Any) -> Any:
        return share_out(hard, caps, wanted, current, {}, *more, **named)

    patch.set(grants, "share_out", blind)


def acknowledged_too_early(patch: Any) -> None:
    """A region acknowledges a smaller limit that it does not enforce yet."""
    copy_writes = grant_sync.__dict__["copy_writes"]

    def slow(key: Any, grants_: Any, here: Any, region: str, now: float) -> Any:
        return () if int(now) % 40 < 30 else copy_writes(key, grants_, here, region, now)

    acknowledgement = grant_sync.__dict__["acknowledgement"]

    def early(key: Any, grants_: Any, here: Any, region: str, now: float) -> Any:
        import msgspec

        for write in acknowledgement(key, grants_, here, region, now):
            grant = next(g for g in grants_.list(type_of_grant(), key.namespace) if g.uid == write.uid)
            blocks = {**write.blocks, "limit": dict(grant.spec.limit), "acknowledgedEpoch": grant.spec.epoch}
            yield msgspec.structs.replace(write, blocks=blocks)

    patch.set(grant_sync, "copy_writes", slow)
    patch.set(grant_sync, "acknowledgement", early)


def type_of_grant() -> Any:
    from holdfast.model.quota import Grant

    return Grant


def finished_batch_keeps_grant(patch: Any) -> None:
    patch.set(grants, "_still_wanted", lambda assignment: assignment.spec.replicas)


def ordinal_in_two_regions(patch: Any) -> None:
    def each_its_own(shares: Any, stored: Any) -> Any:
        return {region: tuple(range(share)) for region, share in shares.items()}

    patch.set(assign, "share_ordinals", each_its_own)


def ordinal_moved_too_early(patch: Any) -> None:
    """An ordinal may go elsewhere as soon as its Assignment says so, not when its region has let go."""
    patch.set(ordinals, "let_go", lambda *_: True)


def member_hogs(patch: Any) -> None:
    """A member that needs no place any more keeps being planned before its mates."""
    patch.set(Proposals, "_leave_out", lambda self, waiting, member: waiting.gone.setdefault(member.uid, None))


TABLE = (
    (
        "shrink-unacknowledged",
        "a shrunk grant frees its quota before the region has acknowledged",
        shrink_unacknowledged,
    ),
    ("acknowledged-too-early", "a region acknowledges a limit that it does not enforce yet", acknowledged_too_early),
    ("finished-batch-keeps-grant", "batch work that is done still counts as demand", finished_batch_keeps_grant),
    ("ordinal-in-two-regions", "each region numbers exclusive replicas by itself", ordinal_in_two_regions),
    ("ordinal-moved-too-early", "an ordinal moves before its region has let go of it", ordinal_moved_too_early),
    ("member-hogs", "a finished member of a request keeps taking its mates' place", member_hogs),
)
