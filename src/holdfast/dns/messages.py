"""One DNS query as bytes in, the response as bytes out. Pure.

- Only queries for names of the zone are answered; others are refused, so that this is no open resolver.
- A response is never more than a few times larger than the query over UDP: larger ones are truncated, and the client
  repeats the query over TCP.
- Bytes that are no query are dropped without a response.
"""

from __future__ import annotations

from collections.abc import Callable

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from holdfast.dns.answers import AddressRecord, NameAnswer
from holdfast.dns.names import ServiceName, labels_below, parse_service

# Largest query that is parsed. A query for one name needs less than 300 bytes.
QUERY_BYTES_MAX = 512
# Largest response over UDP, whatever the client offers: it fits one packet on every path.
UDP_RESPONSE_BYTES_MAX = 1232
PLAIN_UDP_BYTES = 512
TCP_RESPONSE_BYTES_MAX = 65_535
# Time for which a client may cache an answer. It bounds how long a client uses a region after it was lost.
ANSWER_TTL_S = 5
# Time for which a client may cache that a name does not exist.
NEGATIVE_TTL_S = 1
_ADDRESS_TYPES = {dns.rdatatype.A: 4, dns.rdatatype.AAAA: 6}

Resolve = Callable[[ServiceName], NameAnswer]


class Zone:
    """`name` is the zone's name, such as `holdfast.internal`."""

    def __init__(self, name: str, resolve: Resolve) -> None:
        self.name = dns.name.from_text(name.lower())
        self._labels = tuple(label.decode() for label in self.name.labels[:-1])
        self._resolve = resolve

    def respond(self, wire: bytes, *, udp: bool) -> tuple[bytes, str]:
        """The response and its code. An empty response: the bytes were no query and get none."""
        try:
            query = dns.message.from_wire(wire)
        except (dns.exception.DNSException, ValueError, IndexError):
            return b"", "MALFORMED"
        if query.flags & dns.flags.QR:
            return b"", "MALFORMED"  # a response: answering it could start a loop between two servers
        response = dns.message.make_response(query, recursion_available=False)
        response.flags |= dns.flags.AA
        self._fill(query, response)
        size = TCP_RESPONSE_BYTES_MAX
        if udp:
            size = (
                min(max(query.payload, PLAIN_UDP_BYTES), UDP_RESPONSE_BYTES_MAX) if query.edns >= 0 else PLAIN_UDP_BYTES
            )
        try:
            return response.to_wire(max_size=size), dns.rcode.to_text(response.rcode())
        except dns.exception.TooBig:
            short = dns.message.make_response(query, recursion_available=False)
            short.flags |= dns.flags.AA | dns.flags.TC
            return short.to_wire(), dns.rcode.to_text(response.rcode())

    def _fill(self, query: dns.message.Message, response: dns.message.Message) -> None:
        if query.opcode() != dns.opcode.QUERY:
            response.set_rcode(dns.rcode.NOTIMP)
            return
        if len(query.question) != 1:
            response.set_rcode(dns.rcode.FORMERR)
            return
        question = query.question[0]
        below = labels_below(_text_labels(question.name), self._labels)
        if below is None or question.rdclass != dns.rdataclass.IN:
            response.set_rcode(dns.rcode.REFUSED)
            response.flags &= ~dns.flags.AA
            return
        service = parse_service(below) if below else None
        answer = self._resolve(service) if service is not None else NameAnswer(not below)
        if not answer.exists:
            response.set_rcode(dns.rcode.NXDOMAIN)
        self._add_records(question, answer, response)
        if not below and question.rdtype == dns.rdatatype.SOA:
            response.answer.append(self._start_of_authority())
        elif not response.answer:
            response.authority.append(self._start_of_authority())

    def _add_records(self, question: dns.rrset.RRset, answer: NameAnswer, response: dns.message.Message) -> None:
        version = _ADDRESS_TYPES.get(question.rdtype)
        texts = [record.address for record in answer.addresses if record.version == version]
        if texts:
            response.answer.append(_records(question.name, question.rdtype, texts))
        if question.rdtype == dns.rdatatype.SRV and answer.services:
            named = [(record, self._name_of(record.target)) for record in answer.services]
            lines = [f"{record.priority} 1 {record.port} {target}" for record, target in named]
            response.answer.append(_records(question.name, dns.rdatatype.SRV, lines))
            response.additional += [_address(target, record.address) for record, target in named]

    def _name_of(self, service: ServiceName) -> dns.name.Name:
        return dns.name.Name([label.encode() for label in service.labels()]).concatenate(self.name)

    def _start_of_authority(self) -> dns.rrset.RRset:
        """Says for how long the absence of a record may be cached."""
        text = f"ns.{self.name} hostmaster.{self.name} 1 3600 600 86400 {NEGATIVE_TTL_S}"
        return dns.rrset.from_text(self.name, NEGATIVE_TTL_S, dns.rdataclass.IN, dns.rdatatype.SOA, text)


def _text_labels(name: dns.name.Name) -> tuple[str, ...]:
    return tuple(label.decode("latin-1") for label in name.labels if label)


def _records(name: dns.name.Name, kind: dns.rdatatype.RdataType, texts: list[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text(name, ANSWER_TTL_S, dns.rdataclass.IN, kind, *texts)


def _address(name: dns.name.Name, record: AddressRecord) -> dns.rrset.RRset:
    kind = dns.rdatatype.A if record.version == 4 else dns.rdatatype.AAAA
    return _records(name, kind, [record.address])
