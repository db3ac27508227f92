"""The own region's Endpoints: by list and by watch, in any order."""

from __future__ import annotations

import msgspec
from tests.dns.test_answers import endpoint

from holdfast.dns.address_table import AddressTable
from holdfast.foundation.ports import SystemClock
from holdfast.model.endpoint import Endpoint


def at(revision: int, *ips: str) -> Endpoint:
    found = endpoint("us", *ips)
    meta = msgspec.structs.replace(found.metadata, uid="u", resource_version=str(revision))
    return msgspec.structs.replace(found, metadata=meta)


def served(table: AddressTable) -> list[str]:
    return [address.address for _, addresses in table.serving("shop", "web") for address in addresses]


def test_list_that_is_older_than_a_watched_change_brings_no_address_back() -> None:
    table = AddressTable("us", SystemClock())
    table.replace_own([at(1, "10.0.0.1", "10.0.0.2")])
    table.put_own(at(3, "10.0.0.2"))
    table.replace_own([at(2, "10.0.0.1", "10.0.0.2")])
    assert served(table) == ["10.0.0.2"]
    table.replace_own([at(4, "10.0.0.2", "10.0.0.3")])
    assert served(table) == ["10.0.0.2", "10.0.0.3"]


def test_deleted_endpoint_is_not_brought_back_by_an_older_list() -> None:
    table = AddressTable("us", SystemClock())
    table.replace_own([at(1, "10.0.0.1")])
    table.remove_own(at(3, "10.0.0.1"))
    assert served(table) == []
    table.replace_own([at(1, "10.0.0.1")])
    assert served(table) == []
    table.replace_own([])
    assert not table.is_known("shop", "web")


def test_watched_changes_are_ignored_while_the_own_region_does_not_answer() -> None:
    table = AddressTable("us", SystemClock())
    table.put(at(1, "10.0.0.9"))
    table.put_own(at(2, "10.0.0.1"))
    assert served(table) == ["10.0.0.9"]
