"""How `status` and `up` read a platform: stages, what is done, what it waits for."""

from __future__ import annotations

import msgspec

import making
from holdfast.cli.commands.status import as_text
from holdfast.cli.platform.layout import design
from holdfast.cli.platform.progress import facts, how_far
from holdfast.cli.platform.survey import CellView, ProcessView, Survey, node_view, workload_view
from holdfast.model.meta import Condition
from holdfast.model.node import Contact
from holdfast.model.replica import ExecutionBlock, Phase
from holdfast.model.workload import Batch, RegionProgress, Summary, Workload, WorkloadStatus, WorkloadType


def with_status(item: Workload, **status: object) -> Workload:
    return msgspec.structs.replace(item, status=WorkloadStatus(**status))  # type: ignore[arg-type]


def test_a_workload_without_replicas_says_what_it_waits_for() -> None:
    why = Condition(type="Assigned", status="False", reason="NoRegionAllowed", message="no region carries eu")
    view = workload_view(with_status(making.workload(), conditions=(why,)), [])
    assert not view.done
    assert view.stages == {}
    assert view.reason == "NoRegionAllowed: no region carries eu"
    summary = Summary(regions=(RegionProgress(region="eu-west", pending_reason="InsufficientCpu"),))
    assert workload_view(with_status(making.workload(), summary=summary), []).reason == "eu-west: InsufficientCpu"


def test_work_that_cannot_serve_by_itself_is_told_from_work_that_only_needs_time() -> None:
    """`up` on a platform that was stopped waits for the second and not for the first."""
    item = making.workload(replicas=1)
    starting = making.bound_status(execution=ExecutionBlock(attempt=1, phase=Phase.STARTING))
    crashing = making.bound_status(execution=ExecutionBlock(attempt=1, phase=Phase.BACKING_OFF, restarts=3))
    assert not workload_view(item, [("us-east", making.replica(0, status=starting))]).stuck
    assert workload_view(item, [("us-east", making.replica(0, status=crashing))]).stuck
    for reason, stuck in (("Waiting", False), ("InsufficientCpu", True)):
        summary = Summary(regions=(RegionProgress(region="eu-west", pending_reason=reason),))
        assert workload_view(with_status(item, summary=summary), []).stuck is stuck


def test_a_service_is_done_when_its_replicas_and_its_summary_agree() -> None:
    item = making.workload(replicas=2)
    serving = making.serving_status()
    own = [("us-east", making.replica(ordinal, status=serving)) for ordinal in range(2)]
    early = workload_view(item, own)
    assert early.stages == {"Serving": 2}
    assert early.regions == {"us-east": 2}
    assert not early.done, "global has not heard of it yet, so its Endpoint may not be there either"
    assert workload_view(with_status(item, summary=Summary(serving=2)), own).done
    half = [own[0], ("eu-west", making.replica(1))]
    view = workload_view(with_status(item, summary=Summary(serving=2)), half)
    assert not view.done
    assert view.stages == {"Queued": 1, "Serving": 1}
    assert how_far(view) == "1 of 2 serving (eu-west 1, us-east 1)"


def test_replicas_of_an_older_life_of_the_name_do_not_count() -> None:
    item = making.workload(replicas=1)
    reborn = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, uid="another"))
    assert workload_view(reborn, [("us-east", making.replica(0, status=making.serving_status()))]).stages == {}


def test_a_batch_is_done_once_it_runs_or_ended() -> None:
    shape = Batch(completions=4, parallelism=2)
    item = making.workload(type=WorkloadType.BATCH, batch=shape)
    running = making.replica(0, making.batch_assignment(4, 2), status=making.serving_status(serving=False))
    assert not workload_view(item, []).done
    view = workload_view(item, [("us-east", running)])
    assert view.done
    assert how_far(view) == "1 running, 0 of 4 succeeded"
    assert workload_view(with_status(item, summary=Summary(succeeded=4)), []).done


def test_nodes_say_why_nothing_may_be_placed_on_them() -> None:
    assert node_view("us-east", making.node()).schedulable
    lost = node_view("us-east", making.node(contact=Contact.LAPSED))
    assert not lost.schedulable
    assert lost.reason == "NodeUnreachable"


def test_text_shows_everything_that_is_wrong() -> None:
    survey = Survey(
        state="x",
        supervisor_pid=0,
        processes=(
            ProcessView(name="cell-global", running=False, restarts=3, last_exit="exited with code 1", log="g.log"),
        ),
        cells=(CellView(name="global", url="https://127.0.0.1:7400", ready=False, message="refused"),),
        nodes=(node_view("us-east", making.node(contact=Contact.LAPSED)),),
        workloads=(workload_view(making.workload(), []),),
    )
    text = as_text(survey)
    for expected in ("no supervisor", "refused", "NodeUnreachable", "cell-global: not running", "g.log", "0/3"):
        assert expected in text
    platform = design(("us-east",), agents_per_region=1, port_base=7400, samples=True)
    rows = {what: (how, there) for what, how, there in facts(platform, survey)}
    assert rows["cells ready"] == ("0 of 1", False)
    assert rows["cell-global"][0].startswith("exited with code 1, restarted 3 times")
