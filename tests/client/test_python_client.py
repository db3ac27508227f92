"""The Python client, sync and async, against a real TLS server that compacts, hangs up and refuses."""

from __future__ import annotations

import asyncio
import http.server
import inspect
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from tests.factories import meta

import holdfast.client as public
from holdfast.client import (
    Ambiguous,
    BadRequest,
    Conflict,
    Fault,
    Invalid,
    NotFound,
    Unavailable,
    WaitTimedOut,
    connect,
    connect_async,
)
from holdfast.client.calls import apply_call, manifest_of
from holdfast.client.watch_cursor import ChangeType, Goal, WatchCursor
from holdfast.identity.certificates import issue, make_ca
from holdfast.model.meta import Condition
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Workload, WorkloadSpec, WorkloadStatus


def stored(name: str, revision: int, **labels: str) -> dict[str, Any]:
    about = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(revision), "labels": labels}
    return {"apiVersion": "holdfast.dev/v1", "kind": "Tenant", "metadata": about, "spec": {}}


class Server:
    """A scripted cell: lists, then watch streams, in order. The last of each is repeated."""

    def __init__(self) -> None:
        self.lists: list[tuple[int, list[dict[str, Any]]]] = [(1, [])]
        self.streams: list[list[tuple[str, dict[str, Any]]]] = [[]]
        self.refusal: tuple[int, str, str] | None = None
        self.hang_up = False
        self.requests: list[tuple[str, str, dict[str, Any]]] = []

    def next_list(self) -> tuple[int, list[dict[str, Any]]]:
        return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]

    def next_stream(self) -> list[tuple[str, dict[str, Any]]]:
        return self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]


def handler_of(server: Server) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            server.requests.append(("GET", parts.path, query))
            if self._refused():
                return
            if query.get("watch"):
                self._watch()
            elif parts.path.endswith("/tenants"):
                revision, items = server.next_list()
                self._json(200, {"metadata": {"resourceVersion": str(revision)}, "items": items})
            else:
                self._json(200, stored(parts.path.rpartition("/")[2], 7))

        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.requests.append(("PATCH", self.path, json.loads(body)))
            if server.hang_up:
                self.connection.close()
            elif not self._refused():
                self._json(200, stored(urlsplit(self.path).path.rpartition("/")[2], 8))

        def do_DELETE(self) -> None:
            server.requests.append(("DELETE", self.path, {}))
            if not self._refused():
                self._json(200, {"kind": "Status", "status": "Success"})

        def _refused(self) -> bool:
            if server.refusal is None:
                return False
            code, reason, message = server.refusal
            causes = [{"field": "spec.x", "reason": "FieldValueInvalid", "message": "wrong"}]
            body = {"kind": "Status", "reason": reason, "message": message, "code": code, "details": {"causes": causes}}
            self._json(code, body)
            return True

        def _watch(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            for kind, item in server.next_stream():
                self.wfile.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
            self.close_connection = True

        def _json(self, code: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    return Handler


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    make_ca(folder, now_s=time.time())
    issue(folder, "server", "server", now_s=time.time(), server=True, ips=("127.0.0.1",))
    return folder


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(pki: Path, server: Server) -> Iterator[str]:
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(server))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{listener.server_port}"
    listener.shutdown()
    thread.join()
    listener.server_close()


GONE = ("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "compacted"})
SCRIPT = ["added a", "added b", "changed a", "deleted b", "changed a", "added c"]


def scripted(server: Server) -> None:
    """A change, a closed stream, a compacted position, and a list in which one object is gone and one is new."""
    server.lists = [(5, [stored("a", 3), stored("b", 4)]), (9, [stored("a", 8), stored("c", 9)])]
    server.streams = [[("MODIFIED", stored("a", 6))], [GONE], []]


def test_watch_resumes_and_lists_again_after_compaction(server: Server, url: str, pki: Path) -> None:
    scripted(server)
    with connect(url=url, token="t", ca=pki / "ca.crt") as client:
        seen = []
        for change in client.watch(Tenant):
            seen.append(f"{change.type.value} {change.object.metadata.name}")
            if len(seen) == len(SCRIPT):
                break
    assert seen == SCRIPT
    positions = [query["resourceVersion"] for _, _, query in server.requests if query.get("watch")]
    assert positions == ["5", "6"], "the second stream starts where the first ended"


async def test_async_watch_resumes_and_lists_again_after_compaction(server: Server, url: str, pki: Path) -> None:
    scripted(server)
    seen = []
    async with connect_async(url=url, token="t", ca=pki / "ca.crt") as client, asyncio.timeout(20):
        async for change in client.watch(Tenant):
            seen.append(f"{change.type.value} {change.object.metadata.name}")
            if len(seen) == len(SCRIPT):
                break
    assert seen == SCRIPT


def test_wait_returns_the_object_or_says_what_was_found(server: Server, url: str, pki: Path) -> None:
    server.lists = [(5, [stored("a", 3)])]
    server.streams = [[("MODIFIED", stored("a", 6, ready="yes"))], []]
    with connect(url=url, token="t", ca=pki / "ca.crt") as client:
        found = client.wait(Tenant, "a", until=lambda item: item.metadata.labels.get("ready") == "yes", timeout_s=10)
        assert found.revision == 6
        with pytest.raises(WaitTimedOut, match=r"tenant a: condition Ready=True not met within 0.3 s .*; next: "):
            client.wait(Tenant, "a", condition="Ready", timeout_s=0.3)
        server.lists = [(5, [])]
        with pytest.raises(WaitTimedOut, match="found no such object"):
            client.wait(Tenant, "a", condition="Ready", timeout_s=0.3)


async def test_async_wait_times_out_with_what_was_found(server: Server, url: str, pki: Path) -> None:
    server.lists = [(5, [stored("a", 3)])]
    async with connect_async(url=url, token="t", ca=pki / "ca.crt") as client:
        with pytest.raises(WaitTimedOut, match="tenant a: condition Ready=True not met"):
            await client.wait(Tenant, "a", condition="Ready", timeout_s=0.3)
        assert (await client.get(Tenant, "a")).revision == 7


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        ((404, "NotFound", "gone"), NotFound, "tenant a: not found; next: holdfast get tenants"),
        (
            (409, "Conflict", "conflict with manager kubectl"),
            Conflict,
            "tenant a: conflict with manager kubectl; next: ",
        ),
        ((422, "Invalid", "spec.x: wrong; next: set x"), Invalid, "tenant a: spec.x: wrong; next: set x"),
        ((403, "Forbidden", "not yours"), Fault, "tenant a: not yours; next: kubectl auth can-i --list"),
    ],
)
async def test_refusal_names_the_object_and_the_next_step(  # noqa: PLR0917 - the columns of the table above
    server: Server, url: str, pki: Path, refusal: tuple[int, str, str], kind: type[Fault], message: str
) -> None:
    server.refusal = refusal
    with connect(url=url, token="t", ca=pki / "ca.crt") as client, pytest.raises(kind) as sync_error:
        client.get(Tenant, "a")
    async with connect_async(url=url, token="t", ca=pki / "ca.crt") as other:
        with pytest.raises(kind) as async_error:
            await other.apply(Tenant(meta("a")))
    for error in (sync_error.value, async_error.value):
        assert error.message.startswith(message)
        assert error.next_step and "https://" not in error.message


async def test_write_without_reply_is_ambiguous_and_sent_once(server: Server, url: str, pki: Path) -> None:
    server.hang_up = True
    with (
        connect(url=url, token="t", ca=pki / "ca.crt", timeout_s=1) as client,
        pytest.raises(Ambiguous, match="may have happened"),
    ):
        client.apply(Tenant(meta("a")))
    async with connect_async(url=url, token="t", ca=pki / "ca.crt", timeout_s=1) as other:
        with pytest.raises(Ambiguous, match="may have happened"):
            await other.patch(Tenant, "a", changes={"spec": {}})
    assert len([entry for entry in server.requests if entry[0] == "PATCH"]) == 2


async def test_cell_that_is_down_is_unavailable_for_writes_too(pki: Path) -> None:
    with connect(url="https://127.0.0.1:9", ca=pki / "ca.crt") as client:
        with pytest.raises(Unavailable, match="global cell: unreachable"):
            client.apply(Tenant(meta("a")))
        with pytest.raises(Unavailable, match="next: holdfast status"):
            client.get(Tenant, "a")
    async with connect_async(url="https://127.0.0.1:9", ca=pki / "ca.crt") as other:
        with pytest.raises(Unavailable, match="global cell: unreachable"):
            await other.apply(Tenant(meta("a")))


def test_typed_apply_sends_no_status_and_no_metadata_of_the_server() -> None:
    read = Workload(
        msgspec.structs.replace(meta("w", "acme"), uid="u", resource_version="5", labels={"a": "b"}),
        WorkloadSpec(replicas=2),
        WorkloadStatus(observed_generation=1),
    )
    document = manifest_of(read)
    assert document["metadata"] == {"name": "w", "namespace": "acme", "labels": {"a": "b"}}
    assert document["kind"] == "Workload" and document["spec"]["replicas"] == 2 and "status" not in document
    call = apply_call(read, manager="me", force=False, dry_run=True)
    assert call.target.endswith(
        "/namespaces/acme/workloads/w?fieldManager=me&force=false&fieldValidation=Strict&dryRun=All"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "no-such"}, "platform no-such: not found"),
        ({"url": "http://127.0.0.1:1"}, "not an https URL"),
        ({"url": "https://127.0.0.1:1", "cert": "c.crt"}, "cert and key belong together"),
        ({"url": "https://127.0.0.1:1", "target": "x"}, "both x and https://127.0.0.1:1"),
        ({"url": "https://127.0.0.1:1", "ca": "no-such.crt"}, "certificate or key not readable"),
    ],
)
def test_connect_refuses_an_unusable_target(
    arguments: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for connecting in (connect, connect_async):
        with pytest.raises(BadRequest, match=message):
            connecting(**arguments)  # type: ignore[arg-type]


def test_missing_tenant_or_kind_is_refused_before_sending(server: Server, url: str, pki: Path) -> None:
    with connect(url=url, ca=pki / "ca.crt") as client:
        with pytest.raises(BadRequest, match=r"workload w: the tenant is missing; next: pass namespace=TENANT"):
            client.get(Workload, "w")
        with pytest.raises(BadRequest, match=r"unknown kind \(found Deployment\)"):
            client.apply({"kind": "Deployment", "metadata": {"name": "x"}})
        with pytest.raises(ValueError, match="either condition or until"):
            client.wait(Tenant, "a")
    assert not server.requests


def test_condition_of_an_older_generation_does_not_count() -> None:
    goal: Goal[Workload] = Goal("Available", None)
    item = Workload(msgspec.structs.replace(meta("w", "acme"), generation=3), WorkloadSpec())

    def observed(generation: int, status: str = "True") -> Workload:
        condition = Condition(type="Available", status=status, observed_generation=generation)
        return msgspec.structs.replace(item, status=WorkloadStatus(conditions=(condition,)))

    assert [goal.is_met(observed(2)), goal.is_met(observed(3)), goal.is_met(observed(3, "False"))] == [
        False,
        True,
        False,
    ]


def test_recreated_object_is_reported_as_deleted_and_added() -> None:
    cursor: WatchCursor[Tenant] = WatchCursor()
    first = Tenant(msgspec.structs.replace(meta("a"), uid="1", resource_version="1"))
    second = Tenant(msgspec.structs.replace(meta("a"), uid="2", resource_version="9"))
    assert [change.type for change in cursor.listed([first], 1)] == [ChangeType.ADDED]
    assert [change.type for change in cursor.listed([second], 9)] == [ChangeType.DELETED, ChangeType.ADDED]
    assert list(cursor.listed([second], 10)) == []


def test_public_names_are_importable_and_modules_import_no_client() -> None:
    assert all(getattr(public, name) for name in public.__all__)
    with pytest.raises(AttributeError):
        public.no_such_name  # noqa: B018
    code = "import sys, holdfast.client.sync_api; print('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_both_clients_have_the_same_calls_and_the_page_names_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    calls = {name for name in vars(public.Holdfast) if not name.startswith("_")} - {"close", "cell_api"}
    other = {name for name in vars(public.AsyncHoldfast) if not name.startswith("_")} - {"close", "blocking"}
    assert calls == other
    for name in calls:
        assert f"{name}(" in page, f"docs/python.md does not name {name}"
    internal = {"AsyncHoldfast", "ChangeType", "Expired", "Holdfast"}
    for name in set(public.__all__) - internal:
        assert name in page, f"docs/python.md does not name {name}"
    for name in calls - {"region", "regions", "watch"}:
        mine = inspect.signature(getattr(public.Holdfast, name)).parameters
        theirs = inspect.signature(getattr(public.AsyncHoldfast, name)).parameters
        assert list(mine) == list(theirs), name
