"""Tags resolved by the global cell against a real registry, through the real gate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.image_registry import Registry, file, layer, running_registry

from holdfast.cell.cell import GLOBAL, Cell
from holdfast.cell.image_resolver import read_allowed
from holdfast.foundation.ports import SystemPorts
from holdfast.model.errors import Invalid
from holdfast.model.meta import Condition, ObjectMeta, find_condition
from holdfast.model.principal import controller
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.template import DriverName, Template
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload, WorkloadSpec
from holdfast.model.writes import Create, Update
from holdfast.store.memory import MemoryStore


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


async def test_resolver_writes_the_digest_or_why_there_is_none(registry: Registry) -> None:
    digest = registry.push("web:1", [layer([file("x")])])
    cell = Cell(GLOBAL, MemoryStore(), MemoryStore(), SystemPorts(), identity="global-0", registries=registry.allowed())
    await cell.start()
    try:
        images = {
            "good": registry.reference("web:1"),
            "absent": registry.reference("web:2"),
            "denied": "other.example/web:1",
            "pinned": f"other.example/web@{digest}",
        }
        operator = cell.client(controller("operator", cell=GLOBAL))
        await operator.commit((Create(Tenant(ObjectMeta(name="acme"))),))
        await operator.commit((Create(PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(priority=1))),))
        for name, image in images.items():
            spec = WorkloadSpec(template=Template(driver=DriverName.OCI, image=image))
            await operator.commit((Create(Workload(ObjectMeta(name=name, namespace="acme"), spec)),))
        client = cell.client_of("informers")

        async def stored(name: str) -> Workload:
            found = await client.get(Workload, name, "acme")
            assert found is not None
            return found

        async with asyncio.timeout(60):
            while True:
                found = {name: await stored(name) for name in images}
                if all(found[name].status.image is not None for name in ("good", "absent", "denied")):
                    break
                await asyncio.sleep(0.05)
        reasons = {name: item.status.image.reason for name, item in found.items() if item.status.image is not None}
        assert reasons == {"good": "ImageResolved", "absent": "ImageNotFound", "denied": "RegistryDenied"}
        block = found["good"].status.image
        assert block is not None and block.digest == digest
        condition = find_condition(found["denied"].status.conditions, "ImageResolved")
        assert condition is not None and condition.status == "False" and "images.registries" in condition.message
    finally:
        await cell.stop()


@pytest.mark.parametrize("after", ["digest", "earlier", "none"])
async def test_condition_follows_a_change_from_a_tag(registry: Registry, after: str) -> None:
    """To an image with a digest, back to an earlier revision, or to no image: no registry is asked, and what is
    recorded is about the new template."""
    digest = registry.push("shop:1", [layer([file("y")])])
    cell = Cell(GLOBAL, MemoryStore(), MemoryStore(), SystemPorts(), identity="global-0", registries=registry.allowed())
    await cell.start()
    tag, absent = registry.reference("shop:1"), registry.reference("shop:absent")
    pinned = f"other.example/shop@{digest}"
    changes = {"digest": [absent, pinned], "earlier": [tag, absent, tag], "none": [absent, ""]}[after]
    expected = {"digest": f"{pinned} names its digest", "earlier": f"is {digest}", "none": "the template has no image"}
    try:
        operator, client = cell.client(controller("operator", cell=GLOBAL)), cell.client_of("informers")
        await operator.commit((Create(Tenant(ObjectMeta(name="acme"))),))
        await operator.commit((Create(PriorityClass(ObjectMeta(name="standard"), PriorityClassSpec(priority=1))),))

        async def settled(image: str) -> Condition:
            template = Template(driver=DriverName.OCI, image=image) if image else Template(command=("true",))
            old = await client.get(Workload, "web", "acme")
            made = Workload(ObjectMeta(name="web", namespace="acme"), WorkloadSpec(template=template))
            await operator.commit(
                (Create(made) if old is None else Update(msgspec.structs.replace(old, spec=made.spec)),)
            )
            async with asyncio.timeout(60):
                while True:
                    now = await client.get(Workload, "web", "acme")
                    assert now is not None
                    found = find_condition(now.status.conditions, "ImageResolved")
                    if found is not None and found.observed_generation == now.metadata.generation:
                        return found
                    await asyncio.sleep(0.05)

        for image in changes:
            found = await settled(image)
        assert found.status == "True" and expected[after] in found.message
        workload = await client.get(Workload, "web", "acme")
        assert workload is not None and (workload.status.image is None) is (after == "none")
    finally:
        await cell.stop()


def test_configuration_of_registries_is_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('drivers = ["oci"]\n[images]\nregistries = ["r.example:5000"]\n')
    assert read_allowed(path).registries == ("r.example:5000",)
    assert read_allowed(None).registries == ()
    for wrong in (
        '[images]\nregistries = ["https://r.example"]',
        '[images]\nnetworks = ["nowhere"]',
        '[images]\nauth_file = "relative"',
        "[images]\nunknown = 1",
        "[images",
    ):
        path.write_text(wrong)
        with pytest.raises(Invalid) as failure:
            read_allowed(path)
        assert "images" in failure.value.message
