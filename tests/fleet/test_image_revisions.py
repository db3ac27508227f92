"""Revisions whose image has a tag: nothing runs before the tag has a digest, which then stays with the revision."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.factories import cache_of, priority, region, tenant, with_new_revision, workload
from tests.fleet.test_rollout import RolloutHarness

from holdfast.fleet import workload_status
from holdfast.model.meta import Key
from holdfast.model.template import DriverName, Template, template_hash
from holdfast.model.workload import Workload
from holdfast.model.workload_blocks import ImageBlock

ONE, TWO = ("sha256:" + text * 32 for text in ("01", "02"))


def image(tag: str, **more: Any) -> Template:
    return Template(driver=DriverName.OCI, image=f"registry.example.com/web:{tag}", **more)


class ImageHarness(RolloutHarness):
    def use(self, template: Template) -> None:
        generation = self.workload.metadata.generation + 1
        metadata = msgspec.structs.replace(self.workload.metadata, generation=generation)
        spec = msgspec.structs.replace(self.workload.spec, template=template)
        self.workload = with_new_revision(self.workload, metadata=metadata, spec=spec)

    def resolve(self, digest: str, **more: Any) -> None:
        template = self.workload.spec.template
        block = ImageBlock(template_hash(template), template.image, digest, **more)
        status = msgspec.structs.replace(self.workload.status, image=block)
        self.workload = with_new_revision(self.workload, status=status)

    def digests(self) -> set[str]:
        return {item.spec.template.image_digest for item in self.assignments.values()}

    def steps(self, count: int = 8) -> None:
        for _ in range(count):
            self.step()
            self.serve()


def test_nothing_is_assigned_before_the_tag_has_a_digest() -> None:
    world = ImageHarness()
    world.use(image("1"))
    world.steps()
    assert not world.assignments
    world.resolve("", reason="ImageNotFound", message="no such image")
    world.steps()
    assert not world.assignments
    world.resolve(ONE)
    world.steps()
    assert len(world.assignments) == 3 and world.digests() == {ONE}


def test_earlier_revision_runs_until_the_new_tag_has_a_digest() -> None:
    world = ImageHarness()
    world.use(image("1"))
    world.resolve(ONE)
    world.steps()
    world.use(image("2"))
    world.steps()
    assert world.digests() == {ONE}
    assert {item.spec.template.image for item in world.assignments.values()} == {"registry.example.com/web:1"}
    world.resolve(TWO)
    world.steps(16)
    assert world.digests() == {TWO}


def test_template_that_returns_runs_the_digest_that_ran() -> None:
    world = ImageHarness()
    world.use(image("1"))
    world.resolve(ONE)
    world.steps()
    world.use(image("1", args=("more",)))
    world.resolve(TWO)
    world.steps(16)
    assert world.digests() == {TWO}
    world.use(image("1"))
    world.steps(16)
    assert world.digests() == {ONE}, "the history knows the digest; the registry is not asked again"


def test_failed_rollout_returns_to_the_digest_of_the_good_revision() -> None:
    world = ImageHarness()
    world.use(image("1"))
    world.resolve(ONE)
    world.steps()
    world.use(image("2"))
    world.resolve(TWO)
    world.bad.add(template_hash(image("2")))
    for _ in range(12):
        world.step(30.0)
        world.serve()
    assert world.digests() == {ONE}


def test_condition_assigned_says_why_the_image_is_not_resolved() -> None:
    item = workload(template=image("1"))
    assert isinstance(item, Workload)
    block = ImageBlock(template_hash(image("1")), "web:1", reason="RegistryDenied", message="no access")
    item = with_new_revision(item, status=msgspec.structs.replace(item.status, image=block))
    view = cache_of(item, tenant(), priority(), region("eu-west"))
    (write,) = workload_status.decide(Key("acme", item.metadata.name), view, 0.0).writes
    conditions = {c.type: c for c in getattr(write, "conditions", ())}
    assert conditions["Assigned"].reason == "ImageUnresolved" and "no access" in conditions["Assigned"].message
