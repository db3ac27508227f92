"""One column of `kubectl get`: its name, and how it reads an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Cell = Callable[[Any], Any]
NONE = "<none>"


class TableColumn(msgspec.Struct, frozen=True):
    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False
    description: str = ""


def column_field(dotted: str) -> Cell:
    names = dotted.split(".")

    def cell(item: Any) -> Any:
        for name in names:
            item = getattr(item, name)
        return item if isinstance(item, bool | int | float) else str(item)

    return cell
