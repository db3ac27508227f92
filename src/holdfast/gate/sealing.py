"""Seals Secrets before they are stored, and opens them for callers who may read them.

Envelope encryption with AES-256-GCM: each write draws a data key, which encrypts data and annotations and is wrapped by
a key-encryption key that is not in the store. Both ciphertexts are authenticated with tenant, name and uid, so one
object's ciphertext is invalid in another. The store, its history, backups and caches hold the sealed form only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.model.errors import Final
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.secret import Sealed, Secret

KEY_BYTES = 32
NONCE_BYTES = 12

_encoder = msgspec.msgpack.Encoder()
O = TypeVar("O", bound=Object)  # noqa: E741 - the letter is the usual one for an object


class CannotOpen(Final):
    """A sealed Secret cannot be opened: its key is missing, or it was changed or moved to another object."""

    code, reason = 500, "CannotOpenSecret"


class EncryptionKey(msgspec.Struct, frozen=True):
    """A key-encryption key. Its representation never shows the key itself."""

    id: str
    key: bytes
    created: str = ""

    def __repr__(self) -> str:
        return f"EncryptionKey({self.id})"


class KeySource(Protocol):
    """Where keys come from: a file, a command, or memory. The first key seals; all of them open."""

    def all(self) -> Sequence[EncryptionKey]: ...

    def refresh(self) -> None:
        """Reads the keys again, because an object names an unknown one."""


class VolatileKeys:
    """One key, drawn on first use and lost with the process: for stores in memory."""

    def __init__(self) -> None:
        self._drawn: tuple[EncryptionKey, ...] = ()

    def all(self) -> Sequence[EncryptionKey]:
        if not self._drawn:
            self._drawn = (EncryptionKey("volatile", os.urandom(KEY_BYTES)),)
        return self._drawn

    def refresh(self) -> None:
        """There is nothing to read again."""


class _Content(msgspec.Struct):
    """What is encrypted. Annotations are included: `kubectl apply` stores the applied data in one of them."""

    data: dict[str, bytes]
    annotations: dict[str, str]


_decoder = msgspec.msgpack.Decoder(_Content)


class Sealer:
    """Stateless except for its keys. Randomness is the system's: a predictable nonce would break the encryption."""

    def __init__(self, source: KeySource | None = None) -> None:
        self.source: KeySource = source if source is not None else VolatileKeys()

    def seal(self, item: Object) -> Object:
        """The form to store. Objects other than Secrets are returned unchanged."""
        if not isinstance(item, Secret) or item.sealed is not None:
            return item
        key = self.source.all()[0]
        bound, meta = _identity(item.metadata), item.metadata
        data_key = AESGCM.generate_key(bit_length=KEY_BYTES * 8)
        content = _encoder.encode(_Content(item.data, meta.annotations))
        sealed = Sealed(
            key=key.id,
            wrapped=_encrypt(key.key, data_key, b"key" + bound),
            content=_encrypt(data_key, content, b"content" + bound),
        )
        return msgspec.structs.replace(
            item, metadata=msgspec.structs.replace(meta, annotations={}), data={}, sealed=sealed
        )

    def open(self, item: O) -> O:
        """The object with its data. Raises CannotOpen."""
        if not isinstance(item, Secret) or item.sealed is None:
            return item
        meta, sealed = item.metadata, item.sealed
        where = f"Secret {meta.namespace}/{meta.name}"
        bound = _identity(meta)
        try:
            data_key = _decrypt(self._key(sealed.key, where), sealed.wrapped, b"key" + bound)
            content = _decoder.decode(_decrypt(data_key, sealed.content, b"content" + bound))
        except (InvalidTag, ValueError, msgspec.MsgspecError):
            # Without the cause: a decoding error could show a part of the content.
            raise CannotOpen(
                f"{where}: its ciphertext is not the one that was stored for it; next: restore it from a backup"
            ) from None
        opened = msgspec.structs.replace(
            item,
            metadata=msgspec.structs.replace(meta, annotations=content.annotations),
            data=content.data,
            sealed=None,
        )
        return opened

    def is_current(self, item: Secret) -> bool:
        """Whether the Secret is sealed with the key that seals new ones."""
        return item.sealed is not None and item.sealed.key == self.source.all()[0].id

    def knows(self, key_id: str) -> bool:
        return any(key.id == key_id for key in self.source.all())

    def _key(self, key_id: str, where: str) -> bytes:
        for attempt in range(2):
            for key in self.source.all():
                if key.id == key_id:
                    return key.key
            if not attempt:
                self.source.refresh()
        raise CannotOpen(
            f"{where}: sealed with key {key_id}, which the key file of this cell does not contain; "
            "next: put the key file of the backup in place (docs/operations/backup.md)"
        )


def _identity(meta: ObjectMeta) -> bytes:
    return msgspec.json.encode(["Secret", meta.namespace, meta.name, meta.uid])


def _encrypt(key: bytes, plain: bytes, bound: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, bound)


def _decrypt(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
