"""The client over real sockets: lost responses, overload, broken streams, pages."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.client.small_server import SmallServer
from tests.controllers.scripted import ScriptedCell, meta

from holdfast.client.http import HttpClient
from holdfast.controllers.informer import Informers
from holdfast.foundation.ports import SystemPorts
from holdfast.foundation.retry_budget import RETRY_BUDGET_BURST
from holdfast.identity import certificates
from holdfast.model import limits
from holdfast.model.codec import object_wire_bytes
from holdfast.model.core import Lease
from holdfast.model.endpoint import Endpoint, EndpointSpec
from holdfast.model.errors import AlreadyExists, Ambiguous, Conflict, Expired, Invalid, Overloaded, Unavailable
from holdfast.model.placement_api import RenewItem, RenewRequest
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create, Notice, Update


def endpoint(name: str = "a", region: str = "west") -> Endpoint:
    return Endpoint(metadata=meta(name), spec=EndpointSpec(workload="w", region=region))


async def drain(client: HttpClient, seen: list[Any], **options: Any) -> None:
    async for batch in client.watch(Endpoint, **options):
        seen += batch


@pytest.fixture
async def server() -> AsyncIterator[SmallServer]:
    async with SmallServer(ScriptedCell()) as running:
        yield running


@pytest.fixture
async def client(server: SmallServer) -> AsyncIterator[HttpClient]:
    made = HttpClient(server.url, SystemPorts(), cell="west", commit_deadline_s=0.3, call_deadline_s=2.0)
    yield made
    await made.close()


async def test_get_returns_typed_object_or_none(server: SmallServer, client: HttpClient) -> None:
    stored = server.cell.put(endpoint())
    assert await client.get(Endpoint, "a", "t") == stored
    assert await client.get(Endpoint, "b", "t") is None
    lease = server.cell.put(Lease(metadata=meta("l", "holdfast-system")))
    assert await client.get(Lease, "l", "holdfast-system") == lease
    assert client.cell == "west"


async def test_list_returns_all_pages_of_one_revision(server: SmallServer, client: HttpClient) -> None:
    stored = [server.cell.put(endpoint(f"e{n}")) for n in range(5)]
    listing = await client.list(Endpoint, fields={"workload": "t/w"})
    assert list(listing.items) == stored and listing.revision == 5
    assert len(server.requests) == 3


async def test_list_compacted_between_pages_starts_over(server: SmallServer, client: HttpClient) -> None:
    for n in range(5):
        server.cell.put(endpoint(f"e{n}"))

    def compact_once() -> None:
        server.before_page = lambda: None
        server.cell.put(endpoint("e9"))
        server.cell.compact()

    server.before_page = compact_once
    listing = await client.list(Endpoint)
    assert list(listing.items) == server.cell.all(Endpoint) and listing.revision == 6


async def test_commit_returns_objects_or_raises_server_fault(server: SmallServer, client: HttpClient) -> None:
    done = await client.commit([Create(endpoint())])
    assert done.revision == 1 and done.objects[0] == server.cell.all(Endpoint)[0]
    with pytest.raises(AlreadyExists):
        await client.commit([Create(endpoint())])
    held = server.cell.put(endpoint(region="east"))
    with pytest.raises(Conflict):
        await client.commit([Update(msgspec.structs.replace(held, metadata=done.objects[0].metadata))])  # type: ignore[union-attr]
    server.answers = [(422, "Invalid", {})]
    with pytest.raises(Invalid):
        await client.commit([Create(endpoint("b"))])


@pytest.mark.parametrize("how", ["silent_after_commit", "cut_after_commit", "silent_before_commit"])
async def test_commit_without_response_takes_effect_once(server: SmallServer, client: HttpClient, how: str) -> None:
    setattr(server, how, 2)
    done = await client.commit([Create(endpoint())])
    assert isinstance(done.objects[0], Endpoint) and len(server.cell.commits) == 1


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_ambiguous_commit_response_is_read_back(server: SmallServer, client: HttpClient, status: int) -> None:
    server.commit_answers = [(status, "Bad gateway")]
    await client.commit([Create(endpoint())])
    assert len(server.cell.commits) == 1


async def test_http_client_connection_refused_raises_unavailable() -> None:
    client = HttpClient("http://127.0.0.1:1", SystemPorts(), cell="west")
    with pytest.raises(Unavailable, match="cannot connect"):
        await client.commit([Create(endpoint())])
    with pytest.raises(Unavailable):
        await client.get(Endpoint, "a", "t")
    await client.close()


async def test_http_client_waits_retry_after_of_overloaded_server(server: SmallServer, client: HttpClient) -> None:
    server.cell.put(endpoint())
    server.answers = [(429, "TooManyRequests", {"Retry-After": "0.4"})]
    began = asyncio.get_running_loop().time()
    assert await client.get(Endpoint, "a", "t") is not None
    assert asyncio.get_running_loop().time() - began >= 0.4
    server.answers = [(429, "TooManyRequests", {"Retry-After": "7"})]
    with pytest.raises(Overloaded) as caught:
        await client.commit([Create(endpoint("b"))])
    assert caught.value.retry_after_s == 7.0
    assert len(server.cell.commits) == 0


async def test_read_retries_are_bounded_by_budget(server: SmallServer, client: HttpClient) -> None:
    server.answers = [(503, "ServiceUnavailable", {})] * 100
    with pytest.raises(Unavailable):
        await client.get(Endpoint, "a", "t")
    assert len(server.requests) == limits.READ_ATTEMPTS
    server.answers = [(503, "ServiceUnavailable", {})] * 1000
    server.requests.clear()
    reads = [client.get(Endpoint, "a", "t") for _ in range(100)]
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    # Each call is sent once, and all retries together stay within the budget.
    assert len(server.requests) < 100 + RETRY_BUDGET_BURST * 1.5


async def test_watch_yields_typed_events_and_ends_with_unavailable(server: SmallServer, client: HttpClient) -> None:
    stored = server.cell.put(endpoint())
    line = b'{"type":"MODIFIED","object":' + object_wire_bytes(stored) + b"}\n"
    bookmark = b'{"type":"BOOKMARK","object":{"kind":"Endpoint","metadata":{"resourceVersion":"17"}}}\n'
    gone = b'{"type":"DELETED","object":' + object_wire_bytes(stored) + b"}\n"
    server.lines = [line[:40], line[40:] + bookmark[:10], bookmark[10:] + gone]
    seen: list[Any] = []
    with pytest.raises(Unavailable, match="ended by the server"):
        await drain(client, seen, after=3, fields={"region": "west"})
    assert [s.revision for s in seen] == [1, 17, 1]
    assert seen[0].object == stored and seen[1].object is None and seen[2].deleted
    assert server.watch_queries[0] == {
        "watch": "true",
        "resourceVersion": "3",
        "allowWatchBookmarks": "true",
        "fieldSelector": "region=west",
    }


async def test_compacted_watch_raises_expired(server: SmallServer, client: HttpClient) -> None:
    status = b'{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old"}'
    server.lines = [b'{"type":"ERROR","object":' + status + b"}\n"]
    with pytest.raises(Expired):
        await drain(client, [], after=1)
    server.answers = [(410, "Expired", {})]
    with pytest.raises(Expired):
        await drain(client, [], after=1)


async def test_watch_with_invalid_line_raises_unavailable(server: SmallServer, client: HttpClient) -> None:
    server.lines = [b"<html>\n"]
    with pytest.raises(Unavailable, match="interrupted"):
        await drain(client, [], after=1)


async def test_placement_calls_and_notices_reach_server(server: SmallServer, client: HttpClient) -> None:
    answers = await client.renew(RenewRequest(items=(RenewItem(node="n1"), RenewItem(node="n2"))))
    assert [answer.node for answer in answers.results] == ["n1", "n2"]
    tenant = server.cell.put(Tenant(metadata=meta("t", "")))
    await client.notify([Notice(tenant, "Why", "because")], component="test")
    assert len(server.cell.notices) == 1
    server.answers = [(500, "InternalError", {})]
    with pytest.raises(Ambiguous):
        await client.renew(RenewRequest(items=(RenewItem(node="n1"),)))


async def test_informer_syncs_over_http(server: SmallServer, client: HttpClient) -> None:
    for n in range(5):
        server.cell.put(endpoint(f"e{n}"))
    informers = Informers(client, SystemPorts())
    informers.of(Endpoint)
    await informers.start()
    await asyncio.wait_for(informers.synced(), 5)
    assert len(informers.cache.list(Endpoint)) == 5
    await informers.stop()


async def test_client_and_server_verify_each_others_certificate(tmp_path: Path) -> None:
    ports = SystemPorts()
    now_s = ports.clock.now()
    certificates.make_ca(tmp_path / "a", now_s=now_s)
    certificates.make_ca(tmp_path / "b", now_s=now_s)
    here = certificates.issue(tmp_path / "a", "server", "server", now_s=now_s, ips=("127.0.0.1",), server=True)
    own = certificates.issue(tmp_path / "a", "agent", "holdfast:node:west:n1", ("holdfast:nodes",), now_s=now_s)
    other = certificates.issue(tmp_path / "b", "agent", "holdfast:node:west:n1", ("holdfast:nodes",), now_s=now_s)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(here.ca))
    context.load_cert_chain(str(here.certificate), str(here.key))
    context.verify_mode = ssl.CERT_REQUIRED
    async with SmallServer(ScriptedCell(), context) as server:
        stored = server.cell.put(endpoint())

        def client(shown: certificates.IssuedCertificate, ca: Path) -> HttpClient:
            return HttpClient(
                server.url, ports, cell="west", ca=str(ca), cert=str(shown.certificate), key=str(shown.key)
            )

        good = client(own, here.ca)
        assert await good.get(Endpoint, "a", "t") == stored
        await good.reload_certificate()
        await good.close()
        for wrong in (client(own, other.ca), client(other, here.ca)):
            with pytest.raises(Unavailable):
                await wrong.get(Endpoint, "a", "t")
            await wrong.close()
