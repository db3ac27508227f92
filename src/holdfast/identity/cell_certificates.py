"""Certificates of cells: the platform's CA signs requests, so that private keys stay on the machine that made them.

- The CA certificate file may hold several certificates while the CA is rotated. The one that belongs to the key signs.
- The signer decides the subject and the names, not the request.
- A key and its certificate are one file (`*.pem`, certificate first), so that both change at once.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.identity.certificates import write_private
from holdfast.identity.node_certificates import (
    RequestedKey,
    SignedCertificate,
    make_csr,
    new_key,
    parse_csr,
    parse_server,
)
from holdfast.model.errors import Invalid

# Lifetime of a cell's server and link certificates. They are renewed after CELL_RENEW_FRACTION of it.
CELL_CERTIFICATE_LIFETIME_S = 90 * 86400.0
# Fraction of a cell certificate's lifetime after which the cell renews it. The rest is time for retries.
CELL_RENEW_FRACTION = 0.6
# Names that every cell's server certificate has, for clients on the same machine.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_BACKDATED = timedelta(minutes=5)


class CertificateFacts(msgspec.Struct, frozen=True):
    """What a renewal needs to know of a certificate. Times in seconds since the epoch."""

    start_s: float
    end_s: float
    issuer_key: bytes
    hosts: tuple[str, ...]
    serial: str = ""
    server: str = ""
    """Name of the Server in the subject."""

    def due_s(self) -> float:
        return self.start_s + (self.end_s - self.start_s) * CELL_RENEW_FRACTION


class CellCertificateAuthority:
    """Signs with `key`. Both files are read at each use, so that a rotation needs no restart."""

    def __init__(self, bundle: Path, key: Path) -> None:
        self._bundle = bundle
        self._key = key
        self._load()

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        private = serialization.load_pem_private_key(self._key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise Invalid(f"CA key {self._key}: not an EC key, so not a CA created by Holdfast")
        for certificate in x509.load_pem_x509_certificates(self._bundle.read_bytes()):
            if certificate.public_key() == private.public_key():
                return certificate, private
        raise Invalid(f"CA key {self._key}: belongs to no certificate of {self._bundle}")

    @property
    def bundle(self) -> str:
        """All trusted CA certificates in PEM."""
        return self._bundle.read_text(encoding="ascii")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the CA certificate that signs."""
        return certificate_hash(self._load()[0])

    def issued(self, certificate: bytes) -> bool:
        """Whether the CA that signs now has signed this certificate."""
        ca, _ = self._load()
        return certificate_facts(certificate).issuer_key == _key_identifier(ca)

    def sign(
        self,
        key: RequestedKey,
        common_name: str,
        organizations: Sequence[str] = (),
        *,
        hosts: Sequence[str] = (),
        now_s: float,
        seconds: float = CELL_CERTIFICATE_LIFETIME_S,
        server: str = "",
    ) -> SignedCertificate:
        """A server certificate if `hosts` are given, otherwise a client certificate. `server` is the name of the Server
        that it belongs to, by which it is revoked."""
        ca, private = self._load()
        start = datetime.fromtimestamp(int(now_s), UTC)
        groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
        if server:
            groups.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, f"server-{server}"))
        use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(ca.subject)
            .public_key(key.public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start - _BACKDATED)
            .not_valid_after(min(start + timedelta(seconds=seconds), ca.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(private.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), False)
        made = builder.sign(private, hashes.SHA256())
        return SignedCertificate(
            certificate=made.public_bytes(serialization.Encoding.PEM).decode(),
            serial=f"{made.serial_number:X}",
            expires_s=made.not_valid_after_utc.timestamp(),
        )


def issue_pem(
    authority: CellCertificateAuthority,
    path: Path,
    common_name: str,
    organizations: Sequence[str] = (),
    *,
    hosts: Sequence[str] = (),
    now_s: float,
    seconds: float = CELL_CERTIFICATE_LIFETIME_S,
    server: str = "",
    key: bytes = b"",
) -> bool:
    """Creates or renews a certificate, with a new key or `key`, on the CA's own machine. Returns whether the file
    changed."""
    if path.exists():
        held = certificate_facts(path.read_bytes())
        same = set(held.hosts) == {_text(_name(host)) for host in hosts}
        if same and now_s < held.due_s() and authority.issued(path.read_bytes()):
            return False
    key = key or new_key()
    asked = parse_csr(make_csr(key, "holdfast"))
    signed = authority.sign(asked, common_name, organizations, hosts=hosts, now_s=now_s, seconds=seconds, server=server)
    write_private(path, signed.certificate.encode() + key)
    return True


def certificate_facts(pem: bytes) -> CertificateFacts:
    """Facts of the first certificate in the file."""
    found = x509.load_pem_x509_certificates(pem)[0]
    try:
        issuer = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier or b""
    except x509.ExtensionNotFound:
        issuer = b""
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(_text(name) for name in names)
    except x509.ExtensionNotFound:
        hosts = ()
    start_s = found.not_valid_before_utc.timestamp() + _BACKDATED.total_seconds()
    units = found.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    server = next((name for unit in units if (name := parse_server(str(unit.value)))), "")
    serial = f"{found.serial_number:X}"
    return CertificateFacts(start_s, found.not_valid_after_utc.timestamp(), issuer, hosts, serial, server)


def bundle_hashes(bundle: bytes) -> dict[str, str]:
    """SHA-256 of each certificate of a bundle → the certificate in PEM, in the bundle's order."""
    return {
        certificate_hash(each): each.public_bytes(serialization.Encoding.PEM).decode()
        for each in x509.load_pem_x509_certificates(bundle)
    }


def issued_by(bundle: bytes, fingerprint: str, certificate: bytes) -> bool:
    """Whether the CA with this fingerprint in the bundle has signed the certificate."""
    for each in x509.load_pem_x509_certificates(bundle):
        if certificate_hash(each) == fingerprint:
            return certificate_facts(certificate).issuer_key == _key_identifier(each)
    return False


def certificate_hash(certificate: x509.Certificate) -> str:
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def _key_identifier(certificate: x509.Certificate) -> bytes:
    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _text(name: x509.GeneralName) -> str:
    return str(name.value)
