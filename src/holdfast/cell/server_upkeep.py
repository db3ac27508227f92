"""What each server of an installed cell does for the cell's set of servers.

- A server of the global cell records itself and its newest certificates, notes revoked servers beside the CA, and takes
  the CA of another server on which an operator has rotated it.
- A server whose etcd was started by Holdfast removes the members of revoked servers.

While something fails, the next round tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from holdfast.client.http import HttpClient
from holdfast.foundation.ports import Ports
from holdfast.gate.gate import Gate
from holdfast.identity.cell_certificates import CellCertificateAuthority, certificate_facts
from holdfast.identity.node_certificates import make_csr, new_key
from holdfast.identity.region_joining import RegionJoinService
from holdfast.identity.server_records import ServerRecords, other_urls
from holdfast.identity.shared_material import read_epoch, take_ca, unseal
from holdfast.model.errors import Fault
from holdfast.model.join import MaterialRequest
from holdfast.model.ownership import JOIN
from holdfast.model.principal import Principal
from holdfast.model.region import RegionCertificate
from holdfast.model.server import ServerSpec
from holdfast.model.times import seconds_text
from holdfast.store.etcd.members import list_members, remove_member
from holdfast.store.etcd.target import EtcdTarget

# Interval at which a server looks at the records of the others, and asks them for a newer CA.
SERVER_CHECK_EVERY_S = 3.0

_log = structlog.get_logger()


class GlobalServerUpkeep:
    """`peer` is the file with this server's certificate for calls to the others; it carries the server's name."""

    def __init__(
        self,
        gate: Gate,
        records: ServerRecords,
        authority: CellCertificateAuthority,
        *,
        url: str,
        peer: Path,
        server: Path,
        ca: Path,
        ports: Ports,
        dial: Callable[[str], HttpClient],
    ) -> None:
        self._gate = gate
        self._records = records
        self._joining = RegionJoinService(gate, authority)
        self._authority = authority
        self._url = url
        self._peer = peer
        self._server = server
        self._ca = ca
        self._ports = ports
        self._dial = dial

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        while True:
            try:
                await self._record_itself()
                revoked = self._records.revoked()
                if await asyncio.to_thread(self._records.remember, revoked):
                    _log.info("revoked_servers_noted", servers=sorted(revoked))
                await self._follow_ca()
            except (OSError, ValueError, msgspec.MsgspecError, Fault) as error:
                _log.warning("server_upkeep_failed", error=str(error))
            await self._ports.clock.sleep(SERVER_CHECK_EVERY_S)

    async def _record_itself(self) -> None:
        """The record must name the certificates in use: a rotation of the CA waits for it."""
        held = certificate_facts(self._peer.read_bytes())
        found = next((s for s in self._records.servers("global") if s.metadata.name == held.server), None)
        signed = self._authority.issued(self._peer.read_bytes()) and self._authority.issued(self._server.read_bytes())
        issuer = self._authority.fingerprint if signed else ""
        same = found is not None and (found.status.serial, found.status.issuer) == (held.serial, issuer)
        if not held.server or same or held.server in self._records.revoked():
            return
        hosts = certificate_facts(self._server.read_bytes()).hosts
        now = seconds_text(self._ports.clock.now())
        spec = found.spec if found is not None else ServerSpec("global", self._url, hosts=hosts, joined_at=now)
        made = RegionCertificate(held.serial, "", expires_at=seconds_text(held.end_s), issuer=issuer)
        who = Principal(name=f"holdfast:server:{held.server}", roles=frozenset({JOIN}), credential="in-process")
        await self._gate.commit(who, list(self._joining.record_writes(held.server, spec, made)))

    async def _follow_ca(self) -> None:
        for url in other_urls(self._records.servers("global"), self._url):
            client = self._dial(url)
            try:
                trust = await client.trust_bundle()
                if trust.epoch <= read_epoch(self._ca.parent):
                    continue
                key = new_key()
                answer = await client.shared_material(MaterialRequest(csr=make_csr(key, "material")))
            except Fault as fault:
                _log.debug("server_unreachable", url=url, error=fault.message)
                continue
            finally:
                await client.close()
            await asyncio.to_thread(take_ca, self._ca, self._ca.with_name("ca.key"), unseal(key, answer))
            _log.info("ca_taken", url=url, epoch=trust.epoch)


class EtcdMemberUpkeep:
    """Members have the names of servers. Only members of revoked servers are removed."""

    def __init__(self, target: EtcdTarget, revoked: Callable[[], Iterable[str]], ports: Ports) -> None:
        self._target = target
        self._revoked = revoked
        self._ports = ports

    async def start(self) -> None:
        """Nothing to prepare."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def run(self) -> None:
        done: set[str] = set()
        while True:
            names = set(self._revoked()) - done
            if names:
                try:
                    await asyncio.to_thread(self._remove, names)
                    done |= names
                except (OSError, Fault) as error:
                    _log.warning("etcd_member_removal_failed", servers=sorted(names), error=str(error))
            await self._ports.clock.sleep(SERVER_CHECK_EVERY_S)

    def _remove(self, names: set[str]) -> None:
        for member in list_members(self._target):
            if member.name in names:
                remove_member(self._target, member.id)
                _log.info("etcd_member_removed", member=member.name)
