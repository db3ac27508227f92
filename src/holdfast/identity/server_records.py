"""Which servers of cells are revoked: by their records in the global cell, and by a file beside the CA.

The file outlives the store: a certificate that was revoked stays refused after the global cell is restored from an
older backup. Regions have no records of servers; their file follows the global cell (`cell/certificate_upkeep.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.identity.certificates import RevokedSerials, write_public
from holdfast.model.kinds import BY_NAME
from holdfast.model.principal import REGIONS, SERVERS, Principal
from holdfast.model.region import Region
from holdfast.model.server import Server
from holdfast.model.times import parse_time
from holdfast.store.objects import Objects

REVOKED_SERVERS_FILE = "revoked-servers.json"
# Names of revoked servers that the file and the global cell's answers hold: the newest. Certificates last 90 days.
REVOKED_SERVERS_MAX = 1000
_SERVER, _REGION = BY_NAME["Server"], BY_NAME["Region"]


class ServerRecords:
    """`folder` is the directory of the CA certificate."""

    def __init__(self, cell: str, objects: Objects, folder: Path) -> None:
        self._cell = cell
        self._objects = objects
        self._path = folder / REVOKED_SERVERS_FILE
        self._file = RevokedSerials(self._path)

    def servers(self, cell: str) -> list[Server]:
        """The servers of a cell that are not revoked, in the order in which they joined. Empty in a region."""
        if self._cell != "global":
            return []
        found = [s for s in self._objects.list(_SERVER)[0] if isinstance(s, Server)]
        revoked = self.revoked()
        kept = [s for s in found if s.spec.cell == cell and s.metadata.name not in revoked]
        return sorted(kept, key=lambda s: (s.metadata.creation_timestamp, s.metadata.name))

    def own_urls(self) -> tuple[str, ...]:
        """URLs of the servers of this cell; empty if they are not recorded."""
        if self._cell == "global":
            return tuple(dict.fromkeys(server.spec.url for server in self.servers("global")))
        region = self._objects.get(_REGION, "", self._cell)
        return region.spec.endpoints if isinstance(region, Region) else ()

    def revoked(self) -> frozenset[str]:
        """Names of revoked servers."""
        if self._cell != "global":
            return self._file.all()
        listed = self._objects.list(_SERVER)[0]
        return self._file.all() | {s.metadata.name for s in listed if isinstance(s, Server) and s.spec.revoked}

    def remember(self, names: Iterable[str]) -> bool:
        """Adds names to the file. Returns whether it changed."""
        held = self._file.all()
        added = sorted(set(names) - held)
        if not added:
            return False
        kept = [*sorted(held), *added][-REVOKED_SERVERS_MAX:]
        write_public(self._path, msgspec.json.encode(kept) + b"\n")
        return True

    def rejection_reason(self, who: Principal, issued_s: float) -> str:
        """Why a certificate of a cell is refused; empty if it is accepted."""
        if REGIONS not in who.groups and SERVERS not in who.groups:
            return ""
        if who.server:
            return "CertificateRevoked" if who.server in self.revoked() else ""
        region = self._objects.get(_REGION, "", who.region) if self._cell == "global" and who.region else None
        if isinstance(region, Region) and region.spec.revoked_before:
            return "CertificateRevoked" if issued_s < parse_time(region.spec.revoked_before) else ""
        return ""


def other_urls(servers: Sequence[Server], url: str) -> tuple[str, ...]:
    return tuple(server.spec.url for server in servers if server.spec.url != url)
