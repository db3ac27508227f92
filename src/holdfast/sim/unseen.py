"""Reasons that no simulated world gives, each with why it cannot, and the test that sees it given.

Whatever is neither seen nor listed here is a gap, and `make sim` says so. `tests/sim/test_coverage.py` holds the table
to what exists.
"""

from __future__ import annotations

from typing import NamedTuple


class Elsewhere(NamedTuple):
    """`test` is written as pytest takes it: the file and the function."""

    why: str
    test: str

    def __str__(self) -> str:
        return f"{self.why}: {self.test}"


ELSEWHERE: dict[str, Elsewhere] = {
    "Confined": Elsewhere(
        "needs a kernel's control groups", "tests/agent/test_words.py::test_a_node_says_whether_work_is_confined"
    ),
    "WeaklyConfined": Elsewhere(
        "needs a kernel without control groups", "tests/agent/test_words.py::test_a_node_says_whether_work_is_confined"
    ),
    "BackingOff": Elsewhere(
        "simulated work always ends for a reason",
        "tests/agent/test_words.py::test_work_that_ended_without_a_reason_is_backing_off",
    ),
    "GuardBreached": Elsewhere(
        "needs a canary that does worse by its own figures, over minutes",
        "tests/fleet/test_policy_guard.py::test_a_revision_that_does_badly_is_taken_back_and_the_sequence_still_rises",
    ),
    "Rejoining": Elsewhere(
        "needs a cell that was restored from a backup",
        "tests/fleet/test_rejoin.py::test_a_share_that_moved_since_the_backup_is_not_given_twice",
    ),
    "NotLeader": Elsewhere(
        "a simulated cell is one process, and asks itself only while it leads",
        "tests/authority/test_release.py::test_nothing_is_accepted_before_start_after_stop_or_on_a_stale_token",
    ),
    "NoNodes": Elsewhere(
        "every simulated region has nodes",
        "tests/flow/test_filters.py::test_the_histogram_names_nodes_needs_and_the_nearest_miss",
    ),
    "IntentMismatch": Elsewhere(
        "one scheduler per region never proposes one intent with two payloads",
        "tests/authority/test_reserve.py::test_repeating_an_intent_finds_the_first_claim",
    ),
    "VictimNotAllowed": Elsewhere(
        "the planner weighs what the authority judges; it takes a mate that fails in the moment between",
        "tests/flow/test_preemption.py::test_a_used_up_budget_refuses_the_nomination_and_holds_nothing",
    ),
    "TemplateChanged": Elsewhere(
        "a replica's template never changes; only a proposal made up by hand names another",
        "tests/authority/test_reserve.py::test_replica_gone_terminating_changed_and_stale",
    ),
    "ResidencyViolated": Elsewhere(
        "work is assigned only to regions whose tags allow it, and nobody changes those of a simulated region",
        "tests/authority/test_reserve.py::test_placement_rules_hold_at_commit",
    ),
    "FinalizerStuck": Elsewhere(
        "takes an hour, and worlds last minutes",
        "tests/flow/test_finalizers.py::test_every_kind_is_looked_at_and_told_with_whom_to_ask",
    ),
    "NodeTerminating": Elsewhere(
        "nobody puts a finalizer on a node, so that one which is deleted is gone at once",
        "tests/flow/test_explain.py::test_each_reason_of_the_planner_is_explained",
    ),
    "DeviceTaken": Elsewhere(
        "the only scheduler of a region counts what it has proposed itself; it takes another to be late for a device",
        "tests/authority/test_races.py::test_32_clients_race_for_one_gpu",
    ),
    "ReservationMissing": Elsewhere(
        "the scheduler has its places reserved and bound in one call; a client that binds by itself may be too late",
        "tests/authority/test_release.py::test_a_reservation_expires",
    ),
    "ProvisionalEnded": Elsewhere(
        "provisional work runs for ten minutes, and things go wrong in a world for less",
        "tests/flow/test_retreat.py::test_provisional_work_goes_when_it_is_not_confirmed",
    ),
    "ProvisionalWithdrawn": Elsewhere(
        "a region that is cut off gets no new work, so that what it placed by itself fits its grant when it is back",
        "tests/flow/test_retreat.py::test_provisional_work_goes_when_it_is_not_confirmed",
    ),
}
