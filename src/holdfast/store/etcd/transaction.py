"""One commit as an etcd transaction: compares, operations, and the index of each change. Pure.

Every operation changes exactly one key, so the index of a change is its position among the operations. Removing a
missing key is omitted, with a compare that it is still missing.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import BadRequest
from holdfast.store.contract import Compare, Put, Remove, Txn
from holdfast.store.etcd import wire
from holdfast.store.etcd.keys import EtcdKeys, pack

# Operations of a transaction reserved for the store's own keys and for compares. A commit may write the rest.
ETCD_TXN_RESERVE = 16


class EtcdTransaction:
    def __init__(self, keys: EtcdKeys, txn: Txn, most: int) -> None:
        writes = txn.writes
        if len({write.key for write in writes}) != len(writes):
            raise BadRequest("commit: a key is written twice; next: write each key once, with its final value")
        if len(writes) > most:
            raise BadRequest(f"commit: too many writes (limit {most}, found {len(writes)}); next: split it")
        whole = most + ETCD_TXN_RESERVE
        if len(txn.compares) + 1 > whole or len(writes) + len(txn.appends) + 1 > whole:
            raise BadRequest(
                f"commit: too large for one etcd transaction (limit {whole} operations, found {len(txn.compares)} "
                f"compares and {len(txn.appends)} log records); next: split it"
            )
        self._keys = keys
        self._writes = writes
        self.compares: tuple[Compare, ...] = txn.compares
        self.puts = [write for write in writes if isinstance(write, Put)]
        # Keys to remove → their etcd revision, 0 if missing. The caller's compares come first.
        self._compared_revisions = {compare.key: keys.expected_etcd_revision(compare) for compare in txn.compares}
        self._removals: dict[str, int] = {}

    def unknown_removals(self) -> list[str]:
        """Keys to remove whose existence is not known yet."""
        return [
            write.key
            for write in self._writes
            if isinstance(write, Remove)
            and write.key not in self._compared_revisions
            and write.key not in self._removals
        ]

    def set_removal(self, key: str, main: int) -> None:
        self._removals[key] = main

    def clear_removals(self) -> None:
        self._removals.clear()

    @property
    def changes(self) -> int:
        return sum(map(self._is_change, self._writes))

    def request(self, more_compares: list[Any], more_puts: list[Any]) -> Any:
        """The etcd transaction. If a compare fails, the failure branch reads every key that the caller compares."""
        keys = self._keys
        operations = []
        place = 0
        for write in self._writes:
            if not self._is_change(write):
                continue
            raw = keys.data(write.key)
            if isinstance(write, Put):
                operations.append(wire.put_op(raw, pack(write.value, place)))
            else:
                operations.append(wire.delete_op(raw))
            place += 1
        operations += more_puts
        if place:
            operations.append(wire.put_op(keys.head, str(place).encode()))
        else:
            operations.insert(0, wire.read_op(keys.head))
        compares = [wire.at_revision(keys.data(c.key), keys.expected_etcd_revision(c)) for c in self.compares]
        compares += [wire.at_revision(keys.data(key), main) for key, main in self._removals.items()]
        reads = [wire.read_op(keys.data(compare.key), keys_only=True) for compare in self.compares]
        return wire.TxnRequest(compare=[*compares, *more_compares], success=operations, failure=reads)

    def revisions(self, main: int, before: int) -> tuple[int, ...]:
        """One per write. A removal of a missing key has the revision of the write before it, or `before`."""
        found = []
        place = 0
        for write in self._writes:
            place += self._is_change(write)
            found.append(self._keys.revision_of(main, place - 1) if place else before)
        return tuple(found)

    def _is_change(self, write: Put | Remove) -> bool:
        if isinstance(write, Put):
            return True
        return bool(self._compared_revisions.get(write.key, self._removals.get(write.key, 0)))
