"""Copies Secrets and ConfigMaps into the region: those that its Assignments refer to, and only those.

A copy is written before the Assignment that needs it, updated when its original changes, and deleted when no
Assignment and no replica here refers to it. The region's gate seals a copied Secret with the region's own key. While
nothing is referred to, this makes no call at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

import msgspec
import structlog

from holdfast.client.contract import Client
from holdfast.model.assignment import Assignment
from holdfast.model.config_references import ConfigObject, has_references, is_older_than_wanted, referenced_objects
from holdfast.model.config_values import ConfigVersion, ConfigVersions
from holdfast.model.errors import Fault, NotFound
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key, Object, ObjectMeta
from holdfast.model.replica import Replica
from holdfast.model.view import View
from holdfast.model.writes import Create, Delete, Update, Write

_log = structlog.get_logger()

ConfigKey = tuple[str, ConfigObject]
"""Tenant and object."""


class ConfigOriginals(Protocol):
    """The global cell, as the link of a region may read Secrets and ConfigMaps there."""

    async def region_config(self, region: str) -> ConfigVersions: ...

    async def region_config_object(self, region: str, version: ConfigVersion) -> Object: ...


class ConfigCopies(msgspec.Struct, frozen=True):
    """The copies in this region, and whether one can still be opened: after a lost key it is fetched again."""

    all: Callable[[], Sequence[Object]]
    is_readable: Callable[[Object], bool]


class ConfigSync:
    def __init__(
        self,
        region: str,
        originals: ConfigOriginals | None,
        copies: ConfigCopies | None,
        client: Client,
        *,
        peer: View,
        here: View,
    ) -> None:
        """Without `originals` nothing is copied. `client` writes in this region as role `link`."""
        self._region = region
        self._originals = originals
        self._copies = copies
        self._client = client
        self._peer = peer
        self._here = here

    def lacks(self, assignment: Assignment) -> bool:
        """Whether the Assignment refers to an object that has no copy here yet, or only an older one."""
        if self._copies is None or not has_references(assignment.spec.template):
            return False
        held = {_key(copy): copy for copy in self._copies.all()}
        namespace, template = assignment.metadata.namespace, assignment.spec.template
        for wanted in referenced_objects(template):
            copy = held.get((namespace, wanted))
            if copy is None or is_older_than_wanted(template, wanted, copy.uid, copy.metadata.generation):
                return True
        return False

    def must_precede(self, original: Assignment, copy: Assignment | None) -> bool:
        """Whether the objects must be compared before the Assignment is copied: one of them is missing, or the revision
        is new here. A restart that follows a change of a Secret must not start a replica with the content before.
        """
        new_revision = copy is None or copy.spec.revision != original.spec.revision
        return self.lacks(original) or (new_revision and has_references(original.spec.template))

    async def run_once(self) -> None:
        """Makes the copies equal to the originals. A fault is logged; the next report tries again."""
        if self._originals is None or self._copies is None:
            return
        held = {_key(copy): copy for copy in self._copies.all()}
        wanted = any(has_references(a.spec.template) for a in self._peer.list(Assignment))
        if not held and not wanted:
            return
        try:
            listed = {_version_key(v): v for v in (await self._originals.region_config(self._region)).items}
            for key, version in listed.items():
                copy = held.get(key)
                if copy is None or not self._is_current(copy, version):
                    await self._copy(version, copy)
            gone = self._unneeded(held.keys() - listed.keys())
            if gone:
                await self._client.commit([_deletion(held[key]) for key in sorted(gone)])
        except Fault as fault:
            _log.warning("config_copy_failed", region=self._region, reason=fault.reason, message=fault.message)

    def _is_current(self, copy: Object, version: ConfigVersion) -> bool:
        assert self._copies is not None
        same = copy.uid == version.uid and copy.metadata.generation == version.generation
        return same and self._copies.is_readable(copy)

    async def _copy(self, version: ConfigVersion, copy: Object | None) -> None:
        assert self._originals is not None and self._copies is not None
        try:
            original = await self._originals.region_config_object(self._region, version)
        except NotFound:
            return  # deleted, or no longer needed, since the list
        wanted = _copy_of(original)
        writes: list[Write] = []
        if copy is not None and copy.uid == original.uid and self._copies.is_readable(copy):
            meta = msgspec.structs.replace(wanted.metadata, resource_version=copy.metadata.resource_version)
            writes.append(Update(msgspec.structs.replace(wanted, metadata=meta)))
        else:
            if copy is not None:
                await self._client.commit([_deletion(copy)])
            writes.append(Create(wanted))
        await self._client.commit(writes)

    def _unneeded(self, unlisted: Set[ConfigKey]) -> Set[ConfigKey]:
        """Copies to delete: the original is deleted, or nothing here refers to it any more, such as replicas of the
        revision before.
        """
        if not unlisted:
            return unlisted
        deleted = _referenced(self._peer.list(Assignment)) & unlisted
        used = _referenced(self._here.list(Assignment)) | _referenced(self._here.list(Replica))
        return deleted | (unlisted - used)


def _referenced(items: Iterable[Assignment | Replica]) -> frozenset[ConfigKey]:
    return frozenset(
        (item.metadata.namespace, wanted) for item in items for wanted in referenced_objects(item.spec.template)
    )


def _key(copy: Object) -> ConfigKey:
    return copy.metadata.namespace, ConfigObject(kind_of(copy).name, copy.metadata.name)


def _version_key(version: ConfigVersion) -> ConfigKey:
    return version.namespace, ConfigObject(version.kind, version.name)


def _deletion(copy: Object) -> Delete:
    return Delete(kind_of(copy).name, Key(copy.metadata.namespace, copy.metadata.name), copy.uid)


def _copy_of(original: Object) -> Object:
    """Identity and content. Annotations stay in the global cell: one of them repeats the data."""
    meta = original.metadata
    kept = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        generation=meta.generation,
        creation_timestamp=meta.creation_timestamp,
    )
    return msgspec.structs.replace(original, metadata=kept)
