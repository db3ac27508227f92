"""Sign-in to the console at an OIDC issuer, a process of its own: the code flow, its refusals, and a real browser."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import aiohttp
import pytest
from tests.browser import QUIET
from tests.expected import present
from tests.platforms import ROOT
from tests.requirements import skip_or_fail

from holdfast.identity.authenticate import Authenticator
from holdfast.identity.oidc import OidcConfig, OidcVerifier
from holdfast.identity.oidc_sign_in import OIDC_SIGN_IN_TTL_S, OidcSignIn
from holdfast.server.console_assets import ASSETS
from holdfast.server.listener import listen

from .conftest import Api, Reply, World
from .test_console import Browser, refusals

USER = "oidc:ann"


@pytest.fixture
async def issuer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("issuer")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.oidc_issuer", str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    assert url.startswith("https://")
    yield url, folder / "ca.crt"
    process.kill()
    await process.wait()


@pytest.fixture
async def cell(world: World, issuer: tuple[str, Path]) -> World:
    """The global cell with this issuer, whose group sre may see everything."""
    url, ca_file = issuer
    config = OidcConfig(
        issuer_url=url,
        client_id="holdfast",
        ca_file=ca_file,
        username_prefix="oidc:",
        groups_claim="groups",
        groups_prefix="oidc:",
    )
    verifier = OidcVerifier(config, world.ports)
    world.app.authenticator = Authenticator("global", world.ports, tokens=world.tokens, oidc=verifier)
    console = present(world.app.console)
    console.oidc = OidcSignIn(config, verifier, world.ports)
    console.sessions._is_credential_valid = world.app.authenticator.is_credential_valid
    binding = {
        "metadata": {"name": "sre"},
        "roleRef": {"kind": "ClusterRole", "name": "holdfast:operator"},
        "subjects": [{"kind": "Group", "name": "oidc:sre"}],
    }
    made = await Api(world.app).post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    assert made.code == 201, made.body
    return world


class AtIssuer:
    """A browser on its way through the issuer."""

    def __init__(self, cell: World, ca_file: Path) -> None:
        self.browser, self._ca = Browser(cell), ca_file

    async def begin(self) -> str:
        reply = await self.browser.call("POST", "/console/api/oidc")
        assert reply.code == 200, reply.body
        self.browser.cookie = reply.headers["set-cookie"].partition(";")[0]
        location: str = reply.json["location"]
        return location

    async def sign_in_there(self, location: str) -> dict[str, str]:
        """What the issuer sends the browser back with."""
        context = ssl.create_default_context(cafile=str(self._ca))
        async with aiohttp.ClientSession() as http, http.get(location, ssl=context, allow_redirects=False) as answer:
            assert answer.status == 302
            back = urlsplit(answer.headers["location"])
        assert back.path == "/console/oidc"
        found = parse_qs(back.query)
        return {"issuer_code": found["code"][0], "issuer_state": found["state"][0]}

    async def finish(self, back: dict[str, str]) -> Reply:
        return await self.browser.sign_in(**back)


async def test_code_flow_signs_in_with_the_roles_of_the_issuer_groups(cell: World, issuer: tuple[str, Path]) -> None:
    ways = await Browser(cell).call("GET", "/console/api/sign-in")
    assert ways.json == {"issuer": issuer[0]}
    one = AtIssuer(cell, issuer[1])
    location = await one.begin()
    query = parse_qs(urlsplit(location).query)
    assert query["response_type"] == ["code"] and query["code_challenge_method"] == ["S256"] and query["nonce"]
    signed = await one.finish(await one.sign_in_there(location))
    assert signed.code == 200, signed.body
    assert (signed.json["user"], signed.json["role"]) == (USER, "operator")
    assert (await one.browser.call("GET", "/console/api/pages/overview")).code == 200


def _with(location: str, **changes: str) -> str:
    parts = urlsplit(location)
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **changes})).geturl()


async def test_answer_of_the_issuer_is_accepted_once(cell: World, issuer: tuple[str, Path]) -> None:
    one = AtIssuer(cell, issuer[1])
    back = await one.sign_in_there(await one.begin())
    assert (await one.finish(back)).code == 200
    assert (await one.finish(back)).code == 401
    assert "SignInUnknown" in {reason for _, _, reason in await refusals(cell)}


async def test_answer_planted_in_another_browser_is_refused(cell: World, issuer: tuple[str, Path]) -> None:
    attacker, victim = AtIssuer(cell, issuer[1]), AtIssuer(cell, issuer[1])
    back = await attacker.sign_in_there(await attacker.begin())
    await victim.begin()
    assert (await victim.finish(back)).code == 401
    assert "SignInOfAnotherBrowser" in {reason for _, _, reason in await refusals(cell)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"nonce": "of another sign-in"}, "NonceWrong", id="nonce"),
        pytest.param({"code_challenge": "A" * 43}, "CodeRefused", id="verifier"),
        pytest.param({"redirect_uri": "https://elsewhere.example/console/oidc"}, "CodeRefused", id="redirect"),
    ],
)
async def test_changed_authorization_is_refused(
    cell: World, issuer: tuple[str, Path], change: dict[str, str], reason: str
) -> None:
    one = AtIssuer(cell, issuer[1])
    back = await one.sign_in_there(_with(await one.begin(), **change))
    assert (await one.finish(back)).code == 401
    assert reason in {found for _, _, found in await refusals(cell)}


async def test_sign_in_after_its_time_is_refused(cell: World, issuer: tuple[str, Path], monkeypatch: Any) -> None:
    one = AtIssuer(cell, issuer[1])
    back = await one.sign_in_there(await one.begin())
    late_s = cell.ports.clock.now() + OIDC_SIGN_IN_TTL_S + 1
    monkeypatch.setattr(cell.ports.clock, "now", lambda: late_s)
    assert (await one.finish(back)).code == 401
    assert "SignInExpired" in {reason for _, _, reason in await refusals(cell)}


async def test_other_site_cannot_begin_a_sign_in(cell: World) -> None:
    reply = await Browser(cell).call("POST", "/console/api/oidc", headers=[("origin", "https://elsewhere.example")])
    assert reply.code == 403
    assert (await Browser(cell).call("POST", "/console/api/oidc", page=False)).code == 403


async def test_issuer_that_does_not_answer_is_named(cell: World, issuer: tuple[str, Path]) -> None:
    config = OidcConfig(issuer_url="https://127.0.0.1:1", client_id="holdfast", ca_file=issuer[1])
    present(cell.app.console).oidc = OidcSignIn(config, OidcVerifier(config, cell.ports), cell.ports)
    reply = await Browser(cell).call("POST", "/console/api/oidc")
    assert reply.code == 503 and "does not answer" in reply.json["message"]


@pytest.mark.slow
async def test_browser_signs_in_at_the_issuer_and_returns_to_its_page(cell: World) -> None:
    from playwright.async_api import async_playwright, expect

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or not (ASSETS / "index.html").exists():
        skip_or_fail("chromium or the console is missing; next: as root: apt-get install chromium; make console")
    listener = await listen(cell.app, "127.0.0.1", 0)
    flags = [*QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=flags)
            context = await browser.new_context(ignore_https_errors=True)
            page = await context.new_page()
            await page.goto(f"http://127.0.0.1:{listener.port}/console/quotas?tenant=shop")
            await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
            await expect(page.get_by_role("button", name="Sign out")).to_be_visible(timeout=30_000)
            await expect(page.locator("nav.nav footer")).to_contain_text(USER)
            assert page.url.endswith("/console/quotas?tenant=shop"), "the address has the page and no code"
            await browser.close()
    finally:
        await listener.stop()
