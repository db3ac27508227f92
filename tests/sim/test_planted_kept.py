"""Every planted bug is caught at every change, by a seed that is kept for it.

A change of the code changes what worlds do, so that a kept seed may no longer show its bug: then a few others are
looked at, and only if none of them does something is wrong. That the same worlds are clean without the bug is said by
`test_worlds.py` for the first of them, and for all by the control of `make prove STAGE=planted`.
"""

from __future__ import annotations

import itertools

import pytest

from holdfast.sim import planting, runs
from holdfast.sim.mutations import MUTATIONS, find

KEPT = {
    "residency-ignored": 372, "quota-left-out": 1, "ledger-left-out": 1, "token-not-checked": 375,
    "freed-without-proof": 1, "identity-reused": 1, "claimed-twice": 277, "old-attempt-accepted": 2,
    "finalizer-removed-early": 1, "heartbeat-trusted": 2, "no-watchdog": 2, "watchdog-late": 2,
    "counted-from-reply": 231, "start-with-fresh-deadline": 3, "takeover-fences-at-once": 2,
    "removed-node-unnoticed": 2, "budget-of-each-region": 922, "shrink-unacknowledged": 1,
    "acknowledged-too-early": 1, "lease-from-the-cache": 752, "provisional-without-part": 161,
    "finished-batch-keeps-grant": 6, "ordinal-in-two-regions": 2, "ordinal-moved-too-early": 2,
    "tenure-not-waited-for": 2, "tenure-ignored": 746, "member-hogs": 2, "watch-resumes-at-now": 2,
    "compaction-ignored": 503, "audit-after-commit": 1, "observed-too-much": 1, "release-repeated": 922,
    "release-by-name": 922, "override-by-other-clock": 2, "override-by-wall-clock": 1100, "status-touches-spec": 1,
    "status-of-the-past": 1, "watch-crosses-tenants": 1, "drawn-twice": 697, "retried-without-pause": 1,
    "wake-up-lost": 1, "nobody-woken": 1, "older-list-taken": 2, "quota-leaked": 1, "quota-leaked-on-refusal": 1,
    "bind-retried-blindly": 526, "lease-revoked-in-finally": 1, "policy-read-twice": 274,
    "evicted-without-destination": 1, "pending-ignored": 1112, "unknown-refused": 4, "unknown-stops-the-cell": 4,
}  # fmt: skip
OTHERS = 3
"""In so many seeds a bug is looked for beside the one that is kept."""


def test_every_bug_has_a_seed() -> None:
    wanted = {mutation.name for mutation in MUTATIONS if not mutation.equivalent}
    missing = wanted - KEPT.keys()
    assert not missing, (
        f"next: python -m holdfast.sim --plant {','.join(sorted(missing))} --seeds 25, then keep the seeds"
    )
    assert KEPT.keys() <= {mutation.name for mutation in MUTATIONS}, "a bug that is not planted any more"


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_a_planted_bug_is_caught_by_its_seed(name: str) -> None:
    runs.quiet()
    others = itertools.islice(planting.seeds_for(find(name), first=1, seeds=OTHERS), OTHERS + 1)
    seeds = dict.fromkeys((KEPT[name], *others))
    for tried in (planting.try_out(seed, name) for seed in seeds):
        assert not tried.tripped, f"the mutation {name} itself failed: {tried.tripped}"
        if tried.by:
            return
    pytest.fail(
        f"{name} was not caught in seeds {', '.join(map(str, seeds))}, and {KEPT[name]} caught it before; "
        f"next: python -m holdfast.sim --plant {name} --seeds 25"
    )
