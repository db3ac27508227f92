"""The keys that all servers of a cell share, and how a server that joins gets them from another one.

- Shared are the CA's key (global cell), the node CA (regions), the keys of Secrets, and the way to etcd. A server's own
  keys are never shared.
- The answer is sealed for a key that the asking server made: only that machine can read it, whatever lies between.
- Only a server of the same cell is answered, by its certificate, which a one-time token of an operator got it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.identity.cell_certificates import bundle_hashes
from holdfast.identity.certificates import REVOKED_FILE, write_private, write_public
from holdfast.identity.node_certificates import parse_csr
from holdfast.identity.server_records import REVOKED_SERVERS_FILE
from holdfast.model.errors import BadRequest
from holdfast.model.join import SealedMaterial

_PURPOSE = b"holdfast: shared keys of a cell"
_NONCE = b"\0" * 12  # the key is used once
EPOCH_FILE = "ca.epoch"
"""Beside the CA: how many steps of rotations were done. A server takes the CA of one with a higher number."""


class SharedMaterial(msgspec.Struct, frozen=True, omit_defaults=True):
    """Contents of files. Empty: the cell has no such file."""

    ca: str = ""
    ca_key: str = ""
    next_ca_key: str = ""
    epoch: int = 0
    node_ca: str = ""
    node_ca_key: str = ""
    secret_keys: str = ""
    tokens: str = ""
    revoked_servers: str = ""
    revoked_serials: str = ""
    etcd: dict[str, str] = {}
    """`endpoints`, `user`, and the contents of `ca`, `ca_key`, `cert`, `key` and `password_file`."""


class MaterialFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server of a cell keeps what the cell's servers share."""

    ca: Path
    ca_key: Path | None = None
    node_ca: Path | None = None
    node_ca_key: Path | None = None
    secret_keys: Path | None = None
    tokens: Path | None = None
    etcd: dict[str, str] = {}
    """`endpoints`, `user`, and the paths of `ca`, `cert`, `key` and `password_file`."""

    def read(self) -> SharedMaterial:
        etcd = {key: value for key, value in self.etcd.items() if key in ("endpoints", "user") and value}
        for key in ("ca", "cert", "key", "password_file"):
            if text := _text(Path(self.etcd[key]) if self.etcd.get(key) else None):
                etcd[key] = text
        if self.etcd.get("ca") and (key := _text(Path(self.etcd["ca"]).with_name("ca.key"))):
            etcd["ca_key"] = key  # Holdfast started this etcd
        return SharedMaterial(
            ca=_text(self.ca),
            ca_key=_text(self.ca_key),
            next_ca_key=_text(self.ca.parent / "next" / "ca.key") if self.ca_key is not None else "",
            epoch=read_epoch(self.ca.parent),
            node_ca=_text(self.node_ca),
            node_ca_key=_text(self.node_ca_key),
            secret_keys=_text(self.secret_keys),
            tokens=_text(self.tokens),
            revoked_servers=_text(self.ca.parent / REVOKED_SERVERS_FILE),
            revoked_serials=_text(self.ca.parent / REVOKED_FILE),
            etcd=etcd,
        )


def read_epoch(folder: Path) -> int:
    text = _text(folder / EPOCH_FILE).strip()
    return int(text) if text.isdecimal() else 0


def take_ca(ca: Path, key: Path, material: SharedMaterial) -> None:
    """Writes the CA of another server of the global cell. Its number comes last: until then, it is taken again."""
    bundle_hashes(material.ca.encode())  # raises if a certificate cannot be read; the files then stay
    write_public(ca, material.ca.encode())
    write_private(key, material.ca_key.encode())
    if material.next_ca_key:
        (ca.parent / "next").mkdir(mode=0o700, exist_ok=True)
        write_private(ca.parent / "next" / "ca.key", material.next_ca_key.encode())
    else:
        shutil.rmtree(ca.parent / "next", ignore_errors=True)
    write_public(ca.parent / EPOCH_FILE, str(material.epoch).encode())


def seal(csr: str, material: SharedMaterial) -> SealedMaterial:
    """Encrypts for the key of the signing request. Raises BadRequest if the request is invalid."""
    receiver = parse_csr(csr).public
    sender = ec.generate_private_key(ec.SECP256R1())
    sealed = AESGCM(_agreed_key(sender, receiver)).encrypt(_NONCE, msgspec.json.encode(material), _PURPOSE)
    public = sender.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return SealedMaterial(sender=public.decode(), nonce=_NONCE, sealed=sealed)


def unseal(key: bytes, answer: SealedMaterial) -> SharedMaterial:
    """`key` is the private key in PEM that made the signing request."""
    private = serialization.load_pem_private_key(key, None)
    try:
        sender = serialization.load_pem_public_key(answer.sender.encode())
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(sender, ec.EllipticCurvePublicKey):
            raise ValueError("not EC keys")
        opened = AESGCM(_agreed_key(private, sender)).decrypt(answer.nonce, answer.sealed, _PURPOSE)
        return msgspec.json.decode(opened, type=SharedMaterial)
    except (ValueError, InvalidTag, msgspec.MsgspecError) as wrong:
        raise BadRequest(f"shared keys: cannot be opened ({wrong or type(wrong).__name__})") from None


def _agreed_key(private: ec.EllipticCurvePrivateKey, public: ec.EllipticCurvePublicKey) -> bytes:
    shared = private.exchange(ec.ECDH(), public)
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_PURPOSE).derive(shared)


def _text(path: Path | None) -> str:
    try:
        return path.read_text(encoding="utf-8") if path is not None else ""
    except FileNotFoundError:
        return ""
