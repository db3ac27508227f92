"""Sources of artifacts: only what the node's configuration names can be read, whatever a tenant writes."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.config import load
from holdfast.agent.drivers import artifact_sources
from holdfast.agent.drivers.artifact_sources import ArtifactSources, SourceRefused, open_source
from holdfast.identity.certificates import issue, make_ca
from holdfast.model.errors import Invalid

LOOPBACK = ("127.0.0.0/8",)


def read(allowed: ArtifactSources, source: str) -> bytes:
    with open_source(allowed, source) as chunks:
        return b"".join(chunks)


def refusal(allowed: ArtifactSources, source: str) -> str:
    with pytest.raises(SourceRefused) as refused:
        read(allowed, source)
    return str(refused.value)


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """A real server on loopback. Yields its host:port and the paths that were requested."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()


def content(data: bytes, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return answer


def redirect(location: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", location)
        request.end_headers()

    return answer


def plain(host: str, *hosts: str, networks: tuple[str, ...] = LOOPBACK) -> ArtifactSources:
    return ArtifactSources(schemes=("http",), hosts=(host, *hosts), networks=networks)


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_are_denied_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("key")
    for source in (str(tmp_path / "f"), f"file://{tmp_path}/f", f"file:{tmp_path}/f", "/etc/passwd", "/proc/self/mem"):
        assert "artifacts.directories" in refusal(ArtifactSources(), source)


def test_only_regular_files_below_a_named_directory_are_read(tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "shared-not"
    (shared / "sub").mkdir(parents=True)
    private.mkdir()
    (shared / "sub" / "a b").write_text("content")
    (private / "key").write_text("key")
    (shared / "link").symlink_to(private / "key")
    (shared / "folder").symlink_to(private)
    (shared / "inner").symlink_to("sub")
    os.mkfifo(shared / "pipe")
    allowed = ArtifactSources(directories=(str(shared),))
    assert read(allowed, f"{shared}/sub/a b") == b"content"
    assert read(allowed, f"file://{shared}/sub/a%20b") == b"content"
    assert read(allowed, f"{shared}//./sub/a b") == b"content"
    for source in (
        f"{shared}/link",
        f"{shared}/folder/key",
        f"{shared}/inner/a b",
        f"{shared}/pipe",
        f"{shared}/sub",
        str(shared),
        f"{private}/key",
        f"{shared}/../shared-not/key",
        f"file://{shared}/%2e%2e/shared-not/key",
        f"file://other{shared}/sub/a%20b",
        "shared/sub/a b",
        f"{shared}/sub/a b\0",
        f"file://{shared}/sub%00",
    ):
        assert refusal(allowed, source), source


# --- hosts and addresses ----------------------------------------------------------------------------------------------


def test_host_that_is_not_named_is_not_contacted() -> None:
    with serving(content(b"metadata")) as (host, requests):
        assert "artifacts.schemes" in refusal(ArtifactSources(hosts=(host,), networks=LOOPBACK), f"http://{host}/")
        assert "artifacts.hosts" in refusal(plain("example.com"), f"http://{host}/")
        assert "artifacts.hosts" in refusal(plain("127.0.0.1"), f"http://{host}/"), "another port is another service"
        assert requests == []
        assert read(plain(host), f"http://{host}/x?y=1") == b"metadata"
        assert requests == ["/x?y=1"]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::]"],
)
def test_loopback_is_not_contacted_under_any_name(host: str) -> None:
    with serving(content(b"secret")) as (address, requests):
        port = address.rpartition(":")[2]
        assert refusal(plain(f"*:{port}", f"{host}:{port}", networks=()), f"http://{host}:{port}/")
        assert requests == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("100.100.100.200", False),
        ("127.8.8.8", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("168.63.129.16", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
    ],
)
def test_only_public_or_named_addresses_are_allowed(address: str, public: bool) -> None:
    assert (ArtifactSources().address_refusal(address) == "") is public
    everything = ArtifactSources(networks=("0.0.0.0/0", "::/0"))
    assert everything.address_refusal(address) == "", "the operator may name any network"


def test_name_that_resolves_to_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: the name resolves to a public address first and to loopback later. Each connection checks its own."""
    answers = [[("8.8.8.8", 9)], [("127.0.0.1", 9)], [("127.0.0.1", 9), ("10.0.0.1", 9)]]
    contacted: list[Any] = []

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in answers.pop(0)]

    def connect(_: socket.socket, address: Any) -> None:
        contacted.append(address)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", connect)
    allowed = plain("rebound.example:9", networks=())
    assert "refused" in refusal(allowed, "http://rebound.example:9/")
    for _ in range(2):
        assert "not public" in refusal(allowed, "http://rebound.example:9/")
    assert contacted == [("8.8.8.8", 9)]


def test_redirects_are_checked_again_and_bounded() -> None:
    with serving(content(b"inner")) as (inner, inner_requests):
        with serving(redirect(f"http://{inner}/secret")) as (outer, _):
            assert "artifacts.hosts" in refusal(plain(outer), f"http://{outer}/")
            assert inner_requests == []
            assert read(plain(outer, inner), f"http://{outer}/") == b"inner"
        for location in (
            "file:///etc/passwd",
            "ftp://127.0.0.1/",
            "//",
            "http://a@127.0.0.1/",
            "http://[",
            "/\r\nx: y",
        ):
            with serving(redirect(location)) as (outer, _):
                assert refusal(plain(outer, "*"), f"http://{outer}/"), location
        with serving(redirect("/again")) as (outer, requests):
            assert "redirects" in refusal(plain(outer), f"http://{outer}/")
            assert len(requests) == artifact_sources.ARTIFACT_REDIRECTS_MAX + 1


def test_https_source_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = make_ca(tmp_path, now_s=time.time())
    own = issue(tmp_path, "source", "source", ips=("127.0.0.1",), server=True, now_s=time.time())
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(own.certificate, own.key)
    with serving(content(b"signed"), tls) as (host, requests):
        allowed = ArtifactSources(hosts=(host, host.replace("127.0.0.1", "localhost")), networks=LOOPBACK)
        assert "certificate verify failed" in refusal(allowed, f"https://{host}/")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert read(allowed, f"https://{host}/") == b"signed"
        other = host.replace("127.0.0.1", "localhost")
        assert "localhost" in refusal(allowed, f"https://{other}/"), "the certificate is not for this name"
        assert requests == ["/"]


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(content(b"proxied")) as (proxy, requests), serving(content(b"direct")) as (host, _):
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        assert read(plain(host), f"http://{host}/") == b"direct"
        assert requests == []


# --- bounds of a transfer ---------------------------------------------------------------------------------------------


def test_transfer_beyond_its_size_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(artifact_sources, "ARTIFACT_BYTES_MAX", 1000)

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(bytes(500))

    (tmp_path / "f").write_bytes(bytes(1001))
    assert "limit" in refusal(ArtifactSources(directories=(str(tmp_path),)), f"{tmp_path}/f")
    for answer in (endless, content(bytes(1001)), content(b"", **{"Content-Length": "99999999"})):
        with serving(answer) as (host, _):
            assert "limit" in refusal(plain(host), f"http://{host}/")


def _drip_head(request: BaseHTTPRequestHandler) -> None:
    for index in range(1000):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" if not index else b"x")
        time.sleep(0.05)


def _drip_body(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(1000):
        request.wfile.write(b"x")
        time.sleep(0.05)


def _silent(request: BaseHTTPRequestHandler) -> None:
    time.sleep(30)


@pytest.mark.parametrize("answer", [_drip_head, _drip_body, _silent])
def test_slow_transfer_ends_at_the_deadline(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_sources, "ARTIFACT_FETCH_S", 1.0)
    with serving(answer) as (host, _):
        began = time.monotonic()
        assert "after 1 s" in refusal(plain(host), f"http://{host}/")
        assert time.monotonic() - began < 5


def test_silent_transfer_ends_after_the_limit_on_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_sources, "ARTIFACT_TIMEOUT_S", 0.5)
    with serving(_silent) as (host, _):
        assert "no data for 0.5 s" in refusal(plain(host), f"http://{host}/")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 100,
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200,
        b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000,
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
    ],
)
def test_broken_response_is_refused_with_a_reason(raw: bytes) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(raw)

    with serving(answer) as (host, _):
        assert refusal(plain(host), f"http://{host}/")


@settings(max_examples=200, deadline=None, database=None)
@given(st.text(max_size=60) | st.text(max_size=40).map(lambda text: f"http://{text}") | st.text().map("file:/".__add__))
def test_random_source_is_refused_with_a_reason(source: str) -> None:
    assert refusal(ArtifactSources(schemes=("http", "https")), source)


# --- configuration ----------------------------------------------------------------------------------------------------


def test_configuration_of_sources_is_read_and_checked(tmp_path: Path) -> None:
    def loaded(text: str) -> Any:
        (tmp_path / "agent.toml").write_text(
            f'name = "n1"\nregion = "r"\nzone = "r-a"\nstate_dir = "{tmp_path}/state"\n[artifacts]\n{text}\n'
        )
        return load(str(tmp_path / "agent.toml"), capacity={"cpu": "1"}, devices=()).artifacts

    good = loaded('hosts = ["*.example.com", "a:8080"]\nnetworks = ["10.0.0.0/8"]\ndirectories = ["/srv/artifacts"]')
    assert good.schemes == ("https",)
    assert good.url_refusal("https://cdn.example.com/x") == ""
    assert good.url_refusal("https://a:8080/x") == ""
    for url in ("https://example.com/", "https://cdn.example.com:8080/", "https://a/", "https://example.com.evil.org/"):
        assert good.url_refusal(url), url
    for text, part in (
        ('schemes = ["ftp"]', "schemes"),
        ('hosts = ["http://a/"]', "hosts"),
        ('networks = ["10.0.0.1/8"]', "networks"),
        ('directories = ["srv"]', "directories"),
        ('directories = ["/"]', "state"),
        (f'directories = ["{tmp_path}/state/x"]', "state"),
        ("unknown = 1", "unknown"),
    ):
        with pytest.raises(Invalid) as invalid:
            loaded(text)
        assert part in invalid.value.message
