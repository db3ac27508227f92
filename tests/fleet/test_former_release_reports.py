"""Reports of a former-release region have no `status.revision`: it is empty, or from before a downgrade."""

from __future__ import annotations

import msgspec
import pytest
from tests.factories import assignment, with_new_revision
from tests.fleet.test_fleet import Shrinking
from tests.fleet.test_rollout import RolloutHarness, other

from holdfast.fleet.grant_demand import quota_demand, quota_units
from holdfast.model.assignment import AssignmentStatus, Purpose, counts_desired_revision
from holdfast.model.quantity import amounts
from holdfast.model.template import template_hash

BEFORE_THE_DOWNGRADE = "c66800638a"


@pytest.mark.parametrize("revision", ["", BEFORE_THE_DOWNGRADE])
@pytest.mark.parametrize("epochs_behind", [0, 1])
def test_report_without_revision_counts_the_desired_revision_of_its_epoch(revision: str, epochs_behind: int) -> None:
    item = assignment(epoch=5)
    status = AssignmentStatus(observed_epoch=item.spec.epoch - epochs_behind, revision=revision)
    assert counts_desired_revision(with_new_revision(item, status=status)) is (epochs_behind == 0)
    known = msgspec.structs.replace(status, revision=item.spec.revision)
    assert counts_desired_revision(with_new_revision(item, status=known))


@pytest.mark.parametrize("revision", ["", BEFORE_THE_DOWNGRADE])
def test_finished_rollout_needs_no_surge_quota(revision: str) -> None:
    """Seed 1331: the surge of a finished rollout held the last quota, and the next region could not start its own."""
    item = assignment(where="east", replicas=3, epoch=5)
    status = AssignmentStatus(observed_epoch=5, replicas=3, bound=3, updated=3, updated_serving=3, revision=revision)
    finished = with_new_revision(item, status=status)
    cpu = amounts(item.spec.template.resources)["cpu"]
    assert quota_demand(finished)[Purpose.NORMAL, "east", "cpu"] == 3 * cpu
    assert not any(unit.surge for unit in quota_units(finished))
    running = with_new_revision(item, status=msgspec.structs.replace(status, updated=2))
    assert quota_demand(running)[Purpose.NORMAL, "east", "cpu"] == 4 * cpu


def test_rollout_counts_replicas_that_serve_after_a_downgrade() -> None:
    harness = RolloutHarness()
    harness.settle()
    harness.change(other(2))
    for _ in range(2):
        harness.step()
    held = harness.assignments["ap-south"]
    assert held.spec.revision == template_hash(other(2))
    serving = held.spec.replicas - 1
    status = msgspec.structs.replace(held.status, observed_epoch=held.spec.epoch, updated_serving=serving)
    harness.assignments["ap-south"] = with_new_revision(held, status=status)
    harness.step()
    assert status.revision == harness.block.last_good_revision, "from before the downgrade"
    assert harness.block.serving == serving
    assert f"ap-south {serving}/{held.spec.replicas}" in harness.block.message


@pytest.mark.parametrize("revision", ["", BEFORE_THE_DOWNGRADE])
def test_workload_serves_until_the_scale_down_reaches_the_region(revision: str) -> None:
    """From then on the report describes an older epoch, and may count another revision."""
    there = Shrinking()
    there.report(revision=revision)
    there.scale(3)
    assert there.serving_status() == "True", "assign has not acted yet"
    there.assign(replicas=3)
    assert there.serving_status() == "False"
