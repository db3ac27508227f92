"""Figures and lists in written pages are those of the code. A row holds a sentence of a page and the values in it."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.e2e.recorded_answers import acts_first

from holdfast.authority import provisional
from holdfast.drills import catalog
from holdfast.drills.report import QUESTIONS
from holdfast.fleet import ordinals, region_health, spillover
from holdfast.fleet.override_kinds import RULES
from holdfast.fleet.recovery import failback, recover, recovery_status, slot_matching, start_rate, targets
from holdfast.gate import audit
from holdfast.link import link, peer_probes
from holdfast.model import input_freshness, limits
from holdfast.model.override import OverrideKind
from holdfast.model.recovery_budget import RecoveryBudgetSpec
from holdfast.model.region import RegionSpec
from holdfast.model.workload import RecoveryObjective
from holdfast.scheduling.eviction import preempted
from holdfast.scheduling.queue_order import FAIR_QUEUE_SLICE

NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
LOST_AFTER_S = RegionSpec().lost_after_seconds
SUSPECT_AFTER_S = min(LOST_AFTER_S * region_health.REGION_SUSPECT_FRACTION, input_freshness.REGION_SUMMARY.seconds)
STARTS_PER_S = RecoveryBudgetSpec(region="x").starts_per_second
START_S = 60
STALL_PART = {0.25: "a quarter"}
SUSPECT_PART = {4 / 9: "4/9"}


def numeral(value: float) -> str:
    return NUMERALS[int(value)]


FIGURES: list[tuple[str, str, tuple[object, ...]]] = [
    (
        "recovery.md",
        "Defaults: `minServing: {}`, `deadlineSeconds: {:.0f}`.",
        (RecoveryObjective().min_serving, RecoveryObjective().deadline_seconds),
    ),
    (
        "recovery.md",
        "reports to the global cell every {:.0f} s (every `lostAfterSeconds`/6 if that is shorter,",
        (link.REGION_REPORT_EVERY_S,),
    ),
    ("recovery.md", "A probe times out after {} s.", (peer_probes.PEER_PROBE_TIMEOUT_S,)),
    ("recovery.md", "{} failed probes in a row", (numeral(peer_probes.PEER_PROBE_FAILURES_MAX).capitalize(),)),
    (
        "recovery.md",
        "no report for {} of `spec.lostAfterSeconds`, at most {:.0f} s",
        (SUSPECT_PART[region_health.REGION_SUSPECT_FRACTION], input_freshness.REGION_SUMMARY.seconds),
    ),
    (
        "recovery.md",
        "`lostAfterSeconds` is {:.0f} by default (5 to 3600), and `Suspect` begins after {:.0f} s.",
        (LOST_AFTER_S, SUSPECT_AFTER_S),
    ),
    (
        "recovery.md",
        "| {:.0f} s | The region becomes `Suspect`. | | {:.0f} s | The region becomes `Lost`.",
        (SUSPECT_AFTER_S, LOST_AFTER_S),
    ),
    (
        "recovery.md",
        "needs the approval of a second person and lasts at most {} hours.",
        (numeral(RULES[OverrideKind.DECLARE_REGION_LOST].max_ttl_s / 3600),),
    ),
    ("recovery.md", "After {:.0f} s it opens a Recovery if some critical", (recover.CAPACITY_LOSS_GRACE_S,)),
    ("recovery.md", "| then, every {} s | Each critical workload", (recovery_status.RECOVERY_CHECK_EVERY_S,)),
    ("recovery.md", "| region healthy for {:.0f} s | Phase `FailingBack`.", (recover.RECOVERY_STABLE_S,)),
    (
        "recovery.md",
        "the sum over its RecoveryBudgets, {:.0f} each by default; {:.0f} if it has none), with a burst of {} second",
        (STARTS_PER_S, start_rate.RECOVERY_STARTS_PER_S, numeral(start_rate.RECOVERY_START_BURST_S)),
    ),
    (
        "recovery.md",
        "for {} of `deadlineSeconds` (at least {:.0f} s)",
        (STALL_PART[targets.RECOVERY_STALL_FRACTION], targets.RECOVERY_STALL_MIN_S),
    ),
    ("recovery.md", "and at most {} per workload in one Recovery", (numeral(targets.RECOVERY_TARGET_CHANGES_MAX),)),
    ("recovery.md", "its grace period is at most {:.0f} s", (preempted.RECLAIM_GRACE_S,)),
    (
        "recovery.md",
        "bounded to {:,} steps and {} distinct workload shapes",
        (slot_matching.SLOT_SEARCH_STEPS_MAX, slot_matching.SLOT_SEARCH_CLASSES_MAX),
    ),
    ("recovery.md", "under {:.0f} s (the grant lease)", (limits.GRANT_LEASE_S,)),
    (
        "recovery.md",
        "A provisional Binding has `runUntil`: {} minutes, renewed in its second half, at most {} hour after",
        (numeral(provisional.PROVISIONAL_RUN_S / 60), numeral(limits.PROVISIONAL_MAX_S / 3600)),
    ),
    ("recovery.md", "under the region's *tenure*, a {:.0f} s lease", (limits.TENURE_S,)),
    (
        "recovery.md",
        "may run the ordinal about {:.0f} s after the withdrawal is committed: the tenure plus clock drift "
        "({:.0f} % on each side), {:.0f} s to kill, and {:.0f} s for one clock step.",
        (ordinals.TENURE_WAIT_S, limits.CLOCK_DRIFT * 100, limits.KILL_DURATION_MAX_S, limits.TENURE_STEP_MAX_S),
    ),
    ("recovery.md", "After {:.0f} s they *spill over* to another region", (limits.SPILLOVER_AFTER_S,)),
    (
        "recovery.md",
        "is avoided for {:.0f} minutes, then four times as long each further time, at most {:.0f} hours.",
        (spillover.SPILLOVER_AVOID_S / 60, spillover.SPILLOVER_AVOID_MAX_S / 3600),
    ),
    ("recovery.md", "without `CapacityLost` for {:.0f} s", (recover.RECOVERY_STABLE_S,)),
    ("recovery.md", "healthy for less than {:.0f} s at the deadline", (recover.RECOVERY_STABLE_S,)),
    (
        "recovery.md",
        "At most {} recovery Assignments are emptied per pass, every {} s.",
        (failback.RETURNS_PER_PASS, recovery_status.RECOVERY_CHECK_EVERY_S),
    ),
    ("recovery.md", "| node report | {:.0f} s |", (input_freshness.NODE_REPORT.seconds,)),
    ("recovery.md", "| region summary | {:.0f} s |", (input_freshness.REGION_SUMMARY.seconds,)),
    ("recovery.md", "| latency between regions | {:.0f} s |", (input_freshness.PEER_LATENCY.seconds,)),
    ("recovery.md", "| grant | {:.0f} s |", (input_freshness.GRANT.seconds,)),
    ("recovery.md", "| policy | {:.0f} s |", (input_freshness.POLICY.seconds,)),
    ("recovery.md", "| override | {:.0f} s |", (input_freshness.OVERRIDE.seconds,)),
    ("access.md", "A cell keeps the newest {:,} records.", (audit.AUDIT_RECORDS_MAX,)),
    ("boundaries.md", "resync every {:.0f} s", (limits.RESYNC_S,)),
    ("boundaries.md", "about {:.0f} s to move without contact", (ordinals.TENURE_WAIT_S,)),
    ("boundaries.md", "until its lease of {:.0f} s has ended", (limits.LEADER_TTL_S,)),
    (
        "boundaries.md",
        "about {:.0f} s in its region (lease {:.0f} s, drift, {:.0f} s to kill)",
        (
            limits.NODE_LEASE_TTL_S * (1 + limits.CLOCK_DRIFT) + limits.KILL_DURATION_MAX_S,
            limits.NODE_LEASE_TTL_S,
            limits.KILL_DURATION_MAX_S,
        ),
    ),
    ("boundaries.md", "spillover after {:.0f} s", (limits.SPILLOVER_AFTER_S,)),
    ("boundaries.md", "its Grant, for {:.0f} s; then provisional work only", (limits.GRANT_LEASE_S,)),
    ("boundaries.md", "one slice of {} replicas", (FAIR_QUEUE_SLICE,)),
    (
        "boundaries.md",
        "{:.0f} % drift on each side, {:.0f} s to kill, {:.0f} s for one step",
        (limits.CLOCK_DRIFT * 100, limits.KILL_DURATION_MAX_S, limits.TENURE_STEP_MAX_S),
    ),
    (
        "readiness.md",
        "With the defaults ({:.0f} s, {:.0f} per second and budget, {:.0f} s) and tasks that are ready after {} s, "
        "one RecoveryBudget starts at most {:.0f} replicas in time.",
        (
            LOST_AFTER_S,
            STARTS_PER_S,
            RecoveryObjective().deadline_seconds,
            START_S,
            (RecoveryObjective().deadline_seconds - LOST_AFTER_S - START_S) * STARTS_PER_S,
        ),
    ),
]


def plain_text(page: Path) -> str:
    return re.sub(r"\s+", " ", page.read_text())


@pytest.mark.parametrize(("page", "sentence", "values"), FIGURES, ids=[row[1][:50] for row in FIGURES])
def test_figure_of_page_is_that_of_the_code(root: Path, page: str, sentence: str, values: tuple[object, ...]) -> None:
    assert sentence.format(*values) in plain_text(root / "docs" / page)


def test_page_names_the_drills_that_act_on_existing_workloads(root: Path) -> None:
    """The drills whose module creates no drill tenant are exactly those that the page names."""
    creators = ("DrillTenant", "DrillCriticalWorkload")
    drills = catalog.DRILLS.values()
    without = [f"`{d.name}`" for d in drills if not any(hasattr(module_of(d), name) for name in creators)]
    assert f"All drills but {', '.join(without)} use their own tenant" in plain_text(root / "docs" / "recovery.md")


def module_of(drill: catalog.Drill) -> ModuleType:
    """The module of the drill: that of the wrapped function, or the one that the lambda calls."""
    named = inspect.getclosurevars(drill.run)
    if "run" in named.nonlocals:
        return sys.modules[named.nonlocals["run"].__module__]
    (module,) = (value for value in named.globals.values() if inspect.ismodule(value))
    return module


def test_failure_matrix_answers_six_questions_for_every_drill_and_links_report_and_scenario(root: Path) -> None:
    text = (root / "docs" / "failures.md").read_text()
    happens = r"^\| `([a-z-]+)`: ([^|]+) \|(?: [^| ][^|]* \|){5}$"
    tested = r"^\| `([a-z-]+)` \| [^| ][^|]* \| \[report\]\(([^)]+)\) \| \[`([a-z-]+)`\]\([^)]+\) \|$"
    drills = catalog.DRILLS.values()
    assert re.findall(happens, text, re.MULTILINE) == [(drill.name, drill.failure) for drill in drills]
    assert re.findall(tested, text, re.MULTILINE) == [
        (drill.name, f"reference/drill-reports.md#{drill.name}", drill.simulated_by) for drill in drills
    ]


def test_metrics_of_the_failure_matrix_exist(root: Path) -> None:
    text = (root / "docs" / "failures.md").read_text()
    metrics = (root / "docs" / "metrics.md").read_text()
    assert [name for name in re.findall(r"`(holdfast_[a-z_]+)`", text) if f"| `{name}` |" not in metrics] == []


def test_every_drill_has_a_recorded_report_with_six_answers(root: Path) -> None:
    text = (root / "docs" / "reference" / "drill-reports.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.split("\n", 1)[0] for section in sections] == list(catalog.DRILLS)
    for section in sections:
        for question in QUESTIONS.values():
            assert re.search(rf"^{re.escape(question)}\n  \S", section, re.MULTILINE), (section[:40], question)


def test_page_lists_every_drill_with_its_scenario(root: Path) -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| `([a-z-]+)` \|$", (root / "docs" / "recovery.md").read_text(), re.M)
    assert rows == [(drill.name, drill.simulated_by) for drill in catalog.DRILLS.values()]


@pytest.mark.parametrize("drill", catalog.DRILLS)
def test_failure_matrix_says_who_acts_first_in_a_drill(drill: str) -> None:
    """The tests with drills compare this with the recorded history."""
    first = acts_first(drill)
    assert first and all(re.fullmatch(r"[a-z-]+", name) for name in first), first
