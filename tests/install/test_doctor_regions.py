"""What `holdfast doctor` on a region's machine says about the other regions, with the region's own certificate."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from tests.server.conftest import running

from holdfast.gate.gate import Gate
from holdfast.identity.certificates import issue, make_ca
from holdfast.install.doctor import failures, other_region_findings
from holdfast.install.places import InstallRecord, Places
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import OPERATORS, REGIONS, from_identity
from holdfast.model.region import Region, RegionSpec
from holdfast.model.writes import Create
from holdfast.server.listener import listen
from holdfast.server.tls import TlsFiles

ADA = from_identity("ada", (OPERATORS,), credential="test")


async def add_region(gate: Gate, name: str, endpoint: str) -> None:
    spec = RegionSpec(zones=(f"{name}-a",), endpoint=endpoint)
    await gate.commit(ADA, [Create(Region(metadata=ObjectMeta(name=name), spec=spec))])


async def test_other_regions_are_checked_and_their_loss_is_a_warning(tmp_path: Path) -> None:
    places = Places(tmp_path / "machine")
    places.begin("region", InstallRecord(role="region", name="north", advertise="https://127.0.0.1:1"))
    pki = places.pki("region")
    async for world in running("global", tmp_path):
        now_s = world.ports.clock.now()
        ca = make_ca(tmp_path / "ca", now_s=now_s)
        cell = issue(tmp_path / "ca", "cell", "cell", now_s=now_s, ips=("127.0.0.1",), server=True)
        link = issue(tmp_path / "ca", "link", "holdfast:region:north", (REGIONS,), now_s=now_s)
        pki.mkdir(parents=True, exist_ok=True)
        (pki / "ca.crt").write_bytes(ca.certificate.read_bytes())
        (pki / "link.pem").write_bytes(link.certificate.read_bytes() + link.key.read_bytes())
        listener = await listen(world.app, "127.0.0.1", 0, TlsFiles(cell.certificate, cell.key, ca.certificate))
        url = f"https://127.0.0.1:{listener.port}"
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            await add_region(world.gate, "north", "https://127.0.0.1:1")
            await add_region(world.gate, "south", f"https://127.0.0.1:{closed.getsockname()[1]}")
            await add_region(world.gate, "upper", url)
            await add_region(world.gate, "waits", "")
            found = await asyncio.to_thread(other_region_findings, places, url)
            assert failures(found) == []
            (lost,) = [each for each in found if each.status == "warn" and each.name.startswith("reach ")]
            assert str(closed.getsockname()[1]) in lost.name and "firewalls" in lost.next_step
            assert [each.status for each in found if each.name == f"reach 127.0.0.1:{listener.port}"] == ["ok"]
            assert not [each for each in found if each.name == "reach 127.0.0.1:1"], "its own cell"
        await listener.stop()
        assert await asyncio.to_thread(other_region_findings, places, url) == []
