"""One commit as etcd takes it: which keys are compared, which are written, and where each change stands in it. Pure.

Every operation that is sent changes exactly one key, so that the place of a change is its position: a removal of what
is not there is left out, under a compare that it still is not there.
"""

from __future__ import annotations

from typing import Any

from holdfast.model import limits
from holdfast.model.errors import BadRequest, Conflict
from holdfast.store.contract import Compare, Put, Remove, Txn
from holdfast.store.etcd import wire
from holdfast.store.etcd.keys import Keys, main_of, pack, revision_of


class Draft:
    def __init__(self, keys: Keys, txn: Txn, most: int) -> None:
        writes = txn.writes
        if len({write.key for write in writes}) != len(writes):
            raise BadRequest("a commit writes a key twice: name each key once, with its final value")
        if len(writes) > most:
            raise BadRequest(f"a commit has {len(writes)} writes, at most {most} are allowed here: split it")
        whole = most + limits.ETCD_TXN_RESERVE
        if len(txn.compares) + 1 > whole or len(writes) + len(txn.appends) + 1 > whole:
            raise BadRequest(
                f"a commit compares {len(txn.compares)} keys and appends {len(txn.appends)} records, more than etcd "
                "takes in one transaction: split it"
            )
        self._keys = keys
        self._writes = writes
        self.compares: tuple[Compare, ...] = txn.compares
        self.puts = [write for write in writes if isinstance(write, Put)]
        # Keys to remove → etcd's revision of them; 0: not there. First what the caller compares with.
        self._compared = {compare.key: compared_main(compare) for compare in txn.compares}
        self._found: dict[str, int] = {}

    def unknown_removals(self) -> list[str]:
        """Keys to remove of which nobody has said whether they exist."""
        return [
            write.key
            for write in self._writes
            if isinstance(write, Remove) and write.key not in self._compared and write.key not in self._found
        ]

    def found(self, key: str, main: int) -> None:
        self._found[key] = main

    def forget_removals(self) -> None:
        self._found.clear()

    @property
    def changes(self) -> int:
        return sum(map(self._changes, self._writes))

    def request(self, more_compares: list[Any], more_puts: list[Any]) -> Any:
        """The transaction. When a compare fails, its failure branch reads every key that the caller compares."""
        keys = self._keys
        operations = []
        place = 0
        for write in self._writes:
            if not self._changes(write):
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
        compares = [wire.at_revision(keys.data(c.key), compared_main(c)) for c in self.compares]
        compares += [wire.at_revision(keys.data(key), main) for key, main in self._found.items()]
        reads = [wire.read_op(keys.data(compare.key), keys_only=True) for compare in self.compares]
        return wire.TxnRequest(compare=[*compares, *more_compares], success=operations, failure=reads)

    def revisions(self, main: int, before: int) -> tuple[int, ...]:
        """One per write; that of the write before it, or the head of before, for a removal that removed nothing."""
        found = []
        place = 0
        for write in self._writes:
            place += self._changes(write)
            found.append(revision_of(main, place - 1) if place else before)
        return tuple(found)

    def _changes(self, write: Put | Remove) -> bool:
        if isinstance(write, Put):
            return True
        return bool(self._compared.get(write.key, self._found.get(write.key, 0)))


def compared_main(compare: Compare) -> int:
    """etcd's revision of a compare. A number of ours that no commit ever had must not come to mean "not there"."""
    return main_of(compare.revision) or (-1 if compare.revision else 0)


def conflict(key: str, expected: int, found: int) -> Conflict:
    facts = {"key": key, "expected": expected, "found": found}
    if expected == 0:
        return Conflict(f"{key} exists already, at revision {found}: read it and decide again", facts=facts)
    if found == 0:
        return Conflict(f"{key} was expected at revision {expected} and does not exist: decide again", facts=facts)
    return Conflict(
        f"{key} was expected at revision {expected} and is at {found}: read it and decide again", facts=facts
    )
