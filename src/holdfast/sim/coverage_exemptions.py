"""Reasons that simulations cannot produce, each with the cause and the test that produces it.

`make sim` lists reasons that were neither produced nor exempted. `tests/sim/test_coverage.py` checks this table.
"""

from __future__ import annotations

from typing import NamedTuple


class CoverageExemption(NamedTuple):
    """`test` is a pytest node id: file and function."""

    why: str
    test: str

    def __str__(self) -> str:
        return f"{self.why}: {self.test}"


EXEMPTIONS: dict[str, CoverageExemption] = {
    "ResourceLimitsEnforced": CoverageExemption(
        "needs cgroups", "tests/agent/test_status_reports.py::test_node_reports_resource_limits_condition"
    ),
    "ResourceLimitsPartial": CoverageExemption(
        "needs a kernel without cgroups",
        "tests/agent/test_status_reports.py::test_node_reports_resource_limits_condition",
    ),
    "TasksIsolated": CoverageExemption(
        "needs users and mount namespaces",
        "tests/agent/test_status_reports.py::test_node_reports_how_far_tasks_are_separated",
    ),
    "TasksNotIsolated": CoverageExemption(
        "needs users and mount namespaces",
        "tests/agent/test_status_reports.py::test_node_reports_how_far_tasks_are_separated",
    ),
    "EndUnconfirmed": CoverageExemption(
        "needs a killed shim",
        "tests/agent/test_escaped_processes.py::"
        "test_end_that_cannot_be_confirmed_is_not_reported_and_blocks_a_successor",
    ),
    "UserNotAllowed": CoverageExemption(
        "simulated templates name no user", "tests/agent/test_task_users.py::test_named_user_is_refused_unless_allowed"
    ),
    "TemplateUnusable": CoverageExemption(
        "simulated templates have no working directory, user or bundle",
        "tests/agent/test_process_driver.py::test_failed_start_reports_reason_and_later_run_works",
    ),
    "BackingOff": CoverageExemption(
        "simulated tasks always exit with a reason",
        "tests/agent/test_status_reports.py::test_task_ended_without_reason_is_reported_backing_off",
    ),
    "GuardBreached": CoverageExemption(
        "needs a canary that performs worse for minutes",
        "tests/fleet/test_policy_guard.py::test_breached_revision_is_rolled_back_with_a_higher_sequence",
    ),
    "RestoreInProgress": CoverageExemption(
        "needs a cell that is restored from a backup",
        "tests/fleet/test_post_restore.py::test_share_moved_after_the_backup_is_not_granted_twice",
    ),
    "NotLeader": CoverageExemption(
        "a simulated cell is one process, and calls its authority only while it leads",
        "tests/authority/test_release.py::test_authority_without_current_term_refuses_requests",
    ),
    "NoNodes": CoverageExemption(
        "every simulated region has nodes",
        "tests/scheduling/test_refusal_summary.py::test_timeline_of_planner_refusal_has_reason_fix_and_next_retry",
    ),
    "IntentMismatch": CoverageExemption(
        "one scheduler per region never proposes one intent with two payloads",
        "tests/authority/test_reserve.py::test_repeated_intent_returns_first_claim",
    ),
    "FinalizerStuck": CoverageExemption(
        "takes an hour; simulations last minutes",
        "tests/scheduling/test_finalizers.py::test_stuck_finalizer_of_any_kind_emits_stable_event_with_owner",
    ),
    "NodeTerminating": CoverageExemption(
        "nodes have no finalizers, so that a deleted node is gone at once",
        "tests/scheduling/test_refusal_summary.py::test_timeline_of_planner_refusal_has_reason_fix_and_next_retry",
    ),
    "DeviceInUse": CoverageExemption(
        "the only scheduler of a region counts its own proposals; a second scheduler would be needed",
        "tests/authority/test_races.py::test_64_clients_racing_for_one_gpu_have_one_winner",
    ),
    "ReservationMissing": CoverageExemption(
        "the scheduler reserves and binds in one call; only a client that binds separately can be too late",
        "tests/authority/test_release.py::test_bind_after_expiry_is_refused",
    ),
    "ProvisionalExpired": CoverageExemption(
        "provisional work runs for ten minutes; the fault phase is shorter",
        "tests/scheduling/test_eviction.py::test_unconfirmed_provisional_replica_is_released",
    ),
    "ProvisionalWithdrawn": CoverageExemption(
        "a partitioned region gets no new Assignments, so its provisional work fits its grant after reconnection",
        "tests/scheduling/test_eviction.py::test_unconfirmed_provisional_replica_is_released",
    ),
}
