"""One row of the table of kinds (`kinds.py`): names, scope, home cell, type, and the functions for it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.model.errors import Cause
from holdfast.model.meta import GROUP


class Home(enum.StrEnum):
    """The cell in which a kind is written. `CELL` kinds are written in every cell."""

    GLOBAL = "global"
    REGION = "region"
    CELL = "cell"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `note` is what `kubectl explain` and docs/kinds.md say. The link copies `mirrored` kinds from the global
    cell into regions, where they are read-only."""

    name: str
    plural: str
    type: type[Any]
    home: Home
    validate: Callable[[Any, Any], Iterator[Cause]]
    note: str = ""
    default: Callable[[Any], Any] | None = None
    namespaced: bool = False
    mirrored: bool = False
    group: str = GROUP
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("holdfast",)
    has_status: bool = True
    scalable: bool = False
    internal: bool = False
    ephemeral: bool = False
    informed: bool = True
    """Whether controllers cache every object of this kind. Otherwise the cell's own process looks after it
    (`cell/config_upkeep.py`), and no controller holds its content."""
    leaf: bool = False
    """Owns no object and is owned by none, so that garbage collection need not cache it: it is deleted at once."""

    @property
    def collected(self) -> bool:
        """Whether garbage collection watches objects of this kind."""
        return self.informed and not self.leaf

    @property
    def singular(self) -> str:
        return self.name.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def api_path(self) -> str:
        """Path prefix of the kind's API group: `/apis/holdfast.dev/v1`, `/api/v1`."""
        return f"/apis/{self.group}/v1" if self.group else "/api/v1"

    @property
    def resource(self) -> str:
        """The name used in errors: `workloads.holdfast.dev`, `events`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def prefix(self) -> str:
        """Store key prefix of this kind."""
        return f"/{self.plural}/"

    def store_key(self, namespace: str, name: str) -> str:
        return f"/{self.plural}/{namespace}/{name}" if self.namespaced else f"/{self.plural}/{name}"

    def range_prefix(self, namespace: str = "") -> str:
        return f"/{self.plural}/{namespace}/" if self.namespaced and namespace else self.prefix
