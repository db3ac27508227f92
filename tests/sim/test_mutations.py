"""Every planted bug is caught by the seed that caught it, and that seed is clean without it."""

from __future__ import annotations

import pytest

from holdfast.sim import runs
from holdfast.sim.mutations import MUTATIONS, planted
from holdfast.sim.planting import catch

SEEDS = range(1, 26)

# Planted and not yet caught by these seeds: the world must become harsher where they hide.
OPEN = {
    "old-attempt-accepted": "the attempt is part of the claim's name, which must not exist either",
    "counted-from-reply": "ten seconds fit into the kill bound and the lead of the watchdog",
    "finished-batch-keeps-grant": "needs a tenant at its limit in two regions after a batch has ended",
    "ordinal-moved-too-early": "needs a move of an ordinal, which only a change of residency or a lost region brings",
    "member-hogs": "needs a batch wider than the GPUs of its region",
}


def test_a_planted_bug_leaves_nothing_behind() -> None:
    from holdfast.fleet import grants
    from holdfast.store.follower import Follower

    before = (Follower.commit, grants.share_out)
    for mutation in MUTATIONS:
        with planted(mutation.name):
            pass
    assert (Follower.commit, grants.share_out) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", [m.name for m in MUTATIONS if m.name not in OPEN])
def test_planted_bugs_are_caught(name: str) -> None:
    runs.quiet()
    caught = catch(name, SEEDS)
    assert caught.seed is not None, f"{name} was not caught in {len(SEEDS)} seeds"
