"""Histories recorded by real stores, checked by the simulation's checkers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.authority.cell import Cell
from tests.expected import of_type, present
from tests.factories import assignment, meta, replica, serving_status, workload

from holdfast.gate.audit import AuditEntry, commit_record, decode_record
from holdfast.model import codec
from holdfast.model.binding import Binding
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec, ScoreComponent
from holdfast.model.grant_copy import GrantCopy
from holdfast.model.join import NodeIdentity, NodeIdentitySpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import API_VERSION, Object, OwnerReference
from holdfast.model.node import Node
from holdfast.model.override import (
    Override,
    OverrideKind,
    OverrideScope,
    OverrideSpec,
    OverrideStatus,
    PlannedMaintenance,
)
from holdfast.model.placement_api import PlacementOutcome, ReleaseAction
from holdfast.model.principal import controller
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, ReleaseBlock
from holdfast.model.scheduler_policy import PolicyRevision, PolicyRevisionSpec, PolicyRules
from holdfast.model.times import micro_text, seconds_text
from holdfast.model.volume import Volume, VolumeSpec
from holdfast.model.workload import Disruption, Exclusivity, Rebalance
from holdfast.sim import __main__ as sim_main
from holdfast.sim import checkers
from holdfast.sim.checkers import ObservedChange, ObservedCommit
from holdfast.sim.checkers.cron_runs import SCHEDULED_AT
from holdfast.sim.checkers.decisions import BUILT_IN
from holdfast.sim.checkers.ownership import OwnershipChecker
from holdfast.sim.history_verdict import CHECKED, CHECKED_AT_REST, NOT_CHECKED
from holdfast.sim.recorded_history import RecordedHistory, check_histories, check_platform, read_sqlite
from holdfast.store.contract import Change, Compare, Put, Remove, StoredEntry, Txn
from holdfast.store.sqlite import SqliteStore


async def put(cell: Cell, item: Object) -> None:
    """Writes to the store directly, past authority and gate."""
    key = kind_of(item).store_key(item.metadata.namespace, item.metadata.name)
    await cell.objects.commit(None, Txn(writes=(Put(key, codec.encode(item), item),)))


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    """A region with two nodes, a grant and a leading authority."""
    opened = await Cell.open(tmp_path / "store.sqlite")
    await opened.node()
    await opened.node("n2")
    copy = await opened.grant(limit={"cpu": "4", "memory": "100Gi"})
    # The checker finds limits by the name that grant-sync uses.
    named = msgspec.structs.replace(copy.metadata, name="normal", uid="copy")
    await put(opened, msgspec.structs.replace(copy, metadata=named))
    await opened.lead()
    yield opened
    await opened.close()


def violated_invariants(tmp_path: Path) -> list[str]:
    """The violated invariants, without the missing audit records of the test's own writes."""
    verdict = check_histories([read_sqlite("us-east", tmp_path / "store.sqlite")])
    assert verdict.commits > 5
    return sorted({v.invariant for v in verdict.violations if "without an audit record" not in v.message})


async def test_history_of_an_authority_has_no_violation(cell: Cell, tmp_path: Path) -> None:
    for name in ("web-0", "web-1"):
        assert (await cell.place(await cell.replica(name))).result is PlacementOutcome.ACCEPTED
    assert violated_invariants(tmp_path) == []


async def test_second_binding_of_one_replica_violates_s1(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    binding = present(cell.binding("web-0.1"))
    duplicate_meta = msgspec.structs.replace(binding.metadata, name="web-0.9", uid="another")
    spec = msgspec.structs.replace(binding.spec, node="n2")
    await put(cell, msgspec.structs.replace(binding, metadata=duplicate_meta, spec=spec))
    assert violated_invariants(tmp_path) == ["S1", "S5"], "bound twice, and the second time not by the authority"


async def test_use_above_the_limit_violates_s3(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    copy = next(c for c in cell.every(GrantCopy) if c.metadata.name == "normal")
    lowered = msgspec.structs.replace(copy.spec, limit={"cpu": "500m", "memory": "100Gi"})
    await put(cell, msgspec.structs.replace(copy, spec=lowered))
    await cell.place(await cell.replica("web-1"))
    assert "S3" in violated_invariants(tmp_path)


async def test_commit_with_stale_fencing_token_violates_s5(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell.place(await cell.replica())
    await cell.elect()  # another leader, unknown to this authority, whose term comparison is removed below
    monkeypatch.setattr("holdfast.authority.commits.Compare", lambda key, revision: _any(cell, key, revision))
    await cell.place(await cell.replica("web-1"))
    assert "S5" in violated_invariants(tmp_path)


def _any(cell: Cell, key: str, revision: int) -> Compare:
    from holdfast.store.contract import Compare

    if key == "/terms/authority":
        return Compare(
            key, next(e.revision for e in of_type(cell.store.inner, SqliteStore)._head.range("/terms/", "", 0)[0])
        )
    return Compare(key, revision)


async def test_changed_binding_violates_s10(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    binding = present(cell.binding("web-0.1"))
    moved = msgspec.structs.replace(binding.spec, node="n2")
    await put(cell, msgspec.structs.replace(binding, spec=moved))
    assert {"S10", "S5"} <= set(violated_invariants(tmp_path))


async def test_decision_scored_by_unnamed_policy_violates_s10(cell: Cell, tmp_path: Path) -> None:
    entry = DecisionEntry(replica="web-0", uid="u", scores=(ScoreComponent("Packing", 1, 5),))
    spec = DecisionSpec(request="web", workload="web", policy_revision=BUILT_IN, entries=(entry,))
    await put(cell, Decision(metadata=meta("web-x", "acme"), spec=spec))
    assert "S10" in violated_invariants(tmp_path)


async def test_evictions_beyond_disruption_budget_are_found(cell: Cell, tmp_path: Path) -> None:
    assignment_object = assignment(where="us-east", disruption=Disruption(max_unavailable=1))
    await put(cell, assignment_object)
    opened = [replica(number, assignment_object, status=serving_status()) for number in range(2)]
    for item in opened:
        await put(cell, item)
    for number, item in enumerate(opened):
        assert "budget" not in violated_invariants(tmp_path), f"{number} evicted, budget 1"
        block = ReleaseBlock(reason=Reason.DRAINED, attempt=1)
        await put(cell, msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, release=block)))
    assert "budget" in violated_invariants(tmp_path)


async def test_exclusive_successor_without_confirmed_stop_violates_s7(cell: Cell, tmp_path: Path) -> None:
    replica = await cell.replica(exclusive=Exclusivity())
    await cell.place(replica)
    first = present(cell.binding("web-0.1"))
    assert first.spec.exclusive is not None
    await cell.remove(first)  # without acknowledged stop and without fencing
    again = msgspec.structs.replace(first.metadata, name="web-0.2", uid="another")
    await put(cell, msgspec.structs.replace(first, metadata=again, spec=msgspec.structs.replace(first.spec, node="n2")))
    assert "S7" in violated_invariants(tmp_path)


async def test_exclusive_successor_after_acknowledged_stop_is_allowed(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica(exclusive=Exclusivity()))
    await cell.release(cell.get_replica(), ReleaseAction.STOP)
    binding = present(cell.binding("web-0.1"))
    status = msgspec.structs.replace(binding.status, phase=Phase.STOPPED, acknowledged_at="2026-09-21T14:13:20Z")
    await put(cell, msgspec.structs.replace(binding, status=status))
    await cell.release(cell.get_replica(), ReleaseAction.FREE)
    assert (await cell.place(cell.get_replica(), "n2")).result is PlacementOutcome.ACCEPTED
    assert [b.spec.node for b in cell.every(Binding)] == ["n2"]
    assert "S7" not in violated_invariants(tmp_path)


async def test_directory_and_its_single_store_give_the_same_result(cell: Cell, tmp_path: Path) -> None:
    await cell.place(await cell.replica())
    item, whole = check_platform(tmp_path / "store.sqlite"), check_platform(tmp_path)
    assert item.commits == whole.commits > 5


async def mirrored(cell: Cell, item: Object, *, by: str = "link", before: int = 0, delete: bool = False) -> None:
    """Writes a mirrored object as the link does: with the uid of the original, and with an audit record."""
    kind, stored_meta = kind_of(item), item.metadata
    key = kind.store_key(stored_meta.namespace, stored_meta.name)
    op = "delete" if delete else "update" if before else "create"
    entry = AuditEntry(op, kind.name, stored_meta.name, stored_meta.namespace, stored_meta.uid, before)
    record = commit_record(controller(by, cell="us-east"), cell.clock.now(), op, [entry])
    write = Remove(key) if delete else Put(key, codec.encode(item), item)
    await cell.objects.commit(None, Txn(writes=(write,), appends=(record,)))


async def renewed(cell: Cell) -> None:
    """The link renews the grant lease for two minutes."""
    copy = next(c for c in cell.every(GrantCopy) if c.metadata.name == "normal")
    now_s = cell.clock.now()
    spec = msgspec.structs.replace(
        copy.spec, last_contact_at=micro_text(now_s), lease_expires_at=micro_text(now_s + 120.0)
    )
    await mirrored(cell, msgspec.structs.replace(copy, spec=spec), by="grant-sync", before=copy.revision)


async def test_mirror_deleted_and_created_again_does_not_date_earlier_commits(cell: Cell, tmp_path: Path) -> None:
    """Both creations have the same uid. The first was dated by the record of the second, so that the placements after
    it seemed to be made long after the end of their grant lease: false S8 alarms."""
    mirror = assignment(where="us-east")
    await renewed(cell)
    await mirrored(cell, mirror)
    assert (await cell.place(await cell.replica("web-0"))).result is PlacementOutcome.ACCEPTED
    stored = next(iter(cell.every(type(mirror))))
    await mirrored(cell, stored, before=stored.revision, delete=True)
    await cell.clock.advance(1000.0)
    await renewed(cell)
    await mirrored(cell, mirror)
    assert violated_invariants(tmp_path) == []


async def test_placement_after_the_end_of_the_grant_lease_violates_s8(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await renewed(cell)
    monkeypatch.setattr("holdfast.authority.ledger.SpendingLimit.all_expired", False)
    monkeypatch.setattr("holdfast.authority.state.AuthorityState.grant_age_s", lambda *_: 0.0, raising=True)
    await cell.clock.advance(1000.0)
    await cell.node()
    await cell.place(await cell.replica("web-0"))
    assert "S8" in violated_invariants(tmp_path)


async def test_policy_with_a_filter_of_another_release_is_left_out_and_listed(cell: Cell, tmp_path: Path) -> None:
    """A filter that this release does not know cannot be decoded. The rest of the history is still checked."""
    revision = PolicyRevision(metadata=meta("default-1"), spec=PolicyRevisionSpec("default", PolicyRules()))
    value = codec.encode(revision)
    assert b'"Health"' in value
    custom = value.replace(b'"Health"', b'"Mine"')
    await test_second_binding_of_one_replica_violates_s1(cell, tmp_path)
    await cell.store.commit(Txn(writes=(Put("/policyrevisions/default-1", custom, None),)))
    verdict = check_histories([read_sqlite("us-east", tmp_path / "store.sqlite")])
    (text,) = verdict.unreadable
    assert text.startswith("us-east: /policyrevisions/default-1 at revision ") and "'Mine'" in text
    assert f"  unreadable by this release: {text}" in list(verdict.lines())
    assert str(verdict).endswith(", 1 unreadable")
    assert "S1" in {violation.invariant for violation in verdict.violations}


def test_check_of_an_unreadable_history_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim_main._check(tmp_path / "nothing") == 2
    assert capsys.readouterr().err.startswith("error: ")


def history(name: str, *commits: tuple[float, Object | None, Object]) -> RecordedHistory:
    """A history with audit records: (time, the removed object or None, the object)."""
    changes, records = [], []
    for number, (at_s, removed, item) in enumerate(commits, 1):
        kind = kind_of(item)
        key = kind.store_key(item.metadata.namespace, item.metadata.name)
        entry = None if removed is not None else StoredEntry(key, codec.encode(item), number, number)
        changes.append((Change(key, number, entry, None),))
        writer = controller("assign" if name == "global" else "replicate", cell=name)
        named = AuditEntry(
            "delete" if removed is not None else "create",
            kind.name,
            item.metadata.name,
            item.metadata.namespace,
            item.metadata.uid,
            before=number - 1 if removed is not None else 0,
        )
        records.append(decode_record(commit_record(writer, at_s, "write", (named,)).value))
    return RecordedHistory(name, (), tuple(changes), tuple(records))


async def test_removal_of_a_live_replica_needs_an_order_of_the_global_cell(tmp_path: Path) -> None:
    """The orders are in the global cell's history, the removal in the region's."""
    wanted = assignment(replicas=1, where="us-east")
    owner = OwnerReference(api_version=API_VERSION, kind="Assignment", name=wanted.metadata.name, uid=wanted.uid)
    live = replica(0, wanted, status=serving_status())
    live = msgspec.structs.replace(live, metadata=msgspec.structs.replace(live.metadata, owner_references=(owner,)))

    region = history("us-east", (110.0, None, live), (120.0, live, live))

    def found(*orders: tuple[float, Object | None, Object]) -> list[str]:
        verdict = check_histories([history("global", *orders), region])
        return [v.message for v in verdict.violations if v.invariant == "amnesia"]

    assert len(found((100.0, None, wanted))) == 1
    assert not found((100.0, None, wanted), (115.0, wanted, wanted)), "the Assignment was deleted"
    assert len(found((100.0, None, wanted), (125.0, wanted, wanted))) == 1, "an order that came later is none"
    verdict = check_histories([history("global", (100.0, None, wanted)), region], since_s=121.0)
    assert not [v for v in verdict.violations if v.invariant == "amnesia"], "it happened before"


async def test_last_state_at_rest_is_checked_for_leaks(cell: Cell, tmp_path: Path) -> None:
    owner = OwnerReference(api_version=API_VERSION, kind="Assignment", name="gone", uid="gone")
    made = replica(0, assignment(where="us-east"), status=serving_status())
    await put(
        cell, msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=(owner,)))
    )
    history = [read_sqlite("us-east", tmp_path / "store.sqlite")]
    assert not [v for v in check_histories(history).violations if v.invariant == "leak"]
    at_rest = check_histories(history, at_rest_s=2e9)
    assert [v for v in at_rest.violations if v.invariant == "leak"]
    assert set(at_rest.checked) > set(check_histories(history).checked)


async def test_volume_that_changes_its_node_is_found(cell: Cell, tmp_path: Path) -> None:
    spec = VolumeSpec(claim="data", workload="web", replica="web-0", node="n1", size="1Gi")
    volume = Volume(metadata=meta("data-web-0", "acme"), spec=spec)
    await put(cell, volume)
    await put(cell, msgspec.structs.replace(volume, spec=msgspec.structs.replace(spec, node="n2")))
    assert "volumes" in violated_invariants(tmp_path)


@pytest.mark.parametrize(("after_s", "found"), [(0.0, True), (20.0, False)])
async def test_rebalancing_that_the_workload_forbids_is_found(
    cell: Cell, tmp_path: Path, after_s: float, found: bool
) -> None:
    wanted = assignment(where="us-east", rebalance=Rebalance(after_seconds=after_s))
    await put(cell, wanted)
    item = replica(0, wanted, status=serving_status())
    await put(cell, item)
    block = ReleaseBlock(reason=Reason.REBALANCED, attempt=1)
    await put(cell, msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, release=block)))
    assert ("rebalance" in violated_invariants(tmp_path)) is found


@pytest.mark.parametrize(("nodes", "found"), [((), True), (("n9",), False)])
async def test_binding_during_planned_maintenance_is_found(cell: Cell, nodes: tuple[str, ...], found: bool) -> None:
    await cell.place(await cell.replica())
    placed = present(cell.binding("web-0.1"))
    made_at = msgspec.structs.replace(placed.metadata, creation_timestamp=seconds_text(160.0))
    spec = OverrideSpec(
        kind=OverrideKind.AVOID_REGION,
        scope=OverrideScope(region="us-east"),
        maintenance=PlannedMaintenance(window="patching", starts_at=micro_text(90.0), nodes=nodes),
    )
    status = OverrideStatus(phase="Active", expires_at=micro_text(3600.0))
    commits: list[tuple[float, Object | None, Object]] = [(100.0, None, node) for node in cell.every(Node)]
    commits.append((100.0, None, Override(metadata=meta("patching"), spec=spec, status=status)))
    commits.append((160.0, None, msgspec.structs.replace(placed, metadata=made_at)))
    verdict = check_histories([history("us-east", *commits)])
    assert ("maintenance" in {v.invariant for v in verdict.violations}) is found


async def test_second_success_of_an_array_index_is_found(cell: Cell, tmp_path: Path) -> None:
    wanted = assignment(where="us-east")
    for number in range(2):
        made = replica(number, wanted, status=serving_status())
        ended = msgspec.structs.replace(present(made.status.execution), phase=Phase.SUCCEEDED)
        status = msgspec.structs.replace(made.status, execution=ended)
        spec = msgspec.structs.replace(made.spec, index=7)
        await put(cell, msgspec.structs.replace(made, spec=spec, status=status))
        assert ("array" in violated_invariants(tmp_path)) is (number == 1)


async def test_second_run_of_a_tick_is_found(cell: Cell, tmp_path: Path) -> None:
    owner = OwnerReference(api_version=API_VERSION, kind="CronWorkload", name="nightly", uid="cron")
    for number in range(2):
        run = workload(f"nightly-{number}")
        described = msgspec.structs.replace(
            run.metadata, owner_references=(owner,), annotations={SCHEDULED_AT: "2026-01-01T03:00:00Z"}
        )
        await put(cell, msgspec.structs.replace(run, metadata=described))
        assert ("ticks" in violated_invariants(tmp_path)) is (number == 1)


def test_each_checker_is_applied_to_histories_or_listed_with_the_cause() -> None:
    files = {path.stem for path in Path(checkers.__path__[0]).glob("*.py")}
    named = {name for text in (*CHECKED, *CHECKED_AT_REST, *NOT_CHECKED) for name in re.findall(r"[a-z_]{4,}", text)}
    assert files - named == {"__init__", "checker_set", "capacity_oracle"}, "these hold no rule of their own"


def test_node_may_renew_its_own_certificate_and_change_nothing_else() -> None:
    spec = NodeIdentitySpec(generation=2, key="k", serial="01", expires_at="2026-01-01T00:00:00Z")
    held = NodeIdentity(metadata=meta("n1", namespace=""), spec=spec)

    def found(writer: str, **changed: Any) -> list[str]:
        new = msgspec.structs.replace(held, spec=msgspec.structs.replace(spec, **changed))
        kind = kind_of(held)
        changes = (ObservedChange(kind.store_key("", "n1"), kind, held, new),)
        commit = ObservedCommit("west", 0.0, 0.0, Txn(), changes, {})
        return [name for name, _, _ in OwnershipChecker("west").check(commit, writer)]

    renewal = {"serial": "02", "expires_at": "2026-02-01T00:00:00Z"}
    assert found("holdfast:node:west:n1", **renewal) == []
    assert found("holdfast:node:west:n2", **renewal) == ["S6"]
    assert found("holdfast:node:west:n1", **renewal, key="other") == ["S6"]
    assert found("holdfast:join:rack", generation=3, key="other") == []
