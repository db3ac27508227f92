"""The key file of a cell: permissions, rotation that can be repeated, and a restore that needs its keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cell.storage import StoreLocation, back_up, declare_cell, restore
from holdfast.gate.sealing import CannotOpen, Sealer
from holdfast.identity.secret_keys import KEYS_FILE, KeyFile, add_key, create_keys, drop_keys, read_keys
from holdfast.model import codec
from holdfast.model.errors import StoreFailed
from holdfast.model.kinds import kind_of
from holdfast.model.meta import ObjectMeta
from holdfast.model.secret import Secret
from holdfast.store.contract import Put, Txn
from holdfast.store.sqlite import SqliteStore

ITEM = Secret(metadata=ObjectMeta(name="db", namespace="shop", uid="u"), data={"token": b"canary"})


def test_key_file_is_private_and_created_once(tmp_path: Path) -> None:
    path = tmp_path / KEYS_FILE
    create_keys(path)
    first = path.read_bytes()
    create_keys(path)
    assert path.read_bytes() == first and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(CannotOpen, match="others may read it"):
        read_keys(path)
    path.chmod(0o600)
    path.write_text(json.dumps({"keys": [{"id": "a", "key": "YQ=="}]}))
    with pytest.raises(CannotOpen, match="expected 1 to 16 keys of 32 bytes"):
        read_keys(path)


def test_rotation_is_noticed_by_a_running_process_and_keeps_old_values_readable(tmp_path: Path) -> None:
    path = tmp_path / KEYS_FILE
    create_keys(path)
    sealer = Sealer(KeyFile(path))
    old = sealer.seal(ITEM)
    assert isinstance(old, Secret)
    added = add_key(path)
    assert not sealer.is_current(old) and sealer.open(old) == ITEM
    new = sealer.seal(ITEM)
    assert isinstance(new, Secret) and new.sealed is not None and new.sealed.key == added.id
    drop_keys(path, [key.id for key in read_keys(path)])
    assert [key.id for key in read_keys(path)] == [added.id]
    assert sealer.open(old) == ITEM, "a request in flight is not broken"
    with pytest.raises(CannotOpen, match="does not contain"):
        Sealer(KeyFile(path)).open(old)


def test_keys_come_from_a_command(tmp_path: Path) -> None:
    path = tmp_path / KEYS_FILE
    create_keys(path)
    sealed = Sealer(KeyFile(path)).seal(ITEM)
    assert Sealer(KeyFile(Path("unused"), f"cat {path}")).open(sealed) == ITEM
    with pytest.raises(CannotOpen, match=r"key command false: failed \(exit status 1\)"):
        Sealer(KeyFile(Path("unused"), "false")).open(sealed)


async def test_restore_without_the_keys_is_refused(tmp_path: Path) -> None:
    source, target = (StoreLocation(cell="global", state=tmp_path / name) for name in ("source", "target"))
    declare_cell(source, new_identity=False)
    create_keys(source.state / KEYS_FILE)
    kind = kind_of(Secret)
    store = SqliteStore(source.file)
    value = codec.encode(Sealer(KeyFile(source.state / KEYS_FILE)).seal(ITEM))
    await store.commit(Txn(writes=(Put(kind.store_key("shop", "db"), value),)))
    await store.close()
    path = tmp_path / "backup"
    await back_up(source, path)
    assert b"canary" not in path.read_bytes()
    with pytest.raises(StoreFailed, match="does not exist; next: put the key file"):
        await restore(target, path, replace=False)
    target.state.mkdir(exist_ok=True)
    create_keys(target.state / KEYS_FILE)
    with pytest.raises(StoreFailed, match="lacks their keys"):
        await restore(target, path, replace=False)
    await restore(target, path, replace=False, secret_keys=source.state / KEYS_FILE)
    await restore(target, path, replace=True, without_secrets=True)
    store = SqliteStore(target.file)
    assert await store.get(kind.store_key("shop", "db")) is None
    await store.close()
