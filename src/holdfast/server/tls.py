"""The TLS settings of a listener, from files that may change while it runs.

Client certificates are optional: a client without one may use a token. A certificate of an unknown CA ends the
handshake, and so does one of a CA that is expired or not valid yet. TLS does not compare the dates of a client's own
certificate: that is the authenticator's task, whose refusal names the reason and is in the audit log.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

# Interval at which a server looks for changed certificate files, at most once per connection.
TLS_FILES_CHECK_EVERY_S = 1.0
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which the module `ssl` has no name. It applies to the whole chain, so this
# module gives OpenSSL only those CAs that are valid now.
_DATES_ARE_CHECKED_LATER = ssl.VerifyFlags(0x200000)

_log = structlog.get_logger()


class TlsFiles(msgspec.Struct, frozen=True):
    """The server's certificate, and the authorities whose client certificates it accepts."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    node_ca: Path | None = None

    def authorities(self) -> list[x509.Certificate]:
        paths = [path for path in (self.client_ca, self.node_ca) if path is not None]
        return [found for path in paths for found in _certificates(path)]


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise OSError(f"{path}: expected CA certificates in PEM form ({error})") from None


def tls_context(tls: TlsFiles, authorities: Iterable[x509.Certificate], now_s: float) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["http/1.1"])
    for authority in authorities:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= _DATES_ARE_CHECKED_LATER
        start_s, end_s = _validity(authority)
        if start_s <= now_s < end_s:
            context.load_verify_locations(cadata=authority.public_bytes(Encoding.DER))
    return context


def next_change_s(authorities: Iterable[x509.Certificate], now_s: float) -> float:
    """When the next of these CAs begins or ceases to be valid."""
    return min((at_s for each in authorities for at_s in _validity(each) if at_s > now_s), default=math.inf)


def _validity(authority: x509.Certificate) -> tuple[float, float]:
    return authority.not_valid_before_utc.timestamp(), authority.not_valid_after_utc.timestamp()


class ReloadingTls:
    """The server's TLS settings. Files that change apply to new connections, without a restart.

    OpenSSL offers no removal of a trusted CA from a context. So each handshake is given the newest context, in the
    callback that runs right after the client's first message."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = self._stamps()
        self._current = self._build()
        self._checked_s = time.monotonic()
        self.context = tls_context(files, files.authorities(), time.time())
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if time.monotonic() - self._checked_s >= TLS_FILES_CHECK_EVERY_S:
            self._checked_s = time.monotonic()
            self._reload()
        connection.context = self._current

    def _build(self) -> ssl.SSLContext:
        now_s, authorities = time.time(), self._files.authorities()
        made = tls_context(self._files, authorities, now_s)
        self._built_s, self._changes_s = now_s, next_change_s(authorities, now_s)
        return made

    def _reload(self) -> None:
        try:
            found = self._stamps()
            if found == self._stamp and self._built_s <= time.time() < self._changes_s:
                return
            self._current, self._stamp = self._build(), found
            _log.info("tls_files_reloaded", certificate=str(self._files.certificate))
        except OSError as error:  # ssl.SSLError is one: a file that is half written is tried again at the next check
            _log.warning("tls_files_unreadable", certificate=str(self._files.certificate), error=str(error))

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        files = (self._files.certificate, self._files.key, self._files.client_ca, self._files.node_ca)
        stats = [path.stat() for path in files if path is not None]
        return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in stats)
