"""The join string, and the CA that a joining machine accepts: only the one whose hash is in the string."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import CellCertificateAuthority, issue_pem
from holdfast.identity.certificates import make_ca
from holdfast.install.join_string import JoinString, fetch_verified_ca, parse_join_string

MADE = JoinString(joins="node", name="us-east", url="https://h:1", ca="ab", token="hfj.us-east.s", zones=("a", "b"))


def test_join_string_is_read_back_as_written() -> None:
    assert parse_join_string(f"  {MADE.encode()}\n", "node") == MADE


@pytest.mark.parametrize("text", ["", "hf1.", "hf1.%%%", "hfj.us-east.secret", MADE.encode()[:-9], "hf1." + "A" * 5000])
def test_damaged_join_string_is_refused_without_a_trace(text: str) -> None:
    with pytest.raises(CommandError, match="join token: not readable") as refusal:
        parse_join_string(text, "node")
    assert refusal.value.next_step


def test_join_string_of_another_use_is_refused() -> None:
    with pytest.raises(CommandError, match="it is for a node") as refusal:
        parse_join_string(MADE.encode(), "region", "server")
    step = "use a token of `holdfast region token us-east` or `holdfast server token us-east`"
    assert refusal.value.next_step == step


class CaServer(http.server.BaseHTTPRequestHandler):
    answer = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, CellCertificateAuthority, type[CaServer]]]:
    """A server with a certificate of its own CA, which answers with a bundle that the test sets."""
    import time

    made = make_ca(tmp_path, now_s=time.time())
    authority = CellCertificateAuthority(made.certificate, made.key)
    issue_pem(authority, tmp_path / "s.pem", "cell", hosts=("127.0.0.1",), now_s=time.time())
    handler = type("Handler", (CaServer,), {"answer": json.dumps({"ca": authority.bundle}).encode()})
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "s.pem")
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{listening.server_port}", authority, handler
    listening.shutdown()


def test_ca_with_the_hash_of_the_string_is_accepted(
    server: tuple[str, CellCertificateAuthority, type[CaServer]],
) -> None:
    url, authority, _ = server
    assert fetch_verified_ca(url, authority.fingerprint) == authority.bundle.encode()


def test_server_of_another_platform_is_refused(server: tuple[str, CellCertificateAuthority, type[CaServer]]) -> None:
    url, _, _ = server
    with pytest.raises(CommandError, match="not the platform that the join token was made for") as refusal:
        fetch_verified_ca(url, "0" * 64)
    assert refusal.value.code is ExitCode.DENIED


def test_server_that_shows_a_copied_ca_is_refused(
    server: tuple[str, CellCertificateAuthority, type[CaServer]], tmp_path: Path
) -> None:
    """The CA certificate is public. Who only copied it has no certificate of it, so TLS fails."""
    import time

    url, _, handler = server
    real = make_ca(tmp_path / "real", now_s=time.time())
    wanted = CellCertificateAuthority(real.certificate, real.key)
    handler.answer = json.dumps({"ca": wanted.bundle}).encode()
    with pytest.raises(CommandError, match="certificate"):
        fetch_verified_ca(url, wanted.fingerprint)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"ca": "x"}', b"x" * 300_000])
def test_other_answers_are_refused_without_a_trace(
    server: tuple[str, CellCertificateAuthority, type[CaServer]], answer: bytes
) -> None:
    url, authority, handler = server
    handler.answer = answer
    with pytest.raises(CommandError) as refusal:
        fetch_verified_ca(url, authority.fingerprint)
    assert refusal.value.next_step
