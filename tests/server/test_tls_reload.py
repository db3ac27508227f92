"""A server takes new certificate files without a restart, and drops a CA that is no longer trusted."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from holdfast.identity.cell_certificates import CellCertificateAuthority, issue_pem, issued_by
from holdfast.identity.certificates import issue, make_ca, write_public
from holdfast.server.listener import ReloadingTls, TlsFiles


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
