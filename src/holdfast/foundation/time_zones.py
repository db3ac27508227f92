"""Time zones by IANA name, from the `tzdata` package and never from the machine.

Every process of one release has the same rules, so two leaders agree on the time of a tick. A loaded zone is data; the
pure packages get it as a value.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

# Loaded time zones. Above the bound the least recently used one is read from the package again; there are about 600.
ZONES_CACHED_MAX = 1024


@lru_cache(1)
def zone_names() -> frozenset[str]:
    """The names of all time zones."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


@lru_cache(ZONES_CACHED_MAX)
def find_zone(name: str) -> tzinfo | None:
    """The time zone, or None if the name is unknown. Only listed names are opened, so a name is never a path."""
    if name == "UTC":
        return UTC
    if name not in zone_names():
        return None
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
