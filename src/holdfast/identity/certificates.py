"""The platform's certificate authority: creates keys and certificates for cells, agents and people.

Owns a directory: `ca.crt`, `ca.key`, `NAME.crt`, `NAME.key`, `revoked.json`. Keys are EC P-256, readable only by their
owner. An existing certificate is returned unchanged unless it expires soon; then a new one is issued.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_NAME = "ca"
# Lifetime of a cell's CA certificate.
CA_DAYS = 3650
# Default lifetime of the certificates that the CA issues.
DAYS = 365
# Remaining lifetime below which a certificate is issued again.
RENEW_BEFORE_DAYS = 30
REVOKED_FILE = "revoked.json"
_BACKDATED = timedelta(minutes=5)


class IssuedCertificate(msgspec.Struct, frozen=True):
    """Files of a certificate and its key, and its expiry in seconds since the epoch."""

    certificate: Path
    key: Path
    ca: Path
    expires_s: float
    serial: str


def make_ca(directory: Path, *, now_s: float, common_name: str = "holdfast") -> IssuedCertificate:
    """The platform's CA. An existing CA is kept: replacing it would invalidate every certificate it signed."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    certificate, key_path = _paths(directory, CA_NAME)
    if certificate.exists() and key_path.exists():
        return _issued(directory, CA_NAME)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    start = datetime.fromtimestamp(now_s, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATED)
        .not_valid_after(start + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_path, key)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return _issued(directory, CA_NAME)


def issue(
    directory: Path,
    name: str,
    common_name: str,
    organizations: Sequence[str] = (),
    *,
    now_s: float,
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    server: bool = False,
    client: bool = True,
    days: int = DAYS,
    anew: bool = False,
) -> IssuedCertificate:
    """A certificate for `common_name` (the user) in `organizations` (its groups), stored under `name`.

    An existing certificate with the same content is kept until it expires soon, unless `anew` is set.
    """
    certificate, key_path = _paths(directory, name)
    wanted = _subject(common_name, organizations)
    names = _alternative_names(dns, ips)
    kept = not anew and certificate.exists() and key_path.exists()
    if kept and _is_still_valid(certificate, wanted, names, now_s):
        return _issued(directory, name)
    ca_path, ca_key_path = _paths(directory, CA_NAME)
    ca = x509.load_pem_x509_certificate(ca_path.read_bytes())
    ca_key = serialization.load_pem_private_key(ca_key_path.read_bytes(), None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{ca_key_path}: not an EC key, so not a CA created by Holdfast")
    key = ec.generate_private_key(ec.SECP256R1())
    start = datetime.fromtimestamp(now_s, UTC)
    uses = [
        u
        for u, wants in ((ExtendedKeyUsageOID.SERVER_AUTH, server), (ExtendedKeyUsageOID.CLIENT_AUTH, client))
        if wants
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(wanted)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATED)
        .not_valid_after(min(start + timedelta(days=days), ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = builder.sign(ca_key, hashes.SHA256())
    _write_key(key_path, key)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return _issued(directory, name)


def revoke(directory: Path, name: str) -> str:
    """Revokes a certificate at once. Returns its serial."""
    serial = serial_of(directory, name)
    revoke_serial(directory, serial)
    return serial


def serial_of(directory: Path, name: str) -> str:
    """The serial of the certificate stored under a name."""
    return _issued(directory, name).serial


def revoke_serial(directory: Path, serial: str) -> None:
    path = directory / REVOKED_FILE
    held = RevokedSerials(path).all()
    if serial not in held:
        _write(path, msgspec.json.encode(sorted({*held, serial})) + b"\n", 0o644)


class RevokedSerials:
    """The revoked serials. The file is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._serials: frozenset[str] = frozenset()

    def all(self) -> frozenset[str]:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return frozenset()
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._seen:
            self._serials = frozenset(msgspec.json.decode(self._path.read_bytes(), type=list[str]))
            self._seen = stamp
        return self._serials


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"certificate name {name!r}: not a valid file name")
    return directory / f"{name}.crt", directory / f"{name}.key"


def _subject(common_name: str, organizations: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative_names(dns: Sequence[str], ips: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(each) for each in dns]
    return [*names, *(x509.IPAddress(ipaddress.ip_address(each)) for each in ips)]


def _is_still_valid(path: Path, subject: x509.Name, names: list[x509.GeneralName], now_s: float) -> bool:
    made = x509.load_pem_x509_certificate(path.read_bytes())
    try:
        held = list(made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        held = []
    lifetime_s = (made.not_valid_after_utc - made.not_valid_before_utc).total_seconds()
    left_s = made.not_valid_after_utc.timestamp() - now_s
    # Short-lived certificates are renewed in the last third of their lifetime, not 30 days ahead.
    enough = left_s > min(RENEW_BEFORE_DAYS * 86400, lifetime_s / 3)
    return made.subject == subject and held == names and enough


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(directory: Path, name: str) -> IssuedCertificate:
    certificate, key = _paths(directory, name)
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    return IssuedCertificate(
        certificate=certificate,
        key=key,
        ca=_paths(directory, CA_NAME)[0],
        expires_s=made.not_valid_after_utc.timestamp(),
        serial=f"{made.serial_number:X}",
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(path, encoded, 0o600)


def write_private(path: Path, content: bytes) -> None:
    """Writes a secret, readable only by its owner."""
    _write(path, content, 0o600)


def write_public(path: Path, content: bytes) -> None:
    """Writes a certificate, readable by everyone."""
    _write(path, content, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Atomically, and never readable by others before its mode is set."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
