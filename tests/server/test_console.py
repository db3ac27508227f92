"""The console over HTTP: sign-in, what it refuses, roles, regions, and the headers of its files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.expected import present

from holdfast import __version__
from holdfast.console.answers import RegionAnswer, RegionSummary
from holdfast.console.global_reads import part
from holdfast.console.region_hub import FRESH_S, KnownAnswer
from holdfast.console.sessions import LINK_TTL_S, SESSION_TTL_S
from holdfast.console.viewer import viewer_of
from holdfast.gate.audit import read_records
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.tokens import TokenFile
from holdfast.model.principal import OPERATORS, TENANT_PREFIX, VIEWERS, from_identity
from holdfast.server.console import ConsoleService
from holdfast.server.console_assets import ConsoleAssets

from .conftest import Api, Reply, World

HOST = "127.0.0.1:7400"
ORIGIN = f"http://{HOST}"
SESSION = "/console/api/session"


class Browser:
    """A browser at this machine: sends its cookies and, from a page of the console, the header with its key."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cookie = ""
        self.key = "none"

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: Iterable[tuple[str, str]] = (), page: bool = True
    ) -> Reply:
        sent = dict([("host", HOST), ("origin", ORIGIN), ("cookie", self.cookie), *headers])
        if page:
            sent.setdefault("x-holdfast-console", self.key)
        return await Api(self.world.app, "", [(k, v) for k, v in sent.items() if v]).call(method, path, body)

    async def sign_in(self, **body: str) -> Reply:
        reply = await self.call("POST", SESSION, body)
        if reply.code == 200:
            self.key = reply.json["key"]
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return reply


async def link_code(world: World, user: str = "ada") -> str:
    reply = await Api(world.app, user).call("POST", "/console/api/links")
    assert reply.code == 200
    code: str = reply.json["path"].partition("#sign-in=")[2]
    return code


async def refusals(world: World) -> set[tuple[str, str, str]]:
    await world.gate.audit.flush()
    found = [record for _, record in await read_records(world.store, limit=10_000)]
    return {(r["principal"], r["verb"], r["reason"]) for r in found if r["result"] == "Refused"}


@pytest.fixture
def browser(world: World) -> Browser:
    return Browser(world)


async def test_link_signs_in_once_and_second_use_is_refused_and_audited(world: World, browser: Browser) -> None:
    code = await link_code(world)
    reply = await browser.sign_in(code=code)
    assert (reply.code, reply.json["user"], reply.json["role"]) == (200, "ada", "operator")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/console" in cookie
    thief = Browser(world)
    assert (await thief.sign_in(code=code)).code == 401
    assert ("ada", "signIn", "LinkUsed") in await refusals(world)
    assert (await browser.call("GET", SESSION)).json["user"] == "ada"


async def test_link_after_its_lifetime_is_refused(world: World, browser: Browser, monkeypatch: Any) -> None:
    code = await link_code(world)
    now_s = world.ports.clock.now()
    monkeypatch.setattr(type(world.ports.clock), "now", lambda self: now_s + LINK_TTL_S + 1)
    assert (await browser.sign_in(code=code)).code == 401
    assert ("ada", "signIn", "LinkExpired") in await refusals(world)


async def test_session_needs_cookie_and_key(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    stolen_cookie, stolen_key = Browser(world), Browser(world)
    stolen_cookie.cookie, stolen_key.key = browser.cookie, browser.key
    assert (await stolen_cookie.call("GET", SESSION)).code == 401
    assert (await stolen_key.call("GET", SESSION)).code == 401
    assert (await browser.call("GET", SESSION)).code == 200


async def test_session_ends_after_its_lifetime(world: World, browser: Browser, monkeypatch: Any) -> None:
    await browser.sign_in(code=await link_code(world))
    now_s = world.ports.clock.now()
    monkeypatch.setattr(type(world.ports.clock), "now", lambda self: now_s + SESSION_TTL_S + 1)
    assert (await browser.call("GET", SESSION)).code == 401


async def test_session_survives_a_restart_and_is_stored_as_hashes(
    world: World, browser: Browser, tmp_path: Path
) -> None:
    await browser.sign_in(code=await link_code(world))
    stored = (tmp_path / "console-sessions.json").read_text()
    assert browser.key not in stored and browser.cookie.partition("=")[2] not in stored
    world.app.console = ConsoleService(world.objects, world.app.authenticator, world.ports, tmp_path)
    assert (await browser.call("GET", SESSION)).json["user"] == "ada"


async def test_sign_out_ends_the_session(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    assert (await browser.call("DELETE", SESSION)).code == 200
    assert (await browser.call("GET", SESSION)).code == 401


async def test_session_of_a_token_ends_when_the_token_is_revoked(world: World, browser: Browser) -> None:
    token = world.tokens.issue("eve", "eve", (VIEWERS,))
    assert (await browser.sign_in(token=token)).json["role"] == "viewer"
    assert (await browser.call("GET", "/console/api/pages/overview")).code == 200
    world.tokens.revoke("eve")
    assert (await browser.call("GET", "/console/api/pages/overview")).code == 401
    world.tokens.issue("eve", "eve", (OPERATORS,))
    assert (await browser.call("GET", SESSION)).code == 401, "another token of the same name is another credential"


async def test_stream_ends_when_the_session_ends(world: World, browser: Browser, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.server.open_streams.STREAM_CREDENTIALS_CHECK_EVERY_S", 0.05)
    await browser.sign_in(code=await link_code(world))
    stream = asyncio.ensure_future(browser.call("GET", "/console/api/stream?page=overview"))
    await asyncio.sleep(0.3)
    assert not stream.done()
    service = present(world.app.console)
    service.sessions.end(present(service.sessions.find(browser.cookie.partition("=")[2], browser.key)))
    async with asyncio.timeout(10):
        reply = await stream
    assert b"event: page" in reply.body


async def test_stream_with_once_ends_after_one_event_and_resumes_by_its_etag(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    path = "/console/api/stream?page=policies&once=true"
    async with asyncio.timeout(10):
        first = await browser.call("GET", path)
        etag = first.body.decode().partition("id: ")[2].partition("\n")[0]
        again = await browser.call("GET", f"{path}&from={etag}")
    assert first.body.startswith(b"event: page") and again.body.startswith(b"event: alive")


@pytest.mark.parametrize(
    ("headers", "page"),
    [
        pytest.param([], False, id="without the header of the page"),
        pytest.param([("origin", "https://evil.example")], True, id="of another origin"),
        pytest.param([("origin", "http://127.0.0.1:8080")], True, id="of another port"),
        pytest.param([("sec-fetch-site", "cross-site")], True, id="of another site"),
        pytest.param([("host", "evil.example:7400"), ("origin", "http://evil.example:7400")], True, id="rebound name"),
    ],
)
async def test_foreign_request_is_refused_and_audited(
    world: World, browser: Browser, headers: list[tuple[str, str]], page: bool
) -> None:
    await browser.sign_in(code=await link_code(world))
    for method, path in (("GET", "/console/api/pages/overview"), ("DELETE", SESSION), ("POST", SESSION)):
        reply = await browser.call(method, path, headers=headers, page=page)
        assert reply.code in (401, 403), f"{method} {path}: {reply.code}"
    assert any(reason == "CrossSite" for _, _, reason in await refusals(world))
    assert (await browser.call("GET", SESSION)).code == 200, "the session is as it was"


async def test_cookie_is_no_credential_for_the_api(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    for path in ("/apis/holdfast.dev/v1/workloads", "/metrics", "/api/v1/namespaces"):
        assert (await browser.call("GET", path)).code == 401


async def test_tenant_sees_only_its_own_and_is_refused_other_pages(world: World, browser: Browser) -> None:
    manifest = {"metadata": {"name": "api"}, "spec": {"template": {"command": ["true"]}, "replicas": 1}}
    for tenant in ("shop", "other"):
        made = await Api(world.app).post(f"/apis/holdfast.dev/v1/namespaces/{tenant}/workloads", manifest)
        assert made.code == 201, made.body
    await browser.sign_in(code=await link_code(world, "tim"))
    rows = (await browser.call("GET", "/console/api/pages/workloads")).json["data"]["rows"]
    assert [row["tenant"] for row in rows] == ["shop"]
    assert (await browser.call("GET", "/console/api/pages/workload?tenant=other&name=api")).code == 403
    offered = (await browser.call("GET", SESSION)).json["pages"]
    for page in ("map", "node", "recoveries", "audit", "system", "what-if", "policies"):
        assert page not in offered
        assert (await browser.call("GET", f"/console/api/pages/{page}")).code == 403
        assert (await browser.call("GET", f"/console/api/stream?page={page}")).code == 403


async def test_action_passes_the_same_gate_as_the_api(world: World, browser: Browser) -> None:
    path = "/apis/holdfast.dev/v1/namespaces/shop/workloads"
    manifest = {"metadata": {"name": "api"}, "spec": {"template": {"command": ["true"]}, "replicas": 1}}
    assert (await Api(world.app).post(path, manifest)).code == 201
    item, change = f"/console/api/resources{path}/api", {"spec": {"replicas": 3}}

    async def patch(by: Browser, query: str = "", *, page: bool = True) -> Reply:
        headers = [("content-type", "application/merge-patch+json")]
        return await by.call("PATCH", item + query, change, headers=headers, page=page)

    assert (await patch(browser)).code == 401, "not signed in"
    await browser.sign_in(code=await link_code(world))
    assert (await patch(browser, "?dryRun=All")).json["spec"]["replicas"] == 3
    assert (await browser.call("GET", item)).json["spec"]["replicas"] == 1, "a dry run changes nothing"
    assert (await patch(browser, page=False)).code in (401, 403), "forged by another site"
    assert (await patch(browser)).code == 200
    viewer, tenant = Browser(world), Browser(world)
    await viewer.sign_in(token=world.tokens.issue("vera", "vera", (VIEWERS,)))
    await tenant.sign_in(token=world.tokens.issue("olga", "olga", (f"{TENANT_PREFIX}other",)))
    for stranger, name in ((viewer, "vera"), (tenant, "olga")):
        assert (await patch(stranger)).code == 403
        assert (name, "patch", "Forbidden") in await refusals(world)
    await world.gate.audit.flush()
    committed = [r for _, r in await read_records(world.store, limit=10_000) if r.get("verb") == "update"]
    assert [r["principal"] for r in committed] == ["ada"]


async def test_only_resources_are_reached_through_the_console(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    for path in ("/metrics", "/commit/v1", "/placement/v1/bind", "/console/api/session", "/region/v1/west/queries"):
        for method in ("GET", "POST"):
            reply = await browser.call(method, f"/console/api/resources{path}", {} if method == "POST" else None)
            assert reply.code in (404, 405), f"{method} {path}: {reply.code}"


async def test_caller_without_anything_to_read_gets_no_link(world: World) -> None:
    reply = await Api(world.app, "holdfast:node:west:n1").call("POST", "/console/api/links")
    assert reply.code == 403
    assert ("holdfast:node:west:n1", "read", "Forbidden") in await refusals(world)


async def test_every_page_answers_an_operator_also_without_regions(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    details = {"workload", "node", "decision", "recovery"}
    for page in (await browser.call("GET", SESSION)).json["pages"]:
        reply = await browser.call("GET", f"/console/api/pages/{page}?text=x")
        assert reply.code == (404 if page in details else 200), f"{page}: {reply.body[:200]!r}"


async def test_past_is_refused_where_it_is_not_kept_and_for_pages_of_the_present(
    world: World, browser: Browser
) -> None:
    await browser.sign_in(code=await link_code(world))
    page = "/console/api/pages"
    gone = await browser.call("GET", f"{page}/overview?at=1")
    assert gone.code == 410 and "not kept" in gone.json["message"]
    assert (await browser.call("GET", f"{page}/overview?at=yesterday")).code == 400
    for name in ("audit", "system", "what-if"):
        assert (await browser.call("GET", f"{page}/{name}?at=1")).code == 400
    assert (await browser.call("GET", "/console/api/stream?page=overview&at=1")).code == 400
    answer = (await browser.call("GET", "/console/api/history")).json
    assert answer["oldestS"] == 0.0 and answer["moments"] == []


async def test_region_that_is_not_connected_is_named_with_the_reason(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    region = (await browser.call("GET", "/console/api/pages/overview")).json["data"]["regions"][0]
    assert (region["name"], region["asOf"]) == ("west", 0.0)
    assert "not connected" in region["problem"]


async def test_region_that_stops_answering_keeps_its_last_answer_with_its_time(world: World) -> None:
    hub = present(world.app.console).hub
    viewer = viewer_of(from_identity("ada", (OPERATORS,), credential="test"))
    queue = hub.connect("west")

    async def answer_once() -> None:
        query = present(await queue.get())
        body = json.dumps({"asOf": 12.5, "revision": 7, "data": {"replicas": 3}}).encode()
        assert not hub.resolve("east", query.id, body), "an answer of another region is not taken"
        assert hub.resolve("west", query.id, body)

    answering = asyncio.ensure_future(answer_once())
    known = await hub.ask("west", "summary", viewer)
    await answering
    assert known.answer == RegionAnswer(as_of=12.5, revision=7, data={"replicas": 3}) and not known.problem
    hub.disconnect("west", queue)
    await asyncio.sleep(1.0)
    known = await hub.ask("west", "summary", viewer)
    assert present(known.answer).as_of == 12.5 and "not connected" in known.problem
    stranger = viewer_of(from_identity("tim", (f"{TENANT_PREFIX}shop",), credential="test"))
    assert (await hub.ask("west", "summary", stranger)).answer is None, "answers are not shared beyond what both see"


async def test_region_that_has_nothing_new_keeps_the_data_and_gives_a_newer_time(world: World) -> None:
    hub = present(world.app.console).hub
    viewer = viewer_of(from_identity("ada", (OPERATORS,), credential="test"))
    queue, known = hub.connect("west"), []

    async def answer(body: dict[str, Any]) -> None:
        query = present(await queue.get())
        known.append(query.known)
        assert hub.resolve("west", query.id, json.dumps(body).encode())

    async def ask(body: dict[str, Any]) -> KnownAnswer:
        answering = asyncio.ensure_future(answer(body))
        found = await hub.ask("west", "summary", viewer)
        await answering
        await asyncio.sleep(FRESH_S + 0.1)
        return found

    first = await ask({"asOf": 12.5, "etag": "e1", "data": {"replicas": 3}})
    read = part(first, RegionSummary)
    second = await ask({"asOf": 13.5, "etag": "e1", "unchanged": True})
    assert part(second, RegionSummary) is read and present(read).replicas == 3, "read once"
    assert (present(first.answer).as_of, present(second.answer).as_of) == (12.5, 13.5)
    third = await ask({"asOf": 14.5, "etag": "e2", "data": {"replicas": 4}})
    assert present(part(third, RegionSummary)).replicas == 4
    assert known == ["", "e1", "e1"]


async def test_page_whose_regions_only_answered_again_is_not_sent_again(world: World, browser: Browser) -> None:
    service = present(world.app.console)
    viewer = viewer_of(from_identity("ada", (OPERATORS,), credential="test"))
    queue = service.hub.connect("west")

    async def answer() -> None:
        for as_of in (100.0, 101.0):
            query = present(await queue.get())
            body = {"asOf": as_of, "data": {"replicas": 3}}
            service.hub.resolve("west", query.id, json.dumps(body).encode())

    answering = asyncio.ensure_future(answer())
    first = await service.page(viewer, "pipeline", {})
    await asyncio.sleep(FRESH_S + 0.1)
    second = await service.page(viewer, "pipeline", {})
    await answering
    assert first.etag == second.etag
    assert (first.region_times["west"], second.region_times["west"]) == (100.0, 101.0)


async def test_only_the_link_of_a_region_receives_its_queries(world: World) -> None:
    for user in ("ada", "tim", "holdfast:node:west:n1"):
        reply = await Api(world.app, user).call("GET", "/region/v1/west/queries")
        assert reply.code == 403


async def test_root_leads_to_the_console_and_nowhere_else(world: World, browser: Browser) -> None:
    reply = await browser.call("GET", "/?next=https://evil.example", headers=[("host", "evil.example")])
    assert (reply.code, reply.headers["location"]) == (302, "/console")


async def test_every_answer_forbids_inline_script_and_framing(world: World, browser: Browser) -> None:
    await browser.sign_in(code=await link_code(world))
    for path in ("/", "/console", "/console/workloads/a/b", SESSION, "/console/api/pages/overview"):
        policy = (await browser.call("GET", path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy


async def test_path_outside_the_assets_is_not_served(world: World, browser: Browser) -> None:
    for path in ("/console/assets/..%2fsessions.py", "/console/assets/index.html", "/console/api/unknown"):
        assert (await browser.call("GET", path)).code in (401, 404)


async def test_docs_lead_to_the_site_of_this_version(world: World, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / __version__ / "reference" / "kinds" / "Workload.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>a page</p>")
    (tmp_path / "index.html").write_text("all versions")
    present(world.app.console).documentation = ConsoleAssets(tmp_path)
    for path in ("/docs", "/docs/", f"/docs/{__version__}"):
        reply = await browser.call("GET", path)
        assert (reply.code, reply.headers["location"]) == (302, f"/docs/{__version__}/index.html")
    reply = await browser.call("GET", f"/docs/{__version__}/reference/kinds/Workload.html")
    assert (reply.code, reply.body) == (200, b"<p>a page</p>")
    known = [("if-none-match", reply.headers["etag"])]
    assert (await browser.call("GET", f"/docs/{__version__}/reference/kinds/Workload.html", headers=known)).code == 304
    assert "script-src 'self'" in reply.headers["content-security-policy"]


async def test_docs_serve_code_as_text(world: World, browser: Browser, tmp_path: Path) -> None:
    code = tmp_path / __version__ / "code" / "src.holdfast.a.py.txt"
    code.parent.mkdir(parents=True)
    code.write_text("x = '<script>'\n")
    (tmp_path / "index.html").write_text("all versions")
    present(world.app.console).documentation = ConsoleAssets(tmp_path)
    reply = await browser.call("GET", f"/docs/{__version__}/code/{code.name}")
    assert (reply.code, reply.body) == (200, b"x = '<script>'\n")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"


async def test_docs_serve_only_files_of_the_site(world: World, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("all versions")
    (tmp_path / "secret.html").write_text("outside")
    present(world.app.console).documentation = ConsoleAssets(tmp_path / "site")
    for path in ("/docs/absent.html", "/docs/..%2fsecret.html", "/docs/../secret.html", "/docs/a/b/c/d"):
        assert (await browser.call("GET", path)).code == 404, path


async def test_docs_that_are_not_built_name_the_next_step(world: World, browser: Browser, tmp_path: Path) -> None:
    present(world.app.console).documentation = ConsoleAssets(tmp_path)
    reply = await browser.call("GET", "/docs")
    assert reply.code == 404
    assert b"make docs" in reply.body


def test_credential_of_a_revoked_or_reissued_token_is_not_valid(tmp_path: Path, world: World) -> None:
    tokens = TokenFile(tmp_path / "other-tokens.json")
    authenticator = Authenticator("global", world.ports, tokens=tokens)
    who = authenticator.from_token(tokens.issue("ci", "ci", (VIEWERS,)))
    assert authenticator.is_credential_valid(who)
    tokens.revoke("ci")
    assert not authenticator.is_credential_valid(who)
    assert not authenticator.is_credential_valid(from_identity("ada", (OPERATORS,), credential="invented"))
