"""Every planted bug is caught at every change, by a seed that is kept for it.

A change of the code changes what worlds do, so that a kept seed may no longer show its bug: then a few others are
looked at, and only if none of them does something is wrong. That the same worlds are clean without the bug is said by
`test_worlds.py` for the first of them, and for all by the control of `make prove STAGE=planted`.
"""

from __future__ import annotations

import itertools

import pytest

from holdfast.sim import mutation_testing, parallel_runs
from holdfast.sim.mutations import MUTATIONS, find_mutation

KEPT = {
    "residency-ignored": 372, "quota-check-skipped": 1, "capacity-check-skipped": 1, "token-not-checked": 375,
    "freed-before-stop-confirmed": 1, "uid-reused": 1, "proposal-applied-twice": 277, "old-attempt-accepted": 2,
    "finalizer-removed-early": 1, "one-missed-heartbeat-fences": 2, "no-watchdog": 2, "watchdog-late": 2,
    "lease-counted-from-reply": 231, "start-with-fresh-deadline": 3, "takeover-fences-at-once": 2,
    "removed-node-not-noticed": 2, "budget-per-region": 922, "grant-shrink-unacknowledged": 1,
    "grant-acknowledged-early": 1, "grant-lease-renewed-from-cache": 752, "provisional-share-ignored": 161,
    "finished-batch-keeps-grant": 6, "ordinal-in-two-regions": 2, "ordinal-moved-before-release": 2,
    "tenure-wait-skipped": 2, "tenure-ignored": 746, "finished-member-still-planned": 2, "watch-resumes-at-now": 2,
    "compaction-ignored": 503, "audit-after-commit": 1, "observed-generation-ahead": 1, "release-repeated": 922,
    "release-by-name": 922, "override-by-other-clock": 2, "override-by-wall-clock": 1100, "status-touches-spec": 1,
    "stale-status-overwrites": 1, "watch-crosses-tenants": 1, "slot-consumed-twice": 697, "retry-without-backoff": 1,
    "quota-wakeup-lost": 1, "no-wakeups": 1, "stale-list-accepted": 2, "quota-leaked": 1, "quota-leaked-on-refusal": 1,
    "bind-retried-blindly": 526, "lease-revoked-in-finally": 1, "policy-read-twice": 274,
    "evicted-without-destination": 1, "autoscaler-ignores-pending": 1112, "unknown-field-refused": 4, "unknown-field-stops-cell": 4,
}  # fmt: skip
OTHERS = 3
"""In so many seeds a bug is looked for beside the one that is kept."""


def test_every_bug_has_a_seed() -> None:
    wanted = {mutation.name for mutation in MUTATIONS if not mutation.equivalent}
    missing = wanted - KEPT.keys()
    assert not missing, (
        f"next: python -m holdfast.sim --mutation {','.join(sorted(missing))} --seeds 25, then keep the seeds"
    )
    assert KEPT.keys() <= {mutation.name for mutation in MUTATIONS}, "a bug that is not planted any more"


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_a_planted_bug_is_caught_by_its_seed(name: str) -> None:
    parallel_runs.silence_logs()
    others = itertools.islice(mutation_testing.seeds_for(find_mutation(name), first=1, seeds=OTHERS), OTHERS + 1)
    seeds = dict.fromkeys((KEPT[name], *others))
    for tried in (mutation_testing.run_trial(seed, name) for seed in seeds):
        assert not tried.mutation_error, f"the mutation {name} itself failed: {tried.mutation_error}"
        if tried.invariant:
            return
    pytest.fail(
        f"{name} was not caught in seeds {', '.join(map(str, seeds))}, and {KEPT[name]} caught it before; "
        f"next: python -m holdfast.sim --mutation {name} --seeds 25"
    )
