"""Further servers of a cell: joining with a token, the keys that they share, and revocation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.expected import of_type
from tests.identity.test_region_joining import ADA, GlobalCell, asked, requests

from holdfast.identity.authenticate import Authenticator
from holdfast.identity.cell_certificates import certificate_facts
from holdfast.identity.cell_revocation import CellRevocation
from holdfast.identity.joining import JoinService
from holdfast.identity.node_certificates import make_csr, new_key
from holdfast.identity.server_records import ServerRecords
from holdfast.identity.shared_material import MaterialFiles, SharedMaterial, read_epoch, seal, take_ca, unseal
from holdfast.identity.tokens import token_hash
from holdfast.model.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound
from holdfast.model.join import CellRequests, JoinToken, JoinTokenSpec, MaterialRequest, RevokeRequest
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import OPERATORS, REGIONS, SERVERS, Principal, from_identity
from holdfast.model.server import Server
from holdfast.model.writes import Create, Update

SERVER = BY_NAME["Server"]


@pytest.fixture
def cell(tmp_path: Path) -> GlobalCell:
    return GlobalCell(tmp_path / "pki")


def with_peer() -> CellRequests:
    return msgspec.structs.replace(requests(), peer=make_csr(new_key(), "peer"))


async def add_server_token(cell: GlobalCell, text: str, name: str, **spec: object) -> None:
    made = JoinTokenSpec(sha256=token_hash(text), server=True, **spec)  # type: ignore[arg-type]
    await cell.gate.commit(ADA, [Create(JoinToken(metadata=ObjectMeta(name=name), spec=made))])


async def two_servers(cell: GlobalCell) -> list[Server]:
    """Region us-east with two servers."""
    await cell.start()
    await cell.service.join(asked(requests=with_peer()))
    await add_server_token(cell, "second", "t2", region="us-east")
    await cell.service.join(asked(token="second", endpoint="https://10.1.0.2:7401", requests=with_peer(), hosts=()))
    return servers(cell)


def servers(cell: GlobalCell) -> list[Server]:
    found = [of_type(item, Server) for item in cell.objects.list(SERVER)[0]]
    return sorted(found, key=lambda item: item.spec.url)


def link_of(server: Server) -> Principal:
    return from_identity("holdfast:region:us-east", (REGIONS,), credential="certificate:1", server=server.metadata.name)


async def test_further_server_gets_certificates_and_is_listed_in_the_region(cell: GlobalCell) -> None:
    first, second = await two_servers(cell)
    assert cell.region().spec.endpoint == first.spec.url
    assert set(cell.region().spec.endpoints) == {first.spec.url, second.spec.url}
    assert first.metadata.name != second.metadata.name
    assert second.status.issuer == cell.authority.fingerprint


async def test_certificates_of_a_server_carry_its_name(cell: GlobalCell) -> None:
    await cell.start()
    made = await cell.service.join(asked(requests=with_peer()))
    assert {certificate_facts(pem.encode()).server for pem in (made.link, made.server, made.peer)} == {made.name}


async def test_server_token_of_the_global_cell_needs_no_link(cell: GlobalCell) -> None:
    await cell.start()
    await add_server_token(cell, "global", "t2", region="global")
    made = await cell.service.join(
        asked(
            token="global",
            region="global",
            endpoint="https://10.0.0.2:7400",
            hosts=(),
            requests=msgspec.structs.replace(with_peer(), link=""),
        )
    )
    assert made.link == ""
    assert [server.spec.cell for server in servers(cell)] == ["global"]


async def test_region_token_makes_no_server_of_the_global_cell(cell: GlobalCell) -> None:
    await cell.start()
    with pytest.raises(Forbidden, match="for another region"):
        await cell.service.join(asked(region="global", requests=with_peer()))
    await add_server_token(cell, "early", "t2", region="us-east")
    with pytest.raises(Forbidden, match="has no server yet"):
        await cell.service.join(asked(token="early", requests=with_peer()))


async def test_server_token_works_once(cell: GlobalCell) -> None:
    await two_servers(cell)
    with pytest.raises(Forbidden, match="no uses left"):
        await cell.service.join(asked(token="second", endpoint="https://10.1.0.3:7401", requests=with_peer(), hosts=()))


async def test_renewal_keeps_the_names_of_the_own_server(cell: GlobalCell) -> None:
    _, second = await two_servers(cell)
    made = await cell.service.renew(link_of(second), with_peer())
    hosts = certificate_facts(made.server.encode()).hosts
    assert "10.1.0.2" in hosts
    assert "10.1.0.1" not in hosts
    assert certificate_facts(made.peer.encode()).server == second.metadata.name


async def test_revoked_server_is_refused_also_without_its_record(cell: GlobalCell, tmp_path: Path) -> None:
    first, second = await two_servers(cell)
    records = ServerRecords("global", cell.objects, tmp_path)
    service = CellRevocation(cell.gate)
    with pytest.raises(Conflict, match="1 other serves the cell"):
        await service.revoke_server(ADA, second.metadata.name, RevokeRequest())
    assert records.rejection_reason(link_of(second), 0.0) == ""
    await service.revoke_server(ADA, second.metadata.name, RevokeRequest(confirm=True))
    assert records.rejection_reason(link_of(second), 0.0) == "CertificateRevoked"
    assert records.rejection_reason(link_of(first), 0.0) == ""
    assert cell.region().spec.endpoints == (first.spec.url,)
    assert records.remember(records.revoked())
    restored = GlobalCell(tmp_path / "restored")
    await restored.start()
    afterwards = ServerRecords("global", restored.objects, tmp_path)
    assert afterwards.rejection_reason(link_of(second), 0.0) == "CertificateRevoked"
    with pytest.raises(Conflict, match="only one of cell us-east"):
        await service.revoke_server(ADA, first.metadata.name, RevokeRequest(confirm=True))


async def test_revoked_region_loses_servers_tokens_and_endpoint_in_one_commit(cell: GlobalCell, tmp_path: Path) -> None:
    await two_servers(cell)
    await add_server_token(cell, "third", "t3", region="us-east")
    service = CellRevocation(cell.gate)
    with pytest.raises(Conflict, match=r"2 servers lose their certificates.*NO other region is healthy"):
        await service.revoke_region(ADA, "us-east", RevokeRequest())
    before = cell.objects.head(SERVER)
    done = await service.revoke_region(ADA, "us-east", RevokeRequest(confirm=True, reason="rack stolen"))
    assert len(done.revoked) == 2
    assert "t3" in done.tokens
    assert all(server.spec.revoked for server in servers(cell))
    assert cell.region().spec.servers == ()
    assert cell.objects.head(SERVER) > before
    with pytest.raises(NotFound):
        await service.revoke_region(ADA, "nowhere", RevokeRequest(confirm=True))


async def test_revoked_region_refuses_older_certificates_without_a_server_name(
    cell: GlobalCell, tmp_path: Path
) -> None:
    await cell.start()
    await cell.service.join(asked())
    records = ServerRecords("global", cell.objects, tmp_path)
    unnamed = from_identity("holdfast:region:us-east", (REGIONS,), credential="certificate:1")
    now_s = cell.clock.now()
    assert records.rejection_reason(unnamed, now_s) == ""
    await CellRevocation(cell.gate).revoke_region(ADA, "us-east", RevokeRequest(confirm=True))
    assert records.rejection_reason(unnamed, now_s - 1) == "CertificateRevoked"
    assert records.rejection_reason(unnamed, now_s + 60) == ""


async def test_revocation_cannot_be_undone_or_done_by_a_region(cell: GlobalCell) -> None:
    _, second = await two_servers(cell)
    service = CellRevocation(cell.gate)
    region = from_identity("holdfast:region:us-east", (REGIONS,), credential="certificate:1")
    with pytest.raises(Forbidden):
        await service.revoke_server(region, second.metadata.name, RevokeRequest(confirm=True))
    await service.revoke_server(ADA, second.metadata.name, RevokeRequest(confirm=True))
    held = next(server for server in servers(cell) if server.spec.revoked)
    back = msgspec.structs.replace(held, spec=msgspec.structs.replace(held.spec, revoked=False))
    with pytest.raises(Invalid, match="cannot be undone"):
        await cell.gate.commit(ADA, [Update(back)])


def test_sealed_keys_open_only_with_the_key_that_asked() -> None:
    key = new_key()
    sealed = seal(make_csr(key, "m"), SharedMaterial(ca_key="secret", epoch=3))
    assert b"secret" not in sealed.sealed
    assert unseal(key, sealed) == SharedMaterial(ca_key="secret", epoch=3)
    with pytest.raises(BadRequest, match="cannot be opened"):
        unseal(new_key(), sealed)
    with pytest.raises(BadRequest, match="cannot be opened"):
        unseal(key, msgspec.structs.replace(sealed, sealed=sealed.sealed[:-1] + b"x"))


async def test_keys_are_shared_with_servers_of_the_own_cell_alone(cell: GlobalCell, tmp_path: Path) -> None:
    await cell.start()
    files = MaterialFiles(ca=tmp_path / "pki" / "ca.crt", ca_key=tmp_path / "pki" / "ca.key")
    service = JoinService(cell.gate, None, regions=cell.service, material=files)
    key = new_key()
    request = MaterialRequest(csr=make_csr(key, "m"))
    own = from_identity("holdfast:server:global", (SERVERS,), credential="certificate:1", server="global-1")
    shared = unseal(key, service.share_material(own, request))
    assert shared.ca_key == (tmp_path / "pki" / "ca.key").read_text()
    for name, groups, server in (
        ("holdfast:server:us-east", (SERVERS,), "us-east-1"),
        ("holdfast:server:global", (SERVERS,), ""),
        ("holdfast:server:global", (OPERATORS,), "global-1"),
        ("holdfast:region:us-east", (REGIONS,), "us-east-1"),
        ("ada", (OPERATORS,), ""),
    ):
        other = from_identity(name, groups, credential="certificate:2", server=server)
        with pytest.raises(Forbidden, match="is no server of cell global"):
            service.share_material(other, request)
    without_files = JoinService(cell.gate, None, regions=cell.service)
    with pytest.raises(Invalid, match="its store is SQLite"):
        without_files.share_material(own, request)


def test_ca_of_another_server_is_taken_whole(tmp_path: Path) -> None:
    other, own = GlobalCell(tmp_path / "a"), GlobalCell(tmp_path / "b")
    assert own.authority.fingerprint != other.authority.fingerprint
    found = MaterialFiles(ca=tmp_path / "a" / "ca.crt", ca_key=tmp_path / "a" / "ca.key").read()
    take_ca(tmp_path / "b" / "ca.crt", tmp_path / "b" / "ca.key", msgspec.structs.replace(found, epoch=7))
    assert own.authority.fingerprint == other.authority.fingerprint
    assert read_epoch(tmp_path / "b") == 7
    with pytest.raises(ValueError, match=r".*"):
        take_ca(tmp_path / "b" / "ca.crt", tmp_path / "b" / "ca.key", SharedMaterial(ca="damaged"))
    assert own.authority.fingerprint == other.authority.fingerprint


async def test_authentication_refuses_a_revoked_server(cell: GlobalCell, tmp_path: Path) -> None:
    _, second = await two_servers(cell)
    records = ServerRecords("global", cell.objects, tmp_path)
    check = Authenticator("global", cell.gate.ports, cells=records.rejection_reason)
    assert check.is_credential_valid(link_of(second))
    await CellRevocation(cell.gate).revoke_server(ADA, second.metadata.name, RevokeRequest(confirm=True))
    assert not check.is_credential_valid(link_of(second))
