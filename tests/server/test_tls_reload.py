"""A server takes new certificate files without a restart, and drops a CA that is no longer trusted."""

from __future__ import annotations

import asyncio
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.identity.cell_certificates import CellCertificateAuthority, issue_pem, issued_by
from holdfast.identity.certificates import issue, make_ca, write_public
from holdfast.server.tls import TLS_FILES_CHECK_EVERY_S, ReloadingTls, TlsFiles


class Authority:
    """A CA with a server and a client certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        now_s = time.time()
        self.ca = make_ca(folder, now_s=now_s, common_name=name)
        self.signing = CellCertificateAuthority(self.ca.certificate, self.ca.key)
        issue_pem(self.signing, folder / "server.pem", "cell", hosts=("127.0.0.1",), now_s=now_s)
        self.server = (folder / "server.pem").read_bytes()
        self.client = issue(folder, "client", f"client of {name}", now_s=now_s)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the subject of the client, once TLS has verified it."""
    shown = writer.get_extra_info("ssl_object").getpeercert() or {}
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    writer.write(f"{names}\n".encode())
    writer.close()


async def ask(port: int, trusted: Authority, shown: Authority) -> tuple[str, bytes]:
    """The server's answer and certificate. Raises ssl.SSLError or ConnectionError if one of both is refused."""
    context = ssl.create_default_context(cafile=str(trusted.ca.certificate))
    context.load_cert_chain(shown.client.certificate, shown.client.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        line = await reader.readline()
        if not line:
            raise ConnectionError("closed by the server")
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return line.decode(), ssl.DER_cert_to_PEM_cert(der).encode()
    finally:
        writer.close()


async def eventually_answered(port: int, trusted: Authority, shown: Authority) -> tuple[str, bytes]:
    deadline = time.monotonic() + 30
    while True:
        try:
            return await ask(port, trusted, shown)
        except (ssl.SSLError, ConnectionError):
            assert time.monotonic() < deadline, "the server does not use its new files"
        await asyncio.sleep(0.1)


async def test_server_follows_its_files_through_a_rotation(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    server, trusted = tmp_path / "server.pem", tmp_path / "ca.crt"
    server.write_bytes(old.server)
    write_public(trusted, old.ca.certificate.read_bytes())
    tls = ReloadingTls(TlsFiles(server, server, trusted))
    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        assert "client of old" in (await ask(port, old, old))[0]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(port, old, new)

        write_public(trusted, old.ca.certificate.read_bytes() + new.ca.certificate.read_bytes())
        line, _ = await eventually_answered(port, old, new)
        assert "client of new" in line
        assert "client of old" in (await ask(port, old, old))[0]  # both are trusted

        (tmp_path / "next.pem").write_bytes(new.server)
        (tmp_path / "next.pem").replace(server)
        write_public(trusted, new.ca.certificate.read_bytes())
        line, certificate = await eventually_answered(port, new, new)
        assert "client of new" in line
        assert issued_by(trusted.read_bytes(), new.signing.fingerprint, certificate)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(port, new, old)


async def test_unusable_file_changes_nothing(tmp_path: Path) -> None:
    held = Authority(tmp_path / "held", "held")
    server, trusted = tmp_path / "server.pem", tmp_path / "ca.crt"
    server.write_bytes(held.server)
    write_public(trusted, held.ca.certificate.read_bytes())
    tls = ReloadingTls(TlsFiles(server, server, trusted))
    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context)
    async with listening:
        server.write_bytes(b"half a file")
        tls._checked_s = 0.0  # the next connection looks at the files
        assert "client of held" in (await ask(listening.sockets[0].getsockname()[1], held, held))[0]


async def test_ca_that_expires_meanwhile_is_no_longer_trusted(tmp_path: Path) -> None:
    """Not even for a certificate with a later end, which somebody signed with the key of the expired CA."""
    now_s = time.time()
    ends_s = int(now_s) + 3
    held, ending = Authority(tmp_path / "held", "held"), Authority(tmp_path / "ending", "ending")
    short = ca_until(ending, ends_s)
    trusted, server = tmp_path / "ca.crt", tmp_path / "server.pem"
    server.write_bytes(held.server)
    write_public(trusted, held.ca.certificate.read_bytes() + short)
    listening = await asyncio.start_server(
        answer, "127.0.0.1", 0, ssl=ReloadingTls(TlsFiles(server, server, trusted)).context
    )
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        assert "client of ending" in (await ask(port, held, ending))[0]
        await asyncio.sleep(ends_s - time.time() + TLS_FILES_CHECK_EVERY_S + 0.1)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(port, held, ending)
        assert "client of held" in (await ask(port, held, held))[0]


def ca_until(authority: Authority, ends_s: int) -> bytes:
    """The CA certificate with another end. What its key has signed is still signed by it."""
    key = serialization.load_pem_private_key(authority.ca.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    held = x509.load_pem_x509_certificate(authority.ca.certificate.read_bytes())
    made = (
        x509.CertificateBuilder()
        .subject_name(held.subject)
        .issuer_name(held.issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(held.not_valid_before_utc)
        .not_valid_after(datetime.fromtimestamp(ends_s, UTC))
    )
    for extension in held.extensions:
        made = made.add_extension(extension.value, critical=extension.critical)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    "content", [b"", b"half a file", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_ca_file_without_certificate_is_named(content: bytes, tmp_path: Path) -> None:
    held, trusted = Authority(tmp_path / "held", "held"), tmp_path / "ca.crt"
    trusted.write_bytes(content)
    (tmp_path / "server.pem").write_bytes(held.server)
    with pytest.raises(OSError, match=f"{trusted}: expected CA certificates in PEM form"):
        ReloadingTls(TlsFiles(tmp_path / "server.pem", tmp_path / "server.pem", trusted))
