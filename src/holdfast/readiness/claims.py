"""The eight claims of the design and the evidence that each needs. Data only.

- Every claim needs evidence that runs quickly and evidence of more than one kind.
- Every invariant of the simulation belongs to at least one claim, so that a violation always makes a claim fall.
- A risk is what the evidence cannot exclude. It is printed beside the claim, whether the claim holds or not.
"""

from __future__ import annotations

import msgspec

from holdfast.readiness.evidence import Bound, EvidenceKind, Need

QUICK_SEEDS, FULL_SEEDS = "1-10", "11-60"
"""Simulated seeds of a quick review, and those that a full review adds. Ten take about ten seconds on two cores."""
RECOVERY_S_MAX = 300.0
"""The promise of five minutes."""
INCIDENT_QUESTIONS = 6


class DesignClaim(msgspec.Struct, frozen=True):
    """A claim of the design. A violation of one of its `invariants` in a simulation or scenario contradicts it. `risks`
    remain although the evidence supports it."""

    name: str
    title: str
    invariants: tuple[str, ...]
    needs: tuple[Need, ...]
    risks: tuple[str, ...]


def _test(name: str, *, quick: bool = True) -> Need:
    return Need(EvidenceKind.TEST, name, quick=quick)


def _scenario(name: str, *, quick: bool = False) -> Need:
    return Need(EvidenceKind.SCENARIO, name, quick=quick)


def _mutation(name: str, *, quick: bool = False) -> Need:
    return Need(EvidenceKind.MUTATION, name, quick=quick)


def _drill(name: str, **bounds: Bound) -> Need:
    return Need(EvidenceKind.DRILL, name, bounds=bounds)


SEEDS = (Need(EvidenceKind.SIMULATIONS, QUICK_SEEDS, quick=True), Need(EvidenceKind.SIMULATIONS, FULL_SEEDS))


CLAIMS: tuple[DesignClaim, ...] = (
    DesignClaim(
        "five-minute-recovery",
        "Critical workloads recover within five minutes of the loss of a region",
        ("convergence", "failback", "load", "oscillation", "wakeup"),
        (
            _test("tests/fleet/test_recover.py"),
            _test("tests/fleet/test_backing.py"),
            *SEEDS,
            _scenario("critical-region-lost", quick=True),
            _scenario("recovery-crowded"),
            _mutation("slot-consumed-twice"),
            _mutation("failback-trusts-stale-serving"),
            _drill("region-loss", secondsToMinServing=Bound(most=RECOVERY_S_MAX)),
            Need(
                EvidenceKind.BENCHMARK,
                "recovery",
                bounds={"recovered_seconds": Bound(most=RECOVERY_S_MAX), "short": Bound(most=0)},
            ),
            Need(EvidenceKind.ALERTS, "tests/fleet/test_alerts.py", quick=True),
        ),
        (
            "Objectives cover the loss of one region. A second loss before slots are free again is not covered.",
            "Work that needs longer to start than its deadline allows is late; the platform cannot shorten it.",
            "The drill and the benchmark run on one machine: real networks between regions are slower.",
        ),
    ),
    DesignClaim(
        "unique-binding",
        "A replica has at most one live binding, and exclusive work runs at most once at a time",
        ("S1", "S2", "S7", "array", "identity", "ticks", "volumes"),
        (
            _test("tests/authority/test_races.py"),
            _test("tests/authority/test_walk.py"),
            *SEEDS,
            _scenario("lost-answers", quick=True),
            _scenario("duplicate-reservation-race"),
            _scenario("cron-and-region-loss"),
            _scenario("array-loses-region"),
            _scenario("volumes-stay"),
            _mutation("old-attempt-accepted", quick=True),
            _mutation("proposal-applied-twice"),
            _mutation("bind-retried-blindly"),
            _mutation("volume-node-not-compared"),
            _mutation("no-watchdog"),
            _drill("timeout-after-commit"),
            _drill("leader-restart"),
        ),
        (
            "A clock that drifts by more than 1 % breaks leases, and with them exclusive work.",
            "A lost region behind a partition keeps serving its non-exclusive work.",
        ),
    ),
    DesignClaim(
        "tenant-isolation",
        "A tenant cannot use more than its quota, or take capacity that is protected for another",
        ("S3", "preemption", "protection", "tenancy"),
        (
            _test("tests/fleet/test_grants_partitioned.py"),
            _test("tests/gate/test_authorize.py"),
            *SEEDS,
            _scenario("cut-off-provisional"),
            _mutation("quota-check-skipped", quick=True),
            _mutation("grant-shrink-unacknowledged"),
            _mutation("watch-crosses-tenants"),
            _drill("emergency-quota"),
        ),
        (
            "Queues are fair inside each region, not across regions at any moment.",
            "Tasks of one node share its kernel; isolation between them is that of the driver.",
        ),
    ),
    DesignClaim(
        "autoscaling",
        "Autoscaling does not amplify placement lag: no scale-up while replicas are pending or not ready",
        ("scaling",),
        (
            _test("tests/fleet/test_autoscale.py"),
            *SEEDS,
            _scenario("autoscaler-under-low-readiness", quick=True),
            _mutation("autoscaler-ignores-pending"),
            _drill("autoscaler"),
        ),
        ("Load metrics are pushed by users. Wrong metrics scale within minReplicas and maxReplicas.",),
    ),
    DesignClaim(
        "state-aware-repair",
        "Rollback and repair know the state: each acts once, on what is there, and nothing is left behind",
        ("S4", "amnesia", "budget", "chain", "finalizer", "leak", "observedGeneration", "rebalance", "skew"),
        (
            _test("tests/fleet/test_rollout.py"),
            _test("tests/controllers/test_repair_killed.py"),
            _test("tests/gate/test_deletion_ownership.py"),
            *SEEDS,
            _scenario("rollback-race", quick=True),
            _scenario("repair-in-incident"),
            _mutation("finalizer-removed-early", quick=True),
            _mutation("release-repeated"),
            _drill("policy-rollback"),
        ),
        ("A restored store loses the writes after its backup; regions hold their work until an operator decides.",),
    ),
    DesignClaim(
        "safe-operators",
        "Operators can act safely: overrides are scoped, audited, and end on time; every writer has its own fields",
        ("S6", "S8", "maintenance"),
        (
            _test("tests/fleet/test_overrides.py"),
            _test("tests/fleet/test_maintenance.py"),
            _test("tests/link/test_override_expiry.py"),
            *SEEDS,
            _scenario("override-expires", quick=True),
            _scenario("maintenance-and-region-loss"),
            _mutation("audit-after-commit", quick=True),
            _mutation("override-by-other-clock"),
            _drill("override-expires"),
        ),
        ("A break-glass override in a cut-off region is reviewed only after the region is connected again.",),
    ),
    DesignClaim(
        "debuggable-decisions",
        "Every decision can be explained and repeated from recorded data",
        ("S10", "reason"),
        (
            _test("tests/insight/test_replay.py::test_150_decisions_of_busy_region_replay_identically"),
            _test("tests/insight/test_decision_matrix.py"),
            _test("tests/drills/test_incident_questions.py"),
            *SEEDS,
            _mutation("policy-read-twice"),
            _drill("region-loss", questionsAnswered=Bound(least=INCIDENT_QUESTIONS)),
        ),
        ("A decision whose inputs were compacted is not repeatable; its record and reasons remain.",),
    ),
    DesignClaim(
        "coordination-boundaries",
        "What needs strong coordination has it, and what works on hints or budgets stays safe without it",
        ("S5", "S9"),
        (
            _test("tests/authority/test_concurrency.py"),
            _test("tests/tidy/test_purity.py"),
            *SEEDS,
            _scenario("late-commits", quick=True),
            _scenario("timeout-at-every-commit"),
            _mutation("token-not-checked"),
            _mutation("watch-resumes-at-now", quick=True),
            _drill("stale-cache"),
            _drill("global-hang"),
        ),
        (
            "While the global cell is lost there is no new quota and no recovery between regions.",
            "Linearizability of a region on etcd is tested in CI, not in this review.",
        ),
    ),
)


def all_needs(*, quick: bool = False) -> tuple[Need, ...]:
    """The evidence of all claims, each piece once."""
    found = {need.title: need for claim in CLAIMS for need in claim.needs if need.quick or not quick}
    return tuple(found.values())
