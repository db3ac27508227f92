"""Every mutation is caught by its recorded seed.

A code change may change a run so that the recorded seed no longer catches the mutation. Then a few further seeds are
tried; the test fails only if none catches it. That the same seeds pass without mutation is checked by
`test_simulations.py` for the first seeds and by the control runs of `make prove STAGE=mutations` for all.
"""

from __future__ import annotations

import itertools

import pytest

from holdfast.sim import mutation_testing, parallel_runs
from holdfast.sim.mutations import MUTATIONS, find_mutation

RECORDED_SEEDS = {
    "maintenance-never-begins": 329,
    "maintenance-drain-kept": 23,
    "cron-decided-by-clock": 45,
    "cron-miss-unsaid": 45,
    "cron-tick-after-run": 45,
    "array-index-run-again": 67,
    "array-index-in-two-regions": 67,
    "volume-node-not-compared": 513,
    "volume-made-again": 513,
    "volume-space-not-counted": 68,
    "volume-deleted-without-order": 513,
    "residency-ignored": 706,
    "affinity-ignored": 6,
    "taints-ignored": 126,
    "taint-evicts-beyond-budget": 2207,
    "quota-check-skipped": 1,
    "capacity-check-skipped": 1,
    "token-not-checked": 1285,
    "freed-before-stop-confirmed": 1,
    "uid-reused": 1,
    "proposal-applied-twice": 2,
    "old-attempt-accepted": 7,
    "finalizer-removed-early": 1,
    "one-missed-heartbeat-fences": 2,
    "no-watchdog": 2,
    "watchdog-late": 2,
    "lease-counted-from-reply": 231,
    "start-with-fresh-deadline": 3,
    "takeover-fences-at-once": 2,
    "removed-node-not-noticed": 2,
    "budget-per-region": 922,
    "grant-shrink-unacknowledged": 1,
    "grant-acknowledged-early": 1,
    "grant-lease-renewed-from-cache": 752,
    "provisional-share-ignored": 2240,
    "finished-batch-keeps-grant": 85,
    "ordinal-in-two-regions": 2,
    "ordinal-moved-before-release": 2,
    "tenure-wait-skipped": 2,
    "tenure-ignored": 746,
    "finished-member-still-planned": 2,
    "watch-resumes-at-now": 2,
    "compaction-ignored": 2040,
    "audit-after-commit": 1,
    "late-report-accepted": 448,
    "fencing-token-repeats": 5,
    "observed-generation-ahead": 1,
    "release-repeated": 706,
    "release-by-name": 706,
    "override-by-other-clock": 2,
    "override-by-wall-clock": 5115,
    "status-touches-spec": 1,
    "stale-status-overwrites": 1,
    "watch-crosses-tenants": 1,
    "slot-consumed-twice": 2699,
    "retry-without-backoff": 1,
    "quota-wakeup-lost": 1,
    "no-wakeups": 1,
    "stale-list-accepted": 2,
    "quota-leaked": 1,
    "quota-leaked-on-refusal": 1,
    "moved-without-gain": 55,
    "bind-retried-blindly": 601,
    "lease-revoked-in-finally": 1,
    "policy-read-twice": 274,
    "evicted-without-destination": 1,
    "autoscaler-ignores-pending": 1671,
    "bind-ignores-node-change": 58,
    "grant-returned-while-over-counted": 28,
    "failback-trusts-stale-serving": 106,
    "unknown-field-refused": 4,
    "unknown-field-stops-cell": 4,
    "absence-deletes": 161,
    "missing-binding-stops": 563,
    "other-cell-obeyed": 563,
    "lost-claims-stay": 764,
    "operators-delete-records": 831,
}
FURTHER_SEEDS = 3
"""Seeds tried in addition to the recorded one."""


def test_every_mutation_has_a_recorded_seed() -> None:
    expected = {mutation.name for mutation in MUTATIONS if not mutation.equivalent}
    missing = expected - RECORDED_SEEDS.keys()
    assert not missing, (
        f"next: python -m holdfast.sim --mutation {','.join(sorted(missing))} --seeds 25, then record the seeds here"
    )
    assert RECORDED_SEEDS.keys() <= {mutation.name for mutation in MUTATIONS}, "a recorded mutation no longer exists"


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED_SEEDS)
def test_mutation_is_caught_by_its_recorded_seed(name: str) -> None:
    parallel_runs.silence_logs()
    others = itertools.islice(
        mutation_testing.seeds_for(find_mutation(name), first=1, seeds=FURTHER_SEEDS), FURTHER_SEEDS + 1
    )
    seeds = dict.fromkeys((RECORDED_SEEDS[name], *others))
    for result in (mutation_testing.run_trial(seed, name) for seed in seeds):
        assert not result.mutation_error, f"the mutation {name} itself failed: {result.mutation_error}"
        if result.invariant:
            return
    pytest.fail(
        f"{name}: not caught by seeds {', '.join(map(str, seeds))} (recorded: {RECORDED_SEEDS[name]}); "
        f"next: python -m holdfast.sim --mutation {name} --seeds 25"
    )
