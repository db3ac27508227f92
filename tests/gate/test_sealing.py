"""Sealing of Secrets: what is stored reveals nothing, opens only where it was written, and survives rotations."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gate.sealing import KEY_BYTES, CannotOpen, EncryptionKey, Sealer
from holdfast.model import codec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.secret import Secret


class Keys:
    def __init__(self, *numbers: int) -> None:
        self.held = tuple(EncryptionKey(f"k{n}", bytes([n]) * KEY_BYTES) for n in numbers)

    def all(self) -> tuple[EncryptionKey, ...]:
        return self.held

    def refresh(self) -> None:
        """The keys of a test do not change by themselves."""


def secret(name: str = "db", tenant: str = "shop", uid: str = "u1", **fields: object) -> Secret:
    meta = ObjectMeta(name=name, namespace=tenant, uid=uid, annotations={"applied": "value in clear"})
    data = {"data": {"password": b"hunter2-hunter2"}, **fields}
    return Secret(metadata=meta, **data)  # type: ignore[arg-type]


CONTENTS = st.dictionaries(st.text("abc-._", min_size=1, max_size=8), st.binary(max_size=200), max_size=5)
TEXTS = st.dictionaries(st.text("abc/", min_size=1, max_size=8), st.text(max_size=60), max_size=4)


@settings(max_examples=60, deadline=None)
@given(data=CONTENTS, annotations=TEXTS, uid=st.text("0123456789abcdef-", min_size=1, max_size=36))
def test_sealed_secret_opens_to_the_same_content(data: dict[str, bytes], annotations: dict[str, str], uid: str) -> None:
    sealer = Sealer(Keys(1))
    meta = ObjectMeta(name="db", namespace="shop", uid=uid, annotations=annotations)
    item = Secret(metadata=meta, data=data)
    stored = codec.decode_value(kind_of(Secret), codec.encode(sealer.seal(item)))
    assert stored.data == {} and stored.metadata.annotations == {}
    assert sealer.open(stored) == item
    for value in data.values():
        assert len(value) < 6 or value not in stored.sealed.content


def test_stored_bytes_contain_neither_data_nor_annotations() -> None:
    sealer = Sealer(Keys(1))
    one, two = (codec.encode(sealer.seal(secret())) for _ in range(2))
    assert one != two, "each write draws its own key and nonces"
    for value in (b"hunter2", b"aHVudGVyMi1odW50ZXIy", b"value in clear"):
        assert value not in one


@pytest.mark.parametrize("change", [{"name": "other"}, {"tenant": "other"}, {"uid": "u2"}])
def test_ciphertext_opens_only_in_its_own_object(change: dict[str, str]) -> None:
    sealer = Sealer(Keys(1))
    stored = sealer.seal(secret())
    assert isinstance(stored, Secret)
    moved = secret(**change, data={}, sealed=stored.sealed)
    with pytest.raises(CannotOpen, match="not the one that was stored"):
        sealer.open(moved)


@settings(max_examples=60, deadline=None)
@given(where=st.sampled_from(("wrapped", "content")), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_changed_ciphertext_is_refused(where: str, at: int, bit: int) -> None:
    sealer = Sealer(Keys(1))
    stored = sealer.seal(secret())
    assert isinstance(stored, Secret) and stored.sealed is not None
    data = bytearray(getattr(stored.sealed, where))
    data[at % len(data)] ^= 1 << bit
    sealed = msgspec.structs.replace(stored.sealed, **{where: bytes(data)})
    with pytest.raises(CannotOpen) as refused:
        sealer.open(msgspec.structs.replace(stored, sealed=sealed))
    assert "hunter2" not in str(refused.value)


def test_old_keys_open_and_the_first_seals() -> None:
    old = Sealer(Keys(1)).seal(secret())
    assert isinstance(old, Secret)
    both = Sealer(Keys(2, 1))
    assert not both.is_current(old)
    new = both.seal(both.open(old))
    assert isinstance(new, Secret) and both.is_current(new)
    assert Sealer(Keys(2)).open(new) == secret()
    with pytest.raises(CannotOpen, match="sealed with key k1, which the key file"):
        Sealer(Keys(2)).open(old)


def test_representation_of_a_key_does_not_show_it() -> None:
    assert repr(EncryptionKey("k1", b"x" * KEY_BYTES)) == "EncryptionKey(k1)"
