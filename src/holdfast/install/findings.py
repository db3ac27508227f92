"""One finding of `holdfast doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec


class DoctorFinding(msgspec.Struct, frozen=True, rename="camel"):
    """`status`: `ok`, `warn` (it works, but worse) or `fail` (it does not work). `next_step` helps if it is not ok."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    next_step: str = ""
