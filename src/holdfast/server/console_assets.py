"""The files of the console and of the documentation, built into the package by `make console` and `make docs`, and the
headers that protect them.

The content security policy allows no inline script or style and no other origin. Files are held in memory, compressed,
and read again when the build changes.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import holdfast.console
from holdfast import __version__
from holdfast.server import status
from holdfast.server.request import Request, Response

if TYPE_CHECKING:
    from holdfast.server.app import Application

ASSETS = Path(holdfast.console.__file__).with_name("assets")
DOCUMENTATION = Path(holdfast.console.__file__).with_name("docs")
# Deepest path of a documentation page, in segments below `/docs`.
DOCS_DEPTH_MAX = 4

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types svelte-trusted-html",
    )
)
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
_NOT_BUILT = b"""<!doctype html><html lang="en"><title>Holdfast console</title>
<p>The console is not built. Next: make console, then load this page again.</p></html>
"""
_DOCS_NOT_BUILT = b"""<!doctype html><html lang="en"><title>Holdfast documentation</title>
<p>The documentation is not built. Next: make docs, then load this page again.</p></html>
"""


class AssetFile(msgspec.Struct, frozen=True):
    content: bytes
    compressed: bytes
    content_type: str
    etag: str


class ConsoleAssets:
    """The built files of one folder by name. A new `index.html` means a new build."""

    def __init__(self, folder: Path = ASSETS) -> None:
        self._folder = folder
        self._stamp = 0
        self._files: dict[str, AssetFile] = {}

    def find(self, name: str) -> AssetFile | None:
        index = self._folder / "index.html"
        stamp = index.stat().st_mtime_ns if index.exists() else 0
        if stamp != self._stamp:
            self._stamp = stamp
            self._files = {
                str(path.relative_to(self._folder)): _load(path)
                for path in self._folder.rglob("*")
                if path.is_file() and path.suffix in _TYPES
            }
        return self._files.get(name)


def _load(path: Path) -> AssetFile:
    content = path.read_bytes()
    etag = f'"{hashlib.blake2b(content, digest_size=9).hexdigest()}"'
    return AssetFile(content, gzip.compress(content, 9, mtime=0), _TYPES[path.suffix], etag)


def _served(request: Request, file: AssetFile, caching: bytes) -> Response:
    headers = [*SECURITY_HEADERS, (b"cache-control", caching), (b"vary", b"accept-encoding")]
    headers.append((b"etag", file.etag.encode()))
    if request.headers.get("if-none-match", "") == file.etag:
        return Response(b"", 304, content_type=file.content_type, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers.append((b"content-encoding", b"gzip"))
        return Response(file.compressed, content_type=file.content_type, headers=headers)
    return Response(file.content, content_type=file.content_type, headers=headers)


async def root(app: Application, request: Request) -> Response:
    """`/` leads to the console, in the cell that serves it."""
    if app.console is None:
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")
    return Response(b"", 302, headers=[(b"location", b"/console"), *SECURITY_HEADERS])


async def index(app: Application, request: Request) -> Response:
    """Every path below `/console` that is not a file or the API is a page of the same program."""
    if app.console is None or request.target.parameters.get("a") in ("api", "assets"):
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")
    file = app.console.assets.find("index.html")
    if file is None:
        return Response(_NOT_BUILT, 503, _TYPES[".html"], [*SECURITY_HEADERS])
    return _served(request, file, b"no-cache")


async def asset(app: Application, request: Request) -> Response:
    """`/console/assets/NAME`: the name contains a hash of the content."""
    file = app.console.assets.find(f"assets/{request.target.parameters['file']}") if app.console is not None else None
    if file is None:
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")
    return _served(request, file, b"public, max-age=31536000, immutable")


async def docs(app: Application, request: Request) -> Response:
    """`/docs` leads to the documentation of this version, `/docs/VERSION/PAGE.html` is a page or file of it."""
    if app.console is None:
        raise status.HttpRefusal(404, "NotFound", "the server could not find the requested resource")
    if app.console.documentation.find("index.html") is None:
        return Response(_DOCS_NOT_BUILT, 404, _TYPES[".html"], [*SECURITY_HEADERS])
    parameters = request.target.parameters
    name = "/".join(parameters[segment] for segment in sorted(parameters))
    if name in ("", __version__):
        home = f"/docs/{__version__}/index.html".encode()
        return Response(b"", 302, headers=[(b"location", home), *SECURITY_HEADERS])
    file = app.console.documentation.find(name)
    if file is None:
        raise status.HttpRefusal(404, "NotFound", "documentation: no such page; next: open /docs and search")
    return _served(request, file, b"no-cache")
