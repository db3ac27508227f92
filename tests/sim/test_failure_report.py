"""A failure report names invariant, writer, observation and expectation, and fits one screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.factories import binding, node, replica, serving_status, workload

from holdfast.model.kinds import BY_PLURAL, kind_of
from holdfast.model.reasons import Reason
from holdfast.model.replica import ReleaseBlock
from holdfast.sim import failure_report, single_run, workload_profiles
from holdfast.sim.checkers import ObservedChange, ObservedCommit, Violation
from holdfast.sim.commit_history import CommitHistory, writer_label
from holdfast.sim.coverage import Coverage
from holdfast.sim.failure_report import FULL, SCREEN, summary_lines, timeline
from holdfast.sim.fault_injection import FaultKind, InjectedFault
from holdfast.sim.report_wording import (
    FAULT_TEXTS,
    INVARIANTS,
    PROFILE_TEXTS,
    describe_fault,
    describe_user_action,
    object_name,
    with_object_names,
)
from holdfast.sim.simulation import RunOutcome, RunRecording
from holdfast.store.contract import Compare, Txn

CHECKERS = Path(failure_report.__file__).parent / "checkers"
replace = msgspec.structs.replace


def outcome(**more: Any) -> RunOutcome:
    plain = RunOutcome(
        seed=7,
        violations=(),
        unconverged=(),
        failures=(),
        simulated_s=900.0,
        converged_in_s=600.0,
        node_hours=1.0,
        commits=3,
        steps=10,
        faults={},
        digest="0",
    )
    return replace(plain, **more)


def violating(at_s: float = 40.0, writer: str = "authority, for scheduler", *keys: str) -> RunOutcome:
    what = "replica web-0 is bound by /bindings/acme/web-0.1 and /bindings/acme/web-0.1.2"
    return outcome(violations=(Violation("S1", at_s, "west", what, keys, writer),), objects=keys)


def recorded(*changes: tuple[float, str, Any, Any], **more: Any) -> RunRecording:
    history = CommitHistory()
    for at_s, writer, old, new in changes:
        item = new if new is not None else old
        kind = kind_of(item)
        key = kind.store_key(item.metadata.namespace, item.metadata.name)
        history.add(ObservedCommit("west", at_s, at_s, Txn(), (ObservedChange(key, kind, old, new),), {}), writer)
    return RunRecording((), history, Coverage(), **more)


# The tables


def test_every_fault_and_workload_profile_has_a_description() -> None:
    assert set(FAULT_TEXTS) == set(FaultKind)
    assert set(PROFILE_TEXTS) == set(workload_profiles.PROFILES)


def test_every_invariant_named_by_a_checker_has_a_description() -> None:
    text = "".join(path.read_text() for path in CHECKERS.glob("*.py"))
    found = set(re.findall(r'(?:yield |\[\()"(\w+)", ', text))
    assert len(found) > 12 and found <= set(INVARIANTS), found - set(INVARIANTS)


def test_message_names_objects_by_kind_and_name() -> None:
    assert with_object_names("/bindings/acme/web-0.1 is on /nodes/west-n1, 3/4, s3://x and /etc/passwd") == (
        "Binding acme/web-0.1 is on Node west-n1, 3/4, s3://x and /etc/passwd"
    )
    for kind in BY_PLURAL.values():
        assert object_name(kind.store_key("acme" if kind.namespaced else "", "x")).startswith(f"{kind.name} ")


def test_fault_text_has_description_and_target() -> None:
    assert describe_fault("reply slow@node/west/west-n5#8").endswith("response to a call is slow, of node west-n5")
    assert describe_fault("watch delayed@node/west/west-n5/Binding#1").endswith("of node west-n5, about its Bindings")
    assert describe_fault("watch stalled@west/Replica#2").endswith("about Replicas inside west")
    assert describe_fault("call lost@region/west#2").endswith("of region west to the global cell")
    assert describe_fault("conflict@global#9").endswith("at global")
    assert describe_fault("policy changed#s2") == FAULT_TEXTS[FaultKind.POLICY_CHANGED]
    assert describe_fault("user#3") == ""


def test_user_action_text_has_the_workload_profile() -> None:
    assert describe_user_action("user creates acme/ledger: 2 of profile exclusive") == PROFILE_TEXTS["exclusive"]
    assert describe_user_action("user#3: creates acme/batch2") == PROFILE_TEXTS["batch"]
    assert describe_user_action("user#3: scales acme/api from 1 to 2") == ""


def test_writer_of_a_placement_is_authority_for_its_caller() -> None:
    under = Txn(compares=(Compare("/terms/authority", 3),))
    assert writer_label(under, "holdfast:controller:scheduler") == "authority, for scheduler"
    assert writer_label(under, "holdfast:controller:authority") == "authority"
    assert writer_label(Txn(), "holdfast:node:west:west-n5") == "agent west-n5"
    assert writer_label(Txn(), "holdfast:region:west") == "link of west"
    assert writer_label(Txn(), "") == "unknown"


# The summary


def test_report_names_invariant_writer_and_expectation() -> None:
    lines = list(summary_lines(violating()))
    assert lines[0] == "invariant       S1: no two live accepted bindings for one replica identity"
    assert lines[1] == "violated by     authority, for scheduler, in west, 40.000 s after the start"
    assert lines[2].endswith("is bound by Binding acme/web-0.1 and Binding acme/web-0.1.2")
    assert lines[3] == f"expected        {INVARIANTS['S1'].requires}"


def test_report_of_non_convergence_is_short() -> None:
    lines = list(summary_lines(outcome(unconverged=tuple(f"replica r{n} is Queued" for n in range(30)))))
    assert lines[0].startswith("invariant       convergence: no system that does not converge")
    assert "for 600 s without faults" in lines[1]
    assert len(lines) < 12 and any("and 25 more of these" in line for line in lines)


def test_report_without_known_writer_says_unknown() -> None:
    assert "unknown; observed in west, 40.000 s" in list(summary_lines(violating(40.0, "")))[1]


# The timeline


def test_timeline_counts_down_to_the_violation() -> None:
    serving = replica(0, status=serving_status())
    claim = binding(serving, node="west-n1")
    key = f"/bindings/acme/{claim.metadata.name}"
    lines = list(timeline(violating(40.0, "x", key), recorded((37.5, "authority, for scheduler", None, claim))))
    assert lines[0].startswith("     -2.500 s  west    authority, for scheduler Binding acme/")
    assert "created, for replica" in lines[0] and "on node west-n1" in lines[0]
    assert lines[-1].startswith("!     0.000 s  S1 is violated: replica web-0 is bound by Binding")


def test_timeline_omits_change_of_timestamps_only() -> None:
    before = node("west-n1")
    contact = replace(before.status.contact, since="2027-01-01T00:00:00Z")
    after = replace(before, status=replace(before.status, contact=contact))
    later = replace(after, spec=replace(after.spec, unschedulable=True))
    recording = recorded((1.0, "node-health", before, after), (2.0, "operator", after, later))
    lines = list(timeline(violating(40.0, "x", "/nodes/west-n1"), recording))
    assert len(lines) == 2 and "Node west-n1: spec.unschedulable: False → True" in lines[0]


def test_timeline_shows_replica_stage_change_first() -> None:
    serving = replica(0, status=serving_status())
    gone = replace(serving, status=replace(serving.status, release=ReleaseBlock(reason=Reason.DRAINED, attempt=1)))
    key = f"/replicas/acme/{serving.metadata.name}"
    lines = list(timeline(violating(40.0, "x", key), recorded((1.0, "release", serving, gone))))
    assert (
        f"Replica acme/{serving.metadata.name}: Serving → Stopping; status.release: none → reason Drained" in lines[0]
    )


def test_timeline_shows_observed_generation_only_if_it_decreases() -> None:
    def at(generation: int, observed: int) -> Any:
        made = workload()
        status = replace(made.status, observed_generation=observed)
        return replace(made, metadata=replace(made.metadata, generation=generation), status=status)

    recording = recorded((1.0, "workload-status", at(2, 1), at(2, 2)), (2.0, "workload-status", at(2, 2), at(2, 1)))
    lines = list(timeline(violating(40.0, "x", "/workloads/acme/api"), recording))
    assert len(lines) == 2 and "status.observedGeneration: 2 → 1" in lines[0]


def test_timeline_of_many_unconverged_objects_shows_the_first() -> None:
    keys = tuple(f"/nodes/n{n}" for n in range(9))
    recording = recorded(*((float(n), "operator", None, node(f"n{n}")) for n in range(9)))
    failed = outcome(unconverged=tuple(f"node n{n} takes no work" for n in range(9)), objects=keys)
    assert len(list(timeline(failed, recording))) == failure_report.OBJECTS_SHOWN + 1
    assert len(list(timeline(failed, recording, frame=FULL))) == 9 + 1


def test_timeline_describes_faults_user_actions_and_healing() -> None:
    recording = replace(
        recorded(),
        injected=(InjectedFault(3.0, "reply lost@node/west/west-n1#1"),),
        user_actions=(InjectedFault(2.0, "user creates acme/api", "2 of profile service"),),
        healed_s=300.0,
    )
    lines = list(timeline(outcome(unconverged=("acme/api serves 0 of 2",)), recording))
    assert [line[0] for line in lines] == [">", "*", "=", "!"]
    assert lines[0] == ">  -898.000 s  user creates acme/api: 2 of profile service (a plain service)"
    assert "the response to a call is lost, of node west-n1)" in lines[1]
    assert lines[-1].endswith("not converged: acme/api serves 0 of 2")


def test_timeline_fits_one_screen_unless_full() -> None:
    states = [replace(node("n1"), spec=replace(node("n1").spec, zone=f"z{n}")) for n in range(60)]
    changes = [(float(n), "operator", states[n - 1], states[n]) for n in range(1, 60)]
    struck = tuple(InjectedFault(float(n), f"conflict@west#{n}") for n in range(50))
    recording = replace(recorded(*changes), injected=struck)
    failed = violating(100.0, "x", "/nodes/n1")
    short, whole = list(timeline(failed, recording)), list(timeline(failed, recording, frame=FULL))
    assert len(short) == 2 + SCREEN.events + SCREEN.faults + 1 and "--whole" in short[0] and "--whole" in short[1]
    assert len(whole) == 59 + 50 + 1
    assert all(len(line) <= SCREEN.chars + 1 for line in short)


def test_timeline_explains_each_fault_once() -> None:
    struck = tuple(InjectedFault(float(n), f"conflict@west#{n}") for n in range(3))
    lines = list(timeline(violating(), replace(recorded(), injected=struck)))
    assert [FAULT_TEXTS[FaultKind.CONFLICT] in line for line in lines] == [True, False, False, False]


@pytest.mark.slow
def test_report_of_a_mutation_is_complete_and_short() -> None:
    lines_printed: list[str] = []
    assert (
        single_run.run_seed(
            single_run.SingleRunOptions(2, mutation="one-missed-heartbeat-fences", shrink_s=25.0), lines_printed.append
        )
        == 1
    )
    text = "\n".join(lines_printed)
    part = text[text.index("Smallest reproduction") :]
    assert "invariant       S7: no two running instances" in part
    assert re.search(r"violated by     authority, in \w+, [\d.]+ s after the start", part)
    assert "expected        the first instance counts as ended only after" in part
    assert "! " in part and "/nodes/" not in part, "objects are named by kind"
    assert part.count("\n") < 60, "about one screen"


@pytest.mark.slow
def test_report_of_an_endless_retry_mutation_names_load() -> None:
    lines = reported("retry-without-backoff", seed=2)
    assert any("invariant       load: no more writes" in line for line in lines)


@pytest.mark.slow
def test_report_of_retries_without_any_wait_names_livelock_and_process() -> None:
    """At seed 1 the mutation retries a refused release without end, while the clock stands still."""
    lines = reported("retry-without-backoff", seed=1)
    assert any("invariant       livelock: no loop without end" in line for line in lines)
    assert any("the last one by east.1" in line for line in lines)


def reported(mutation: str, *, seed: int) -> list[str]:
    lines_printed: list[str] = []
    options = single_run.SingleRunOptions(seed, mutation=mutation, shrink_s=0.0)
    assert single_run.run_seed(options, lines_printed.append) == 1
    return lines_printed
