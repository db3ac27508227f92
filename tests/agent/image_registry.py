"""A real registry on loopback, and images made for it without Docker."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tests.requirements import skip_or_fail

from holdfast.registry.allowed_registries import AllowedRegistries
from holdfast.registry.manifests import node_architecture

TOOLS = Path(__file__).parents[2] / ".tools"
# `tenant` with the password `secret`, as htpasswd -B writes it.
HTPASSWD = "tenant:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def program(name: str) -> str:
    found = shutil.which(name) or str(TOOLS / "bin" / name)
    if not Path(found).exists():
        skip_or_fail(f"{name} is missing; next: make tools")
    return found


def busybox() -> bytes:
    path = TOOLS / "unpacked" / "busybox-static" / "bin" / "busybox"
    if not path.exists():
        skip_or_fail("busybox is missing; next: make tools")
    return path.read_bytes()


class Registry:
    """A running registry. `push` writes an image and returns its digest."""

    def __init__(self, address: str, root: Path) -> None:
        self.address = address
        self.root = root
        self.pid = 0

    def allowed(self, **more: Any) -> AllowedRegistries:
        given = {"registries": (self.address,), "insecure": (self.address,), "networks": ("127.0.0.0/8",)}
        return AllowedRegistries(**{**given, **more})

    def reference(self, name: str) -> str:
        return f"{self.address}/{name}"

    def _send(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request(method, path, body=data, headers=dict(headers))
        response = connection.getresponse()
        response.read()
        assert response.status < 300, (method, path, response.status)
        return response

    def blob(self, repository: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        begun = self._send("POST", f"/v2/{repository}/blobs/uploads/", b"", {"Content-Length": "0"})
        place = urlsplit(begun.headers["Location"])
        path = f"{place.path}?{place.query}&digest={digest}"
        self._send("PUT", path, data, {"Content-Type": "application/octet-stream"})
        return {"digest": digest, "size": len(data)}

    def push(self, name: str, layers: Sequence[bytes], *, indexed: bool = False, **config: Any) -> str:
        repository, _, tag = name.partition(":")
        made = [
            {**self.blob(repository, layer), "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}
            for layer in layers
        ]
        text = {"architecture": node_architecture(), "os": "linux", "config": config}
        settings = {**self.blob(repository, msgspec.json.encode(text)), "mediaType": "application/vnd.oci.image.config"}
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": settings, "layers": made}
        data = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if not indexed:
            self._send("PUT", f"/v2/{repository}/manifests/{tag}", data, {"Content-Type": _MANIFEST})
            return digest
        self._send("PUT", f"/v2/{repository}/manifests/{digest}", data, {"Content-Type": _MANIFEST})
        entry = {"mediaType": _MANIFEST, "digest": digest, "size": len(data)}
        entries = [
            {**entry, "platform": {"architecture": name, "os": "linux"}} for name in ("s390x", node_architecture())
        ]
        listed = json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries[1:]}).encode()
        self._send("PUT", f"/v2/{repository}/manifests/{tag}", listed, {"Content-Type": _INDEX})
        return f"sha256:{hashlib.sha256(listed).hexdigest()}"

    def stored_blob(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self.root / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


def layer(entries: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for info, data in entries:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def file(name: str, data: bytes = b"", mode: int = 0o644, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode = mode
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def folder(name: str, mode: int = 0o755, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, mode=mode, type=tarfile.DIRTYPE, **more)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, type=kind, linkname=target)


def shell_layer() -> bytes:
    """busybox with the programs that tests call."""
    names = ("sh", "id", "cat", "echo", "sleep", "touch", "ls", "dd", "grep", "httpd", "pwd", "env", "md5sum")
    return layer(
        [
            folder("bin"),
            file("bin/busybox", busybox(), 0o755),
            *(link(f"bin/{name}", "busybox") for name in names),
            folder("tmp", 0o1777),
            folder("etc"),
            file("etc/passwd", b"root:x:0:0::/:/bin/sh\napp:x:1000:1000::/srv:/bin/sh\n"),
            folder("srv", 0o700, uid=1000, gid=1000),
            file("srv/own.txt", b"own\n", 0o600, uid=1000, gid=1000),
            file("srv/root.txt", b"root\n", 0o600),
        ]
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_registry(
    root: Path, *, login: bool = False, port: int = 0, token: Mapping[str, str] | None = None
) -> Iterator[Registry]:
    """Starts docker-registry on loopback. `login`: with HTTP basic authentication. `token`: its settings for tokens."""
    command = program("docker-registry")
    address = f"127.0.0.1:{port or free_port()}"
    root.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(root)}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    if login:
        (root / "htpasswd").write_text(HTPASSWD + "\n")
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(root / "htpasswd")}}
    if token is not None:
        settings["auth"] = {"token": dict(token)}
    (root / "config.json").write_text(json.dumps(settings))  # JSON is YAML
    with (root / "log").open("ab") as log:
        process = subprocess.Popen([command, "serve", str(root / "config.json")], stdout=log, stderr=log)
    registry = Registry(address, root)
    registry.pid = process.pid
    try:
        _wait_until_listening(address, process)
        yield registry
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait_until_listening(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the registry did not start")
