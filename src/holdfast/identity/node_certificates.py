"""Node certificates: the agent's signing request and the region's node CA.

- A private key never leaves the machine that created it.
- The region decides the subject, not the request: node, region and generation of the identity. Client use only.
- The node CA can certify only nodes of its own region; `authenticate` enforces this.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.model.errors import BadRequest, Invalid
from holdfast.model.principal import NODES

# Length of a certificate signing request. A longer one is refused.
MAX_CSR_CHARS = 8192
# Certificates begin this long before they are issued, because clocks differ.
BACKDATED_S = 300.0
_BACKDATED = timedelta(seconds=BACKDATED_S)
_SERVER = re.compile(r"server-([a-z0-9-]{1,63})")
_GENERATION = re.compile(r"generation-([1-9][0-9]{0,14})")


def new_key() -> bytes:
    """A private key in PEM, unencrypted; the caller must protect the file."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_csr(key: bytes, name: str) -> str:
    """A certificate signing request, signed with the key itself as proof of possession."""
    private = serialization.load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("private key: not an EC key; next: delete the key file, a new key is created")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def validity_period(certificate: bytes) -> tuple[float, float]:
    """Start and end of a PEM certificate's validity, in seconds since the epoch."""
    made = x509.load_pem_x509_certificate(certificate)
    return made.not_valid_before_utc.timestamp() + _BACKDATED.total_seconds(), made.not_valid_after_utc.timestamp()


def parse_generation(unit: str) -> int:
    """The generation in an organizational unit of the subject; 0 if there is none."""
    found = _GENERATION.fullmatch(unit)
    return int(found[1]) if found is not None else 0


def parse_server(unit: str) -> str:
    """The name of a cell's server in an organizational unit of the subject; "" if there is none."""
    found = _SERVER.fullmatch(unit)
    return found[1] if found is not None else ""


class SignedCertificate(msgspec.Struct, frozen=True):
    certificate: str
    serial: str
    expires_s: float


class RequestedKey(msgspec.Struct, frozen=True):
    """The public key of a request whose signature was verified; `digest` identifies it."""

    public: Any
    digest: str


def parse_csr(csr: str) -> RequestedKey:
    """Raises BadRequest if the CSR cannot be parsed, is not signed with its own key, or has another key type."""
    try:
        if len(csr) > MAX_CSR_CHARS:
            raise ValueError(f"longer than {MAX_CSR_CHARS} characters")
        request = x509.load_pem_x509_csr(csr.encode())
        public = request.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
            raise ValueError("the key must be EC P-256")
        if not request.is_signature_valid:
            raise ValueError("not signed with its own key")
    except (ValueError, TypeError, UnsupportedAlgorithm) as wrong:
        raise BadRequest(f"certificate request: invalid ({wrong})") from None
    encoded = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return RequestedKey(public, hashlib.sha256(encoded).hexdigest())


class NodeCertificateAuthority:
    """Signs certificates for the nodes of one region, with a key that no other cell has."""

    def __init__(self, region: str, certificate: Path, key: Path) -> None:
        self._region = region
        self._ca = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise Invalid(f"--node-ca-key {key}: not an EC key, so not a CA created by Holdfast")
        if private.public_key() != self._ca.public_key():
            raise Invalid(f"--node-ca-key {key}: does not belong to --node-ca {certificate}")
        self._key = private

    @property
    def name(self) -> str:
        """The issuer common name of every certificate of this CA."""
        return str(self._ca.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    def certify(
        self, key: RequestedKey, node: str, generation: int, *, now_s: float, seconds: float
    ) -> SignedCertificate:
        start = datetime.fromtimestamp(int(now_s), UTC)
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, f"generation-{generation}"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"holdfast:node:{self._region}:{node}"),
            ]
        )
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._ca.subject)
            .public_key(key.public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start - _BACKDATED)
            .not_valid_after(min(start + timedelta(seconds=seconds), self._ca.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return SignedCertificate(
            certificate=made.public_bytes(serialization.Encoding.PEM).decode(),
            serial=f"{made.serial_number:X}",
            expires_s=made.not_valid_after_utc.timestamp(),
        )
