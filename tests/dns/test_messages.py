"""Queries as bytes: answers, refusals, truncation, and bytes that are no query."""

from __future__ import annotations

import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dns.test_answers import endpoint, table_of

from holdfast.dns.answers import resolve
from holdfast.dns.messages import ANSWER_TTL_S, UDP_RESPONSE_BYTES_MAX, Zone

MANY = tuple(f"10.2.0.{n}" for n in range(1, 41))


def zone(*ips: str) -> Zone:
    table = table_of(endpoint("us", *(ips or ("10.2.0.1", "fd00::1"))))
    return Zone("holdfast.internal", lambda name: resolve(table, name, 0))


def ask(
    name: str, kind: str = "A", *, udp: bool = True, to: Zone | None = None, edns: bool = False
) -> dns.message.Message:
    query = dns.message.make_query(name, kind, use_edns=0 if edns else -1, payload=4096)
    wire, _ = (to or zone()).respond(query.to_wire(), udp=udp)
    response = dns.message.from_wire(wire)
    assert response.id == query.id
    return response


def texts(response: dns.message.Message) -> list[str]:
    return [item.to_text() for records in response.answer for item in records]


def test_addresses_are_answered_by_type_and_case_does_not_matter() -> None:
    found = ask("Web.SHOP.holdfast.internal")
    assert texts(found) == ["10.2.0.1"]
    assert found.answer[0].ttl == ANSWER_TTL_S
    assert found.flags & dns.flags.AA
    assert texts(ask("web.shop.holdfast.internal", "AAAA")) == ["fd00::1"]


def test_service_record_comes_with_the_address_of_its_target() -> None:
    found = ask("_http._tcp.web.shop.holdfast.internal", "SRV", to=zone("10.2.0.1"))
    assert texts(found) == ["0 1 8080 web-us-0.web.shop.us.holdfast.internal."]
    assert [item.to_text() for item in found.additional[0]] == ["10.2.0.1"]
    assert texts(ask("web-us-0.web.shop.us.holdfast.internal")) == ["10.2.0.1"]


def test_missing_name_is_nxdomain_and_missing_type_is_empty_both_with_soa() -> None:
    for name, kind, code in (
        ("no.shop.holdfast.internal", "A", dns.rcode.NXDOMAIN),
        ("web.shop.holdfast.internal", "TXT", dns.rcode.NOERROR),
        ("holdfast.internal", "A", dns.rcode.NOERROR),
    ):
        found = ask(name, kind)
        assert (found.rcode(), texts(found)) == (code, [])
        assert found.authority[0].rdtype == dns.rdatatype.SOA


def test_name_of_another_zone_is_refused() -> None:
    assert ask("example.com").rcode() == dns.rcode.REFUSED


def test_other_operation_is_not_implemented() -> None:
    query = dns.message.make_query("web.shop.holdfast.internal", "A")
    query.set_opcode(dns.opcode.NOTIFY)
    wire, code = zone().respond(query.to_wire(), udp=True)
    assert code == "NOTIMP" and dns.message.from_wire(wire).rcode() == dns.rcode.NOTIMP


def test_large_answer_is_truncated_over_udp_and_whole_over_tcp() -> None:
    name = "_http._tcp.web.shop.holdfast.internal"
    short = ask(name, "SRV", to=zone(*MANY))
    assert short.flags & dns.flags.TC and not short.answer
    whole = ask(name, "SRV", to=zone(*MANY), udp=False)
    assert len(texts(whole)) == 16 and not whole.flags & dns.flags.TC


def test_client_with_edns_gets_at_most_one_packet() -> None:
    query = dns.message.make_query("_http._tcp.web.shop.holdfast.internal", "SRV", use_edns=0, payload=65_535)
    wire, _ = zone(*MANY).respond(query.to_wire(), udp=True)
    assert len(wire) <= UDP_RESPONSE_BYTES_MAX


def test_response_gets_no_response() -> None:
    answer, _ = zone().respond(dns.message.make_query("web.shop.holdfast.internal", "A").to_wire(), udp=True)
    assert zone().respond(answer, udp=True) == (b"", "MALFORMED")


@pytest.mark.parametrize("wire", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", bytes(12), bytes(511)])
def test_bytes_that_are_no_query_do_no_harm(wire: bytes) -> None:
    zone().respond(wire, udp=True)


@given(st.binary(max_size=512))
def test_random_bytes_never_raise_and_never_amplify(wire: bytes) -> None:
    response, _ = zone(*MANY).respond(wire, udp=True)
    assert len(response) <= UDP_RESPONSE_BYTES_MAX


@given(st.data())
def test_changed_queries_never_raise(data: st.DataObject) -> None:
    wire = bytearray(dns.message.make_query("_http._tcp.web.shop.holdfast.internal", "SRV", use_edns=0).to_wire())
    for _ in range(data.draw(st.integers(1, 6))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    zone().respond(bytes(wire), udp=True)
