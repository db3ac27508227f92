"""Region join: the global cell signs the certificates of a region's cell for a one-time token."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.expected import of_type, present

from holdfast.foundation.ports import SystemClock, SystemPorts
from holdfast.gate.gate import Gate
from holdfast.identity.cell_certificates import (
    CellCertificateAuthority,
    bundle_hashes,
    certificate_facts,
    issue_pem,
    issued_by,
)
from holdfast.identity.certificates import make_ca, write_public
from holdfast.identity.node_certificates import make_csr, new_key
from holdfast.identity.region_joining import RegionJoinService
from holdfast.identity.tokens import token_hash
from holdfast.model.errors import BadRequest, Forbidden, Unauthorized, Unavailable
from holdfast.model.join import CellRequests, JoinToken, JoinTokenSpec, RegionJoinRequest
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import OPERATORS, REGIONS, from_identity
from holdfast.model.region import Region, RegionSpec
from holdfast.model.writes import Create
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects

ADA = from_identity("ada", (OPERATORS,), credential="test")
TOKEN = "hfj.global.secret"


class MovedClock(SystemClock):
    moved_s = 0.0

    def now(self) -> float:
        return super().now() + self.moved_s


class GlobalCell:
    """The gate and store of a global cell with a CA, two regions, and a token for `us-east`."""

    def __init__(self, folder: Path) -> None:
        ports = SystemPorts()
        self.clock = MovedClock()
        ports.clock = self.clock
        self.objects = Objects(MemoryStore(), MemoryStore())
        self.gate = Gate("global", self.objects, ports)
        made = make_ca(folder, now_s=self.clock.now())
        self.authority = CellCertificateAuthority(made.certificate, made.key)
        self.service = RegionJoinService(self.gate, self.authority, ("control.example",))

    async def start(self, **token: object) -> None:
        await self.objects.start()
        other = RegionSpec(zones=("eu-west-a",), endpoint="https://eu.example:7401")
        spec = JoinTokenSpec(sha256=token_hash(TOKEN), **{"region": "us-east", **token})  # type: ignore[arg-type]
        await self.gate.commit(
            ADA,
            [
                Create(Region(metadata=ObjectMeta(name="us-east"), spec=RegionSpec(zones=("us-east-a",)))),
                Create(Region(metadata=ObjectMeta(name="eu-west"), spec=other)),
                Create(JoinToken(metadata=ObjectMeta(name="t"), spec=spec)),
            ],
        )

    def region(self, name: str = "us-east") -> Region:
        return of_type(self.objects.get(BY_NAME["Region"], "", name), Region)


@pytest.fixture
def cell(tmp_path: Path) -> GlobalCell:
    return GlobalCell(tmp_path / "pki")


def requests() -> CellRequests:
    return CellRequests(link=make_csr(new_key(), "ignored"), server=make_csr(new_key(), "ignored"))


def asked(**changes: object) -> RegionJoinRequest:
    made = RegionJoinRequest(
        token=TOKEN, region="us-east", endpoint="https://10.1.0.1:7401", requests=requests(), hosts=("east.example",)
    )
    return msgspec.structs.replace(made, **changes)


async def test_join_signs_both_certificates_and_records_the_region(cell: GlobalCell) -> None:
    await cell.start()
    made = await cell.service.join(asked())
    server, link = (certificate_facts(pem.encode()) for pem in (made.server, made.link))
    assert {"10.1.0.1", "east.example", "127.0.0.1"} <= set(server.hosts)
    assert link.hosts == ()
    assert all(cell.authority.issued(pem.encode()) for pem in (made.server, made.link))
    held = cell.region()
    assert held.spec.endpoint == "https://10.1.0.1:7401"
    recorded = present(held.status.certificate)
    assert recorded.issuer == cell.authority.fingerprint
    assert recorded.hosts == ("10.1.0.1", "east.example")


async def test_token_is_used_once_and_the_same_keys_repeat_the_join(cell: GlobalCell) -> None:
    await cell.start()
    first = asked()
    await cell.service.join(first)
    await cell.service.join(first)  # the answer was lost
    with pytest.raises(Forbidden, match="no uses left"):
        await cell.service.join(asked())


@pytest.mark.parametrize("token", ["hfj.global.other", "", "x" * 300])
async def test_unknown_token_learns_nothing(cell: GlobalCell, token: str) -> None:
    await cell.start()
    with pytest.raises(Unauthorized) as refusal:
        await cell.service.join(asked(token=token))
    assert refusal.value.message == "Unauthorized"


async def test_expired_token_is_refused(cell: GlobalCell) -> None:
    await cell.start(ttl_seconds=60.0)
    cell.clock.moved_s = 61.0
    with pytest.raises(Forbidden, match="expired"):
        await cell.service.join(asked())


async def test_token_of_another_region_is_refused(cell: GlobalCell) -> None:
    await cell.start()
    with pytest.raises(Forbidden, match="for another region"):
        await cell.service.join(asked(region="eu-west"))


async def test_token_for_nodes_lets_no_region_join(cell: GlobalCell) -> None:
    await cell.start(region="")
    with pytest.raises(Forbidden, match="it is for nodes"):
        await cell.service.join(asked())


@pytest.mark.parametrize(("host", "owner"), [("eu.example", "region eu-west"), ("control.example", "the global cell")])
async def test_name_of_another_cell_is_refused_unless_the_token_allows_it(
    cell: GlobalCell, host: str, owner: str
) -> None:
    await cell.start()
    with pytest.raises(Forbidden, match=f"belongs to {owner}"):
        await cell.service.join(asked(hosts=(host,)))
    await cell.gate.commit(
        ADA,
        [
            Create(
                JoinToken(
                    metadata=ObjectMeta(name="allowed"),
                    spec=JoinTokenSpec(sha256=token_hash("two"), region="us-east", hosts=(host, "10.1.0.1")),
                )
            )
        ],
    )
    made = await cell.service.join(asked(token="two", hosts=(host,)))
    assert host in certificate_facts(made.server.encode()).hosts


@pytest.mark.parametrize(
    "endpoint", ["http://10.1.0.1:7401", "https://10.1.0.1", "https://a b:1", "https://x:99999", ""]
)
async def test_endpoint_that_is_no_https_address_is_refused(cell: GlobalCell, endpoint: str) -> None:
    await cell.start()
    with pytest.raises(BadRequest, match=r"endpoint|host"):
        await cell.service.join(asked(endpoint=endpoint))


async def test_hosts_are_bounded_and_checked(cell: GlobalCell) -> None:
    await cell.start()
    with pytest.raises(BadRequest, match="too many"):
        await cell.service.join(asked(hosts=tuple(f"h{n}.example" for n in range(20))))
    with pytest.raises(BadRequest, match="DNS name"):
        await cell.service.join(asked(hosts=("*.example",)))


async def test_renewal_keeps_the_names_of_the_join(cell: GlobalCell) -> None:
    await cell.start()
    await cell.service.join(asked())
    link = from_identity("holdfast:region:us-east", (REGIONS,), credential="certificate:1")
    before = present(cell.region().status.certificate)
    made = await cell.service.renew(link, requests())
    after = present(cell.region().status.certificate)
    assert after.hosts == before.hosts
    assert after.serial != before.serial
    assert "east.example" in certificate_facts(made.server.encode()).hosts


@pytest.mark.parametrize("name", ["holdfast:region:eu-west", "ada"])
async def test_renewal_needs_a_region_that_has_joined(cell: GlobalCell, name: str) -> None:
    await cell.start()
    groups = (REGIONS,) if name.startswith("holdfast") else (OPERATORS,)
    with pytest.raises(Forbidden, match="did not join"):
        await cell.service.renew(from_identity(name, groups, credential="certificate:1"), requests())


async def test_cell_without_ca_key_joins_no_region(cell: GlobalCell) -> None:
    await cell.start()
    with pytest.raises(Unavailable, match="no CA key"):
        await RegionJoinService(cell.gate, None).join(asked())


def test_authority_signs_with_the_certificate_of_its_key(tmp_path: Path) -> None:
    """While the CA is rotated, the file holds two certificates, and one rename of the key decides which one signs."""
    old = make_ca(tmp_path, now_s=0.0 + 1_700_000_000)
    new = make_ca(tmp_path / "next", now_s=1_700_000_000, common_name="second")
    authority = CellCertificateAuthority(old.certificate, old.key)
    path = tmp_path / "server.pem"
    assert issue_pem(authority, path, "cell", hosts=("a.example",), now_s=1_700_000_000)
    assert not issue_pem(authority, path, "cell", hosts=("a.example",), now_s=1_700_000_100)
    write_public(old.certificate, old.certificate.read_bytes() + new.certificate.read_bytes())
    first = authority.fingerprint
    new.key.rename(old.key)
    assert authority.fingerprint != first
    assert set(bundle_hashes(authority.bundle.encode())) == {first, authority.fingerprint}
    assert issue_pem(authority, path, "cell", hosts=("a.example",), now_s=1_700_000_100)
    assert issued_by(authority.bundle.encode(), authority.fingerprint, path.read_bytes())
    assert not issued_by(authority.bundle.encode(), first, path.read_bytes())


def test_certificate_is_renewed_after_most_of_its_lifetime(tmp_path: Path) -> None:
    made = make_ca(tmp_path, now_s=1_700_000_000)
    authority = CellCertificateAuthority(made.certificate, made.key)
    path = tmp_path / "server.pem"
    issue_pem(authority, path, "cell", hosts=("a.example",), now_s=1_700_000_000, seconds=1000.0)
    assert not issue_pem(authority, path, "cell", hosts=("a.example",), now_s=1_700_000_590, seconds=1000.0)
    assert issue_pem(authority, path, "cell", hosts=("a.example",), now_s=1_700_000_610, seconds=1000.0)
