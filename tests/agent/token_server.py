"""A token server for docker-registry: checks basic authentication and signs tokens, as the registry verifies them."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

ISSUER, SERVICE = "test-issuer", "test-registry"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, logins: Mapping[str, str], folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.logins = logins
        self.asked: list[tuple[str, str]] = []
        """User (empty for anonymous) and scope of each request."""
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ISSUER)])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._certificate = made.public_bytes(serialization.Encoding.DER)
        self.bundle = folder / "token-server.pem"
        self.bundle.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def settings(self) -> dict[str, str]:
        """The table `auth.token` of docker-registry."""
        realm = f"http://{self.address}/token"
        return {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(self.bundle)}

    def token(self, user: str, scope: str) -> str:
        _, name, actions = scope.split(":")
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": user,
            "aud": SERVICE,
            "exp": now + 300,
            "nbf": now - 10,
            "iat": now - 10,
            "jti": "1",
            "access": [{"type": "repository", "name": name, "actions": actions.split(",")}],
        }
        header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(self._certificate).decode()]}
        text = ".".join(_b64(json.dumps(part).encode()) for part in (header, claims))
        return f"{text}.{_b64(self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        user, _, password = base64.b64decode(given).decode().partition(":")
        scope = parse_qs(urlsplit(self.path).query)["scope"][0]
        self.server.asked.append((user, scope))
        if self.server.logins.get(user, "") != password or not user:
            self.send_response(401)
            self.end_headers()
            return
        data = json.dumps({"token": self.server.token(user, scope)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def running_token_server(folder: Path, logins: Mapping[str, str]) -> Iterator[TokenServer]:
    server = TokenServer(logins, folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
