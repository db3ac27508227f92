"""The rows that bound roles give one principal, indexed: a request costs the same with one role or a hundred."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.gate.allowance import ANY, AccessRequest, Allowance


class GrantedRows:
    """Immutable. Rows with a wildcard are compared one by one, the others are found by verb and resource."""

    def __init__(self, rows: Iterable[Allowance] = ()) -> None:
        self.rows = tuple(rows)
        self._exact: dict[tuple[str, str], list[Allowance]] = {}
        self._wild: list[Allowance] = []
        for row in self.rows:
            if ANY in row.verbs or any(ANY in path for path in row.resources):
                self._wild.append(row)
                continue
            for verb in row.verbs:
                for path in row.resources:
                    self._exact.setdefault((verb, path), []).append(row)

    def covers(self, request: AccessRequest) -> bool:
        found = self._exact.get((request.verb, request.path), ())
        return any(row.covers(request) for row in found) or any(row.covers(request) for row in self._wild)

    def covers_path(self, path: str, verb: str) -> bool:
        return any(row.covers_path(path, verb) for row in self.rows if row.paths)


NO_ROWS = GrantedRows()
