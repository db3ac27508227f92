"""Certificates, tokens and their principals, in every state a credential can have."""

from __future__ import annotations

import asyncio
import json
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.gate.conftest import TestPorts

from holdfast.identity.authenticate import REVOCATION_CACHE_S, Authenticator, impersonated_principal
from holdfast.identity.certificates import IssuedCertificate, RevokedSerials, issue, make_ca, revoke
from holdfast.identity.tokens import TokenFile, token_hash
from holdfast.model.errors import Forbidden, Unauthorized
from holdfast.model.principal import OPERATORS, from_identity

DAY_S = 86400.0


@pytest.fixture
def ports() -> TestPorts:
    return TestPorts()


# Tokens


def test_issued_token_is_stored_as_hash(tmp_path: Path, ports: TestPorts) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    token = file.issue("ci", "robot", ("holdfast:tenant:shop",))
    text = (tmp_path / "tokens.json").read_text()
    assert token not in text and json.loads(text)[0]["user"] == "robot"
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600
    who = Authenticator("global", ports, tokens=file).from_bearer(f"Bearer {token}")
    assert (who.name, who.tenants, who.roles) == ("robot", frozenset({"shop"}), frozenset({"user"}))
    assert who.credential == "token:ci"
    with pytest.raises(ValueError, match="exists"):
        file.issue("ci", "robot")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic x", "Bearer wrong", "Bearer " + "x" * 5000, "bearer é"]
)
def test_unknown_bearer_token_is_unauthorized(tmp_path: Path, ports: TestPorts, header: str) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.issue("ci", "robot")
    with pytest.raises(Unauthorized):
        Authenticator("global", ports, tokens=file).from_bearer(header)
    with pytest.raises(Unauthorized):
        Authenticator("global", ports).from_bearer(header)


def test_expired_revoked_or_foreign_token_is_unauthorized(tmp_path: Path, ports: TestPorts) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    auth = Authenticator("global", ports, tokens=file)
    now = ports.clock.now()
    short = file.issue("short", "a", expires_at_s=now + 60)
    regional = file.issue("regional", "b", cells=("north",))
    lasting = file.issue("lasting", "c")
    assert auth.from_token(short).name == "a"
    ports.clock.now_s += 60
    with pytest.raises(Unauthorized):
        auth.from_token(short)
    with pytest.raises(Unauthorized):
        auth.from_token(regional)
    assert Authenticator("north", ports, tokens=file).from_token(regional).name == "b"
    assert auth.from_token(lasting).name == "c"
    # Another process revokes it; the file is reread.
    assert TokenFile(tmp_path / "tokens.json").revoke("lasting")
    with pytest.raises(Unauthorized):
        auth.from_token(lasting)
    assert not file.revoke("lasting")


def test_invalid_token_file_keeps_previous_tokens(tmp_path: Path, ports: TestPorts) -> None:
    path = tmp_path / "tokens.json"
    file = TokenFile(path)
    token = file.issue("ci", "robot")
    auth = Authenticator("global", ports, tokens=file)
    assert auth.from_token(token).name == "robot"
    path.write_text("[{")
    assert auth.from_token(token).name == "robot"
    with pytest.raises(ValueError, match="repair or delete"):
        file.issue("more", "x")
    path.write_text(json.dumps([{"name": "a", "user": "u", "sha256": token_hash(token), "expires": "soon"}]))
    with pytest.raises(Unauthorized):
        auth.from_token(token)


# Certificates


def _peer(made: IssuedCertificate) -> dict[str, Any]:
    found: dict[str, Any] = ssl._ssl._test_decode_cert(str(made.certificate))  # type: ignore[attr-defined]
    return found


async def test_certificate_maps_to_principal_until_revoked(tmp_path: Path, ports: TestPorts) -> None:
    now = ports.clock.now()
    make_ca(tmp_path, now_s=now)
    made = issue(tmp_path, "n1", "holdfast:node:north:n1", ["holdfast:nodes"], now_s=now)
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    auth = Authenticator("north", ports, revoked=RevokedSerials(tmp_path / "revoked.json"))
    who = auth.from_certificate(_peer(made))
    assert (who.node, who.region, who.roles) == ("n1", "north", frozenset({"agent"}))
    assert who.credential == f"certificate:{_peer(made)['serialNumber']}"
    revoke(tmp_path, "n1")
    await asyncio.sleep(REVOCATION_CACHE_S)
    with pytest.raises(Unauthorized):
        auth.from_certificate(_peer(made))


async def test_certificate_outside_validity_is_unauthorized(tmp_path: Path, ports: TestPorts) -> None:
    now = ports.clock.now()
    make_ca(tmp_path, now_s=now)
    made = issue(tmp_path, "ann", "ann", [OPERATORS], now_s=now, days=1)
    auth = Authenticator("global", ports)
    assert auth.from_certificate(_peer(made)).roles == {"operator"}
    ports.clock.now_s += DAY_S
    with pytest.raises(Unauthorized, match="certificate of ann: it has expired; next: an operator makes a new one"):
        auth.from_certificate(_peer(made))
    ports.clock.now_s -= 2 * DAY_S
    with pytest.raises(Unauthorized):
        auth.from_certificate(_peer(made))


@pytest.mark.parametrize("peer", [{}, {"subject": ()}, {"subject": ((("commonName", ""),),), "notAfter": "x"}])
def test_certificate_without_common_name_is_unauthorized(ports: TestPorts, peer: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        Authenticator("global", ports).from_certificate(peer)


def test_issue_keeps_existing_certificate_until_it_expires_soon(tmp_path: Path, ports: TestPorts) -> None:
    now = ports.clock.now()
    ca = make_ca(tmp_path, now_s=now)
    first = issue(tmp_path, "api", "api", now_s=now, dns=["localhost"], ips=["127.0.0.1"], server=True)
    assert make_ca(tmp_path, now_s=now).serial == ca.serial
    again = issue(tmp_path, "api", "api", now_s=now, dns=["localhost"], ips=["127.0.0.1"], server=True)
    assert again.serial == first.serial
    assert issue(tmp_path, "api", "api", now_s=now, dns=["other"], server=True).serial != first.serial
    renewed = issue(tmp_path, "api", "api", now_s=now + 350 * DAY_S, dns=["other"], server=True)
    assert renewed.expires_s > first.expires_s
    with pytest.raises(ValueError, match="not a valid file name"):
        issue(tmp_path, "../x", "x", now_s=now)


async def test_issued_certificates_authenticate_both_sides_of_tls(tmp_path: Path) -> None:
    """A real handshake both ways, and one with a certificate of another CA."""
    import time

    now = time.time()
    make_ca(tmp_path / "a", now_s=now)
    make_ca(tmp_path / "b", now_s=now)
    server = issue(tmp_path / "a", "api", "api", now_s=now, dns=["localhost"], ips=["127.0.0.1"], server=True)
    own = issue(tmp_path / "a", "me", "bob", ["holdfast:tenant:shop"], now_s=now)
    strange = issue(tmp_path / "b", "me", "bob", ["holdfast:operators"], now_s=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(server.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    auth = Authenticator("global", TestPorts())
    auth._ports.clock.now_s = now  # type: ignore[attr-defined]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(auth.from_certificate(writer.get_extra_info("peercert")).name.encode())
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = listening.sockets[0].getsockname()[1]

    async def ask(made: IssuedCertificate) -> bytes:
        client = ssl.create_default_context(cafile=str(server.ca))
        client.load_cert_chain(made.certificate, made.key)
        reader, writer = await asyncio.open_connection("localhost", port, ssl=client)
        try:
            return await reader.read()
        finally:
            writer.close()

    assert await ask(own) == b"bob"
    try:
        response = await ask(strange)
    except (ssl.SSLError, ConnectionError):
        response = b""
    assert response == b""
    listening.close()


def test_impersonation_is_recorded_and_limited_to_people() -> None:
    ann = from_identity("ann", (OPERATORS,), credential="t")
    assert impersonated_principal(ann, "bob", ()).credential == "impersonated by ann"
    assert impersonated_principal(ann, "bob", ()).roles == frozenset()
    assert impersonated_principal(ann, "bob", ("holdfast:tenant:shop",)).tenants == {"shop"}
    for group, name in (
        ("holdfast:controllers", "holdfast:controller:authority"),
        ("holdfast:nodes", "holdfast:node:north:n1"),
        ("holdfast:regions", "holdfast:region:north"),
        ("holdfast:hollow-nodes", "holdfast:hollow:north:h"),
    ):
        with pytest.raises(Forbidden, match="only people"):
            impersonated_principal(ann, name, (group,))


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("holdfast:node:north", ("holdfast:nodes",)),
        ("holdfast:node:north:n1:x", ("holdfast:nodes",)),
        ("holdfast:controller:authority", ("holdfast:nodes",)),
        ("holdfast:region:north", ("holdfast:controllers",)),
        ("n1", ("holdfast:nodes",)),
    ],
)
def test_identity_with_mismatched_group_has_no_role(name: str, groups: tuple[str, ...]) -> None:
    assert from_identity(name, groups, credential="c").roles == frozenset()
