"""Copies of Secrets and ConfigMaps in a region: written by need, equal to the originals, and gone without a need."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from holdfast.controllers.cache import Cache
from holdfast.foundation.ports import SystemPorts
from holdfast.gate.gate import Gate
from holdfast.gate.local_client import LocalClient
from holdfast.gate.sealing import Sealer
from holdfast.link.config_sync import ConfigCopies, ConfigSync
from holdfast.model.assignment import Assignment, AssignmentSpec
from holdfast.model.config_references import EnvSource
from holdfast.model.config_values import ConfigVersion, ConfigVersions
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.principal import controller
from holdfast.model.secret import ConfigMap, Secret
from holdfast.model.template import Template
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects


class Originals:
    """The answers of the global cell."""

    def __init__(self) -> None:
        self.items: dict[str, Object] = {}
        self.calls = 0
        self.reachable = True

    def put(self, item: Object) -> None:
        self.items[f"{kind_of(item).name}/{item.metadata.name}"] = item

    async def region_config(self, region: str) -> ConfigVersions:
        self.calls += 1
        if not self.reachable:
            raise Unavailable("cut off")
        return ConfigVersions(
            tuple(
                ConfigVersion(kind_of(i).name, i.metadata.namespace, i.metadata.name, i.uid, i.metadata.generation)
                for i in self.items.values()
            )
        )

    async def region_config_object(self, region: str, version: ConfigVersion) -> Object:
        found = self.items.get(f"{version.kind}/{version.name}")
        if found is None:
            raise NotFound("gone")
        return found


class Region:
    def __init__(self) -> None:
        self.originals = Originals()
        self.objects = Objects(MemoryStore(), MemoryStore())
        self.peer, self.here = Cache(), Cache()
        self.use(Sealer())

    def use(self, sealer: Sealer) -> None:
        gate = Gate("west", self.objects, SystemPorts(), sealer=sealer)
        self.sealer = sealer
        copies = ConfigCopies(
            lambda: [item for kind in (Secret, ConfigMap) for item in self.objects.list(kind_of(kind))[0]],
            lambda copy: not isinstance(copy, Secret) or copy.sealed is None or sealer.knows(copy.sealed.key),
        )
        client = LocalClient(gate, controller("link", cell="west"))
        self.sync = ConfigSync("west", self.originals, copies, client, peer=self.peer, here=self.here)

    def secret(self) -> Secret | None:
        found = self.objects.get(kind_of(Secret), "shop", "db")
        return self.sealer.open(found) if isinstance(found, Secret) else None


def secret(generation: int = 1, value: bytes = b"one", uid: str = "u1") -> Secret:
    meta = ObjectMeta(name="db", namespace="shop", uid=uid, generation=generation, annotations={"a": "value"})
    return Secret(metadata=meta, data={"k": value})


def assignment() -> Assignment:
    template = Template(env_from=(EnvSource(secret="db"),))
    spec = AssignmentSpec(workload="w", workload_uid="w", region="west", revision="r", template=template)
    return Assignment(metadata=ObjectMeta(name="w", namespace="shop", uid="a", resource_version="1"), spec=spec)


@pytest.fixture
async def region() -> AsyncIterator[Region]:
    made = Region()
    await made.objects.start()
    yield made
    await made.objects.close()


async def test_region_without_references_makes_no_call(region: Region) -> None:
    await region.sync.run_once()
    assert region.originals.calls == 0


async def test_copy_follows_its_original_and_is_sealed_here(region: Region) -> None:
    region.peer.put(assignment())
    assert region.sync.lacks(assignment())
    region.originals.put(secret())
    await region.sync.run_once()
    assert not region.sync.lacks(assignment())
    copy = region.secret()
    assert copy is not None and (copy.uid, copy.metadata.generation, copy.data) == ("u1", 1, {"k": b"one"})
    assert copy.metadata.annotations == {}
    stored = region.objects.get(kind_of(Secret), "shop", "db")
    assert isinstance(stored, Secret) and stored.sealed is not None and stored.data == {}
    revision = stored.revision
    await region.sync.run_once()
    assert stored.revision == revision, "an equal copy is not written again"
    newer = msgspec.structs.replace(assignment().spec.template, content_versions={"Secret/db": "u1.2"})
    rolled = msgspec.structs.replace(assignment(), spec=msgspec.structs.replace(assignment().spec, template=newer))
    assert region.sync.lacks(rolled) and not region.sync.lacks(assignment())
    region.originals.put(secret(2, b"two"))
    await region.sync.run_once()
    assert not region.sync.lacks(rolled)
    region.originals.put(secret(1, b"three", uid="u2"))
    await region.sync.run_once()
    copy = region.secret()
    assert copy is not None and (copy.uid, copy.data) == ("u2", {"k": b"three"})


async def test_new_revision_is_copied_only_after_its_content(region: Region) -> None:
    """A restart that follows a change of the Secret must not start with the content before."""
    region.peer.put(assignment())
    region.originals.put(secret())
    await region.sync.run_once()
    here = assignment()
    restarted = msgspec.structs.replace(here, spec=msgspec.structs.replace(here.spec, revision="r2"))
    assert region.sync.must_precede(restarted, here) and not region.sync.must_precede(here, here)
    assert region.sync.must_precede(here, None)
    plain = msgspec.structs.replace(here, spec=msgspec.structs.replace(here.spec, template=Template()))
    assert not region.sync.must_precede(plain, None), "without references nothing is asked"


async def test_copy_stays_while_work_here_refers_to_it(region: Region) -> None:
    region.peer.put(assignment())
    region.here.put(assignment())
    region.originals.put(secret())
    await region.sync.run_once()
    region.originals.items.clear()
    region.peer.remove(Assignment, assignment().key, 2)
    await region.sync.run_once()
    assert region.secret() is not None, "the Assignment is still here"
    region.originals.reachable = False
    region.here.remove(Assignment, assignment().key, 2)
    await region.sync.run_once()
    assert region.secret() is not None, "a region that is cut off deletes nothing"
    region.originals.reachable = True
    await region.sync.run_once()
    assert region.secret() is None


async def test_copy_of_a_deleted_original_is_deleted(region: Region) -> None:
    region.peer.put(assignment())
    region.here.put(assignment())
    region.originals.put(secret())
    await region.sync.run_once()
    region.originals.items.clear()
    await region.sync.run_once()
    assert region.secret() is None, "new starts must not get a value that its tenant has withdrawn"


async def test_copy_whose_key_is_lost_is_fetched_again(region: Region) -> None:
    region.peer.put(assignment())
    region.originals.put(secret())
    await region.sync.run_once()
    stored = region.objects.get(kind_of(Secret), "shop", "db")
    assert isinstance(stored, Secret) and stored.sealed is not None
    fresh = Sealer()
    object.__setattr__(fresh.source, "_drawn", (msgspec.structs.replace(fresh.source.all()[0], id="other"),))
    region.use(fresh)
    await region.sync.run_once()
    copy = region.secret()
    assert copy is not None and copy.data == {"k": b"one"}
