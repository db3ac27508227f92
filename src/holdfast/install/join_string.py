"""The join string: what one machine prints and another one is given to join.

It carries the address of the cell, the SHA-256 of the platform's CA certificate and the one-time token. The joining
machine fetches the CA without trust, keeps it only if its hash is the one in the string, and then talks TLS with it.
So neither a copied certificate nor a first connection on trust is needed.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import ssl
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.client.server_urls import split_urls
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import bundle_hashes
from holdfast.model.join import TrustBundle

PREFIX = "hf1."
# Characters of a join string. A longer one is refused.
JOIN_STRING_CHARS_MAX = 4096
# Bytes of a CA answer read before it is verified. A larger one is refused.
CA_BYTES_MAX = 256 * 1024
FETCH_TIMEOUT_S = 10.0


class JoinString(msgspec.Struct, frozen=True, omit_defaults=True):
    """`joins` is `region`, `node` or `server`. `name` is the region, or the cell of the server. `url` may name several
    servers, separated by commas."""

    joins: str
    name: str
    url: str
    ca: str
    token: str
    zones: tuple[str, ...] = ()
    replicas: int = 0
    """Servers that the cell is meant to have, for a token of a server; 0 if nobody has said."""

    def encode(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def parse_join_string(text: str, *joins: str) -> JoinString:
    """Raises unless the string is for one of `joins`."""
    text = text.strip()
    step = "paste the whole line that `holdfast region add`, `server token` or `node token` printed"
    try:
        if len(text) > JOIN_STRING_CHARS_MAX or not text.startswith(PREFIX):
            raise ValueError(f"expected up to {JOIN_STRING_CHARS_MAX} characters that start with {PREFIX}")
        data = text.removeprefix(PREFIX)
        found = msgspec.json.decode(
            base64.b64decode(data + "=" * (-len(data) % 4), b"-_", validate=True), type=JoinString
        )
    except (ValueError, binascii.Error, msgspec.MsgspecError) as wrong:
        raise CommandError(f"join token: not readable ({wrong})", next_step=step, code=ExitCode.USAGE) from None
    if found.joins not in joins:
        made_by = " or ".join(f"`{token_command(each, found.name)}`" for each in joins)
        raise CommandError(
            f"join token: it is for a {found.joins} (expected one for a {' or '.join(joins)})",
            next_step=f"use a token of {made_by}",
            code=ExitCode.USAGE,
        )
    return found


def token_command(joins: str, name: str) -> str:
    """The command that makes a token for another machine."""
    if joins == "node":
        return f"holdfast node token --region {name}"
    if joins == "server":
        return f"holdfast server token {name}"
    return f"holdfast region token {'NAME' if name == 'global' else name}"


def fetch_verified_ca(urls: str, fingerprint: str) -> bytes:
    """The CA certificates that the cell trusts, if one of them has this SHA-256. Raises otherwise. Of several servers,
    the first that answers is asked."""
    *before, last = split_urls(urls)
    for url in before:
        try:
            return _verified_ca(url, fingerprint)
        except CommandError as stop:
            if stop.code is not ExitCode.UNREACHABLE:
                raise
    return _verified_ca(last, fingerprint)


def _verified_ca(url: str, fingerprint: str) -> bytes:
    first = _fetch_unverified(url)
    try:
        known = bundle_hashes(first.ca.encode())
    except ValueError:
        known = {}
    if fingerprint not in known:
        raise CommandError(
            f"{url}: not the platform that the join token was made for (CA expected sha256:{fingerprint[:16]}…, found "
            f"{', '.join(f'sha256:{each[:16]}…' for each in known) or 'none'})",
            next_step="check the address; do not continue if somebody may answer in its place",
            code=ExitCode.DENIED,
        )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(known[fingerprint].encode())
        file.flush()
        api = CellApi(url, name="join", ca=Path(file.name), timeout_s=FETCH_TIMEOUT_S)
        try:
            trusted = msgspec.convert(api.get("/join/v1/ca"), TrustBundle)
        finally:
            api.close()
    return trusted.ca.encode()


def _fetch_unverified(url: str) -> TrustBundle:
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=FETCH_TIMEOUT_S, context=context
    )
    try:
        connection.request("GET", "/join/v1/ca")
        answer = connection.getresponse()
        data = answer.read(CA_BYTES_MAX + 1)
        if answer.status != 200 or len(data) > CA_BYTES_MAX:
            raise ValueError(f"status {answer.status}, {len(data)} bytes")
        return msgspec.json.decode(data, type=TrustBundle)
    except (OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandError(
            f"{url}: no CA certificate received ({why})",
            next_step="check that the cell runs and that its port is reachable: holdfast doctor --join TOKEN",
            code=ExitCode.UNREACHABLE,
        ) from None
    finally:
        connection.close()
