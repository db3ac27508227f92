"""How `status` and `up` read a platform: stages, readiness and pending reasons."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests import factories

from holdfast.cli.commands.status import as_text
from holdfast.model.meta import Condition
from holdfast.model.node import ContactState
from holdfast.model.replica import ExecutionBlock, Phase
from holdfast.model.template import template_hash
from holdfast.model.workload import Batch, RegionProgress, Summary, Workload, WorkloadStatus, WorkloadType
from holdfast.model.workload_blocks import ImageBlock
from holdfast.platform.layout import Layout, design_platform
from holdfast.platform.platform_status import (
    CellView,
    PlatformStatus,
    ProcessView,
    node_view,
    process_views,
    workload_view,
)
from holdfast.platform.progress import progress_rows, workload_progress
from holdfast.platform.supervisor import ProcessRecord, Program


def with_status(item: Workload, **status: object) -> Workload:
    return msgspec.structs.replace(item, status=WorkloadStatus(**status))  # type: ignore[arg-type]


def test_workload_without_replicas_shows_its_pending_reason() -> None:
    why = Condition(type="Assigned", status="False", reason="NoRegionAllowed", message="no region carries eu")
    view = workload_view(with_status(factories.workload(), conditions=(why,)), [])
    assert not view.done
    assert view.stages == {}
    assert view.reason == "NoRegionAllowed: no region carries eu"
    summary = Summary(regions=(RegionProgress(region="eu-west", pending_reason="InsufficientCpu"),))
    assert workload_view(with_status(factories.workload(), summary=summary), []).reason == "eu-west: InsufficientCpu"


def test_reason_of_waiting_replicas_comes_before_the_progress_of_the_rollout() -> None:
    rollout = Condition(type="RolledOut", status="False", reason="RolloutProgressing", message="serving us-east 0/3")
    message = "0 of 3 replicas serve; pending: 3 in us-east: InsufficientCpu (needs 64 cpu)"
    serving = Condition(type="Serving", status="False", reason="NoneServing", message=message)
    waits = Summary(regions=(RegionProgress(region="us-east", pending_reason="InsufficientCpu"),))
    item = with_status(factories.workload(), conditions=(rollout, serving), summary=waits)
    assert workload_view(item, []).reason == f"InsufficientCpu: {message}"
    assert workload_view(with_status(item, conditions=(rollout,)), []).reason.startswith("RolloutProgressing: serving")


def test_stuck_workload_differs_from_one_still_starting() -> None:
    """`up` waits for a starting workload, not for a stuck one."""
    item = factories.workload(replicas=1)
    starting = factories.bound_status(execution=ExecutionBlock(attempt=1, phase=Phase.STARTING))
    crashing = factories.bound_status(execution=ExecutionBlock(attempt=1, phase=Phase.BACKING_OFF, restarts=3))
    assert not workload_view(item, [("us-east", factories.replica(0, status=starting))]).stuck
    assert workload_view(item, [("us-east", factories.replica(0, status=crashing))]).stuck
    for reason, stuck in (("Waiting", False), ("InsufficientCpu", True)):
        summary = Summary(regions=(RegionProgress(region="eu-west", pending_reason=reason),))
        assert workload_view(with_status(item, summary=summary), []).stuck is stuck


def unassigned(item: Workload, reason: str, *, generation: int | None = None, **status: object) -> Workload:
    observed = item.metadata.generation if generation is None else generation
    why = Condition(type="Assigned", status="False", reason=reason, message="x", observed_generation=observed)
    return with_status(item, conditions=(why,), **status)


def test_workload_without_region_is_stuck_if_only_its_owner_can_help() -> None:
    """Regression: the second `up` waited 120 s for a workload whose image cannot be resolved, and exited with 5."""
    item = factories.workload()
    revision = template_hash(item.spec.template)
    failed = ImageBlock(revision=revision, image="lab/none:1", reason="ImageUnresolved", message="no such host")
    assert workload_view(unassigned(item, "ImageUnresolved", image=failed), []).stuck
    assert not workload_view(unassigned(item, "ImageUnresolved"), []).stuck, "the registry was not asked yet"
    other = msgspec.structs.replace(failed, revision="of-another-template")
    assert not workload_view(unassigned(item, "ImageUnresolved", image=other), []).stuck
    for reason, stuck in (
        ("NoRegionAllowed", True),
        ("VolumeClaimNotFound", True),
        ("RegionNotHealthy", False),  # regions become healthy while `up` waits
        ("PartlyAssigned", False),
    ):
        assert workload_view(unassigned(item, reason), []).stuck is stuck, reason
    older = item.metadata.generation - 1
    assert not workload_view(unassigned(item, "NoRegionAllowed", generation=older), []).stuck


def test_failed_batch_is_stuck() -> None:
    item = factories.workload(type=WorkloadType.BATCH, batch=Batch(completions=4, parallelism=2))
    failed = Condition(type="Failed", status="True", reason="BackoffLimitExceeded", message="x")
    assert not workload_view(item, []).stuck
    assert workload_view(with_status(item, conditions=(failed,)), []).stuck


def test_service_is_done_when_replicas_and_summary_agree() -> None:
    item = factories.workload(replicas=2)
    serving = factories.serving_status()
    replicas = [("us-east", factories.replica(ordinal, status=serving)) for ordinal in range(2)]
    early = workload_view(item, replicas)
    assert early.stages == {"Serving": 2}
    assert early.regions == {"us-east": 2}
    assert not early.done, "the global cell does not report it yet, so its Endpoint may be missing"
    assert workload_view(with_status(item, summary=Summary(serving=2)), replicas).done
    half = [replicas[0], ("eu-west", factories.replica(1))]
    view = workload_view(with_status(item, summary=Summary(serving=2)), half)
    assert not view.done
    assert view.stages == {"Queued": 1, "Serving": 1}
    assert workload_progress(view) == "1 of 2 serving (eu-west 1, us-east 1)"


def test_replicas_of_a_deleted_workload_do_not_count() -> None:
    item = factories.workload(replicas=1)
    reborn = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, uid="another"))
    assert workload_view(reborn, [("us-east", factories.replica(0, status=factories.serving_status()))]).stages == {}


def test_up_waits_for_a_batch_until_it_runs_or_has_ended() -> None:
    shape = Batch(completions=4, parallelism=2)
    item = factories.workload(type=WorkloadType.BATCH, batch=shape)
    running = factories.replica(0, factories.batch_assignment(4, 2), status=factories.serving_status(serving=False))
    assert not workload_view(item, []).done
    view = workload_view(item, [("us-east", running)])
    assert view.done
    assert workload_progress(view) == "1 running, 0 of 4 succeeded"
    assert workload_view(with_status(item, summary=Summary(succeeded=4)), []).done


def test_unschedulable_node_shows_its_reason() -> None:
    assert node_view("us-east", factories.node()).schedulable
    lost = node_view("us-east", factories.node(contact=ContactState.EXPIRED))
    assert not lost.schedulable
    assert lost.reason == "NodeUnreachable"


def test_status_of_a_stopped_platform_names_up_as_the_only_next_step() -> None:
    cells = tuple(CellView(name=name, url="https://x", ready=False, message="refused") for name in ("global", "eu"))
    text = as_text(PlatformStatus(state="x", supervisor_pid=None, processes=(), cells=cells, nodes=(), workloads=()))
    assert "no supervisor; next: holdfast up" in text
    assert "workloads: unknown (no cell answers)" in text
    assert "what runs goes on" not in text
    assert text.count("next:") == 1


def test_status_text_shows_every_problem() -> None:
    status = PlatformStatus(
        state="x",
        supervisor_pid=None,
        processes=(
            ProcessView(name="cell-global", running=False, restarts=3, last_exit="exited with code 1", log="g.log"),
        ),
        cells=(CellView(name="global", url="https://127.0.0.1:7400", ready=False, message="refused"),),
        nodes=(node_view("us-east", factories.node(contact=ContactState.EXPIRED)),),
        workloads=(workload_view(factories.workload(), []),),
    )
    text = as_text(status)
    for expected in ("no supervisor", "refused", "NodeUnreachable", "cell-global: not running", "g.log", "0/3"):
        assert expected in text
    assert "workloads: unknown" not in text
    region = CellView(name="us-east", url="https://127.0.0.1:7401", ready=True)
    silent = as_text(msgspec.structs.replace(status, workloads=(), cells=(*status.cells, region)))
    assert "workloads: unknown (the global cell lists them and does not answer; what runs goes on)" in silent
    lost = CellView(name="us-east", url="https://127.0.0.1:7401", ready=False, health="Lost", live_nodes=2)
    text = as_text(msgspec.structs.replace(status, cells=(*status.cells, lost)))
    assert "nodes of us-east: unknown (the region does not answer; 2 live in its last report)" in text
    platform = design_platform(("us-east",), agents_per_region=1, port_base=7400, samples=True)
    rows = {what: (how, ready) for what, how, ready in progress_rows(platform, status)}
    assert rows["cells ready"] == ("0 of 1", False)
    assert rows["cell-global"][0].startswith("exited with code 1, restarted 3 times")


def test_process_that_does_not_run_has_no_process_id(tmp_path: Path) -> None:
    """`kill 0` signals the caller's own process group."""
    layout = Layout(tmp_path)
    records = layout.run / "processes"
    records.mkdir(parents=True)
    stopped = ProcessRecord(program=Program(name="agent-us-east-2", argv=("true",)), restarts=4)
    (records / "agent-us-east-2.json").write_bytes(msgspec.json.encode(stopped))
    (view,) = process_views(layout)
    assert msgspec.to_builtins(view)["pid"] is None
    assert not view.running
