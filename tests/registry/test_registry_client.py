"""Token authentication, redirects and documents of registries, against servers on loopback."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.model.image import parse_reference
from holdfast.registry.allowed_registries import AllowedRegistries, RegistryCredentials
from holdfast.registry.manifests import BadManifest, ImageExceedsLimits, Manifest, decode_config, decode_document
from holdfast.registry.registry_client import RegistryClient, RegistryRefused, digest_of

DOCUMENT = b'{"schemaVersion": 2}'
Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[str, str], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "")
        self.server.asked.append((self.path, authorization))
        status, headers, data = self.server.answer(self.path, authorization)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serving(answer: Callable[[str, str], Answer]) -> Iterator[Server]:
    server = Server(answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def client(server: Server, *hosts: str, known: RegistryCredentials | None = None) -> RegistryClient:
    allowed = AllowedRegistries(
        registries=(server.address,), hosts=hosts, insecure=(server.address, *hosts), networks=("127.0.0.0/8",)
    )
    return RegistryClient(allowed, parse_reference(f"{server.address}/team/web:1"), lambda _: known)


def test_token_is_asked_for_with_the_credentials_of_the_registry() -> None:
    credentials = RegistryCredentials("tenant", "secret")

    def tokens(path: str, authorization: str) -> Answer:
        if authorization != credentials.basic():
            return 401, {}, b""
        return 200, {}, b'{"token": "t1"}'

    with serving(tokens) as realm:

        def registry(path: str, authorization: str) -> Answer:
            challenge = f'Bearer realm="http://{realm.address}/token",service="web",scope="repository:other:push"'
            return (200, {}, DOCUMENT) if authorization == "Bearer t1" else (401, {"WWW-Authenticate": challenge}, b"")

        with serving(registry) as server:
            assert client(server, realm.address, known=credentials).resolve() == digest_of(DOCUMENT)
            ((path, _),) = realm.asked
            assert path == "/token?scope=repository%3Ateam%2Fweb%3Apull&service=web", "only what is needed is asked for"
            with pytest.raises(RegistryRefused) as refusal:
                client(server, realm.address).resolve()
            assert refusal.value.reason == "RegistryDenied"
            with pytest.raises(RegistryRefused) as refusal:
                client(server, known=credentials).resolve()
            assert refusal.value.reason == "RegistryDenied" and "images.insecure" in refusal.value.message
        assert len(realm.asked) == 2, "a token server that is not named is not contacted"


def test_redirect_goes_only_to_named_hosts_and_without_credentials() -> None:
    with serving(lambda path, authorization: (200, {}, b"layer")) as store:

        def registry(path: str, authorization: str) -> Answer:
            if not authorization:
                return 401, {"WWW-Authenticate": "Basic realm=x"}, b""
            return 307, {"Location": f"http://{store.address}/blob"}, b""

        with serving(registry) as server:
            credentials = RegistryCredentials("tenant", "secret")
            digest = digest_of(b"layer")
            assert client(server, store.address, known=credentials).small_blob(digest) == b"layer"
            assert store.asked == [("/blob", "")]
            with pytest.raises(RegistryRefused) as refusal:
                client(server, known=credentials).small_blob(digest)
            assert refusal.value.reason == "RegistryDenied" and len(store.asked) == 1


@pytest.mark.parametrize(
    ("status", "reason", "answered"),
    [(404, "ImageNotFound", True), (403, "RegistryDenied", True), (503, "ImagePullFailed", False)],
)
def test_answers_of_a_registry_become_reasons(status: int, reason: str, answered: bool) -> None:
    with serving(lambda path, authorization: (status, {}, b"")) as server, pytest.raises(RegistryRefused) as refusal:
        client(server).resolve()
    assert (refusal.value.reason, refusal.value.answered) == (reason, answered)


def test_manifest_with_another_digest_is_refused() -> None:
    with serving(lambda path, authorization: (200, {}, DOCUMENT)) as server, pytest.raises(RegistryRefused) as refusal:
        client(server).manifest("sha256:" + "0" * 64)
    assert refusal.value.reason == "ImageUnusable"


def manifest(**changes: Any) -> bytes:
    part = {"digest": "sha256:" + "0" * 64, "size": 1}
    return json.dumps({"config": part, "layers": [part], **changes}).encode()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"<html>", BadManifest),
        (b"{}", BadManifest),
        (manifest(layers=[{"digest": "sha256:../../x", "size": 1}]), BadManifest),
        (manifest(layers=[{"digest": "sha256:" + "0" * 64, "size": -1}]), BadManifest),
        (manifest(layers=[{"digest": "sha256:" + "0" * 64, "size": 1}] * 200), ImageExceedsLimits),
        (manifest(layers=[{"digest": "sha256:" + "0" * 64, "size": 2**50}]), ImageExceedsLimits),
        (
            json.dumps({"manifests": [{"digest": "sha256:" + "0" * 64, "platform": {"os": "plan9"}}]}).encode(),
            BadManifest,
        ),
    ],
)
def test_hostile_manifest_is_refused(text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_document(text, "amd64")


def test_documents_are_decoded() -> None:
    assert isinstance(decode_document(manifest(), "amd64"), Manifest)
    found = decode_config(b'{"config": {"Entrypoint": null, "Cmd": ["a"], "Env": ["A=1", "broken"], "User": "1:2"}}')
    assert (found.entrypoint, found.cmd, found.env, found.user) == ((), ("a",), ("A=1",), "1:2")
    for wrong in (b"[]", b'{"config": {"Cmd": ["a\\u0000b"]}}'):
        with pytest.raises(BadManifest):
            decode_config(wrong)


def test_host_of_a_redirect_cannot_ask_for_credentials() -> None:
    """A storage host that answers 401 could name a token server of its own, and get the registry's credentials."""
    with serving(lambda path, authorization: (200, {}, b'{"token": "t1"}')) as thief:
        challenge = f'Bearer realm="http://{thief.address}/token"'
        with serving(lambda path, authorization: (401, {"WWW-Authenticate": challenge}, b"")) as store:
            redirect = {"Location": f"http://{store.address}/blob"}
            with serving(lambda path, authorization: (307, redirect, b"")) as server:
                credentials = RegistryCredentials("tenant", "secret")
                with pytest.raises(RegistryRefused) as refusal:
                    client(server, store.address, thief.address, known=credentials).small_blob(digest_of(b"layer"))
                assert refusal.value.reason == "RegistryDenied"
                assert thief.asked == [] and store.asked == [("/blob", "")]
