"""While the newest template of a workload is not what serves, no surface says that all is well."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.factories import with_new_revision
from tests.fleet.test_image_revisions import ONE, TWO, ImageHarness, image
from tests.fleet.test_rollout import KEY

from holdfast.console.workload_reads import line_of
from holdfast.fleet import rollout, workload_status
from holdfast.insight.rollout_progress import rollout_progress
from holdfast.model.assignment import PendingReason
from holdfast.model.meta import find_condition, with_condition
from holdfast.model.newest_template import undo_revision, undo_template, unserved_template
from holdfast.model.template import template_hash
from holdfast.model.workload import Summary, Workload
from holdfast.model.workload_blocks import ConfigBlock
from holdfast.model.writes import SetStatus
from holdfast.server import tables


class Surfaces(ImageHarness):
    def step(self, seconds: float = 1.0) -> None:
        for write in rollout.decide(KEY, self.view(), self.now + seconds).writes:
            assert isinstance(write, SetStatus)
            conditions = self.workload.status.conditions
            for condition in write.conditions:
                conditions = with_condition(conditions, condition, "")
            status = msgspec.structs.replace(self.workload.status, conditions=conditions, **write.blocks)
            self.workload = msgspec.structs.replace(self.workload, status=status)
        super().step(seconds)

    def served(self) -> Workload:
        """The workload with every wanted replica serving, as its regions report."""
        summary = Summary(replicas=6, assigned=6, bound=6, started=6, ready=6, serving=6)
        return msgspec.structs.replace(
            self.workload, status=msgspec.structs.replace(self.workload.status, summary=summary)
        )

    def shown(self) -> dict[str, Any]:
        item = self.served()
        rolled = find_condition(item.status.conditions, "RolledOut")
        assert rolled is not None and rolled.observed_generation == item.metadata.generation
        pending = next(i for i, c in enumerate(tables.COLUMNS["Workload"], 1) if c.name == "Pending")
        progress = rollout_progress(item, list(self.assignments.values()))
        return {
            "condition": (rolled.status, rolled.reason),
            "kubectl": tables.cells("Workload", item, 0.0)[pending],
            "console": (line_of(item).state, line_of(item).reason),
            "rollout status": (progress.phase, progress.reason),
            "updated": sum(r.updated_serving for r in progress.regions),
        }


def served_one() -> Surfaces:
    world = Surfaces()
    world.use(image("1"))
    world.resolve(ONE)
    world.steps()
    return world


def test_served_template_is_well_on_every_surface() -> None:
    assert served_one().shown() == {
        "condition": ("True", "RolloutComplete"),
        "kubectl": "",
        "console": ("ok", ""),
        "rollout status": ("Complete", ""),
        "updated": 6,
    }


def test_unresolved_image_is_named_on_every_surface() -> None:
    world = served_one()
    world.use(image("nope"))
    world.resolve("", reason="ImageNotFound", message="no such tag")
    world.steps()
    assert world.shown() == {
        "condition": ("False", "ImageNotFound"),
        "kubectl": "ImageNotFound",
        "console": ("bad", "ImageNotFound"),
        "rollout status": ("", "ImageNotFound"),
        "updated": 0,
    }
    progress = rollout_progress(world.served(), list(world.assignments.values()))
    assert {r.waiting_for for r in progress.regions} == {"ImageNotFound"} and "no such tag" in progress.message


def test_rolled_back_template_is_named_on_every_surface() -> None:
    world = served_one()
    world.use(image("2"))
    world.resolve(TWO)
    world.bad.add(template_hash(image("2")))
    for _ in range(12):
        world.step(30.0)
        world.serve()
    assert world.digests() == {ONE}
    assert world.shown() == {
        "condition": ("False", "RolledBack"),
        "kubectl": "RolledBack",
        "console": ("bad", "RolledBack"),
        "rollout status": ("RolledBack", "RolledBack"),
        "updated": 0,
    }


def test_replicas_of_earlier_revision_are_not_updated_in_any_wave() -> None:
    world = served_one()
    world.use(image("2"))
    world.resolve(TWO)
    world.bad.add(template_hash(image("2")))
    world.steps()
    progress = rollout_progress(world.workload, list(world.assignments.values()))
    assert [r.updated_serving for r in progress.regions] == [0, 0, 0]


def test_scaled_workload_keeps_its_rollout_with_the_newest_generation() -> None:
    world = served_one()
    world.use(image("1"))
    world.steps()
    assert world.shown()["condition"] == ("True", "RolloutComplete")


@pytest.mark.parametrize("reason", ["ImageNotFound", ""])
def test_undo_of_unresolved_image_returns_to_what_serves(reason: str) -> None:
    world = served_one()
    world.use(image("nope"))
    if reason:
        world.resolve("", reason=reason, message="no such tag")
    world.steps()
    target = undo_revision(world.workload)
    assert target == template_hash(image("1"))
    template = undo_template(world.workload, target)
    assert template == image("1"), "the template as it was written, without the digest that only Holdfast sets"
    waits = unserved_template(world.workload)
    assert waits is not None and ("rollout undo acme/api" in waits.next_step) is bool(reason)


def test_undo_after_a_second_good_revision_returns_to_the_first() -> None:
    world = served_one()
    world.use(image("2"))
    world.resolve(TWO)
    world.steps(16)
    assert undo_revision(world.workload) == template_hash(image("1"))


def test_undo_of_what_runs_replaces_no_replica() -> None:
    world = served_one()
    template = undo_template(world.workload, template_hash(image("1")))
    assert template is not None
    before = dict(world.assignments)
    world.use(template)
    world.steps()
    changed = {i.spec.revision for i in world.assignments.values()} ^ {i.spec.revision for i in before.values()}
    assert not changed and world.digests() == {ONE}


def test_undo_under_other_contents_pins_the_digest_that_ran() -> None:
    world = served_one()
    config = ConfigBlock(versions={"ConfigMap/web": "2"})
    status = msgspec.structs.replace(world.workload.status, config=config, image=None)
    changed = msgspec.structs.replace(world.workload, status=status)
    template = undo_template(changed, template_hash(image("1")))
    assert template is not None and template.image == f"registry.example.com/web:1@{ONE}"


def test_first_revision_has_nothing_to_undo() -> None:
    world = Surfaces()
    world.use(image("nope"))
    world.resolve("", reason="ImageNotFound", message="no such tag")
    world.steps()
    assert undo_revision(world.workload) == "" and undo_template(world.workload, "") is None
    waits = unserved_template(world.workload)
    assert waits is not None and waits.next_step == "correct spec.template.image"


def test_replicas_without_a_place_make_one_warning_on_the_workload() -> None:
    world = served_one()
    name = next(iter(world.assignments))
    pending = (PendingReason(reason="LabelsDoNotMatch", count=2, message="needs disktype=ssd"),)
    item = world.assignments[name]
    world.assignments[name] = with_new_revision(
        item, status=msgspec.structs.replace(item.status, pending=pending, serving=0)
    )
    outcome = workload_status.decide(KEY, world.view(), world.now)
    (warning,) = [n for n in outcome.notices if n.warning]
    assert (warning.reason, warning.about) == ("Unschedulable", world.workload)
    assert "LabelsDoNotMatch (needs disktype=ssd)" in warning.message
    (write,) = outcome.writes
    assert isinstance(write, SetStatus)
    status = msgspec.structs.replace(world.workload.status, summary=write.blocks["summary"])
    world.workload = with_new_revision(world.workload, status=status)
    assert not [n for n in workload_status.decide(KEY, world.view(), world.now).notices if n.warning]
