"""A small HTTP API over the scripted cell, with faults before, after or instead of a response.

Uses the real codec. It misbehaves in ways that the real server never does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from tests.controllers.scripted import ScriptedCell

from holdfast.client import wire
from holdfast.model.codec import object_wire_bytes
from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_PLURAL
from holdfast.model.meta import Key
from holdfast.model.placement_api import PlacementOutcome, PlacementResponse, PlacementResult, RenewRequest


class SmallServer:
    def __init__(self, cell: ScriptedCell, tls: ssl.SSLContext | None = None) -> None:
        self.cell = cell
        self._tls = tls
        self.requests: list[str] = []
        self.silent_after_commit = 0
        """How many commits are applied and then never answered."""
        self.silent_before_commit = 0
        self.cut_after_commit = 0
        """How many commits are applied, and then the connection is closed without an answer."""
        self.answers: list[tuple[int, str, dict[str, str]]] = []
        """Answers given instead of doing anything: status, reason, headers."""
        self.commit_answers: list[tuple[int, str]] = []
        """Bodies answered to commits that were applied."""
        self.page = 2
        self.before_page: Callable[[], None] = lambda: None
        """Called before each page of a list after the first."""
        self.lines: list[bytes] = []
        self.watch_queries: list[dict[str, str]] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> SmallServer:
        app = web.Application(middlewares=[self._instead])
        app.router.add_post("/commit/v1", self._commit)
        app.router.add_post("/notify/v1", self._notify)
        app.router.add_post("/placement/v1/renew", self._renew)
        for prefix in ("/apis/{group}/v1", "/api/v1"):
            for scope in ("", "/namespaces/{namespace}"):
                app.router.add_get(f"{prefix}{scope}/{{plural}}", self._list)
                app.router.add_get(f"{prefix}{scope}/{{plural}}/{{name}}", self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @web.middleware
    async def _instead(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.answers:
            status, reason, headers = self.answers.pop(0)
            return _status(status, reason, headers)
        try:
            return await handler(request)
        except Fault as fault:
            return _status(fault.code, fault.reason, {})

    async def _get(self, request: web.Request) -> web.Response:
        kind = BY_PLURAL[request.match_info["plural"]]
        key = Key(request.match_info.get("namespace", ""), request.match_info["name"])
        item = self.cell.objects.get((kind.type, key))
        if item is None:
            return _status(404, "NotFound", {})
        return _json(object_wire_bytes(item))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind = BY_PLURAL[request.match_info["plural"]]
        if request.query.get("watch"):
            return await self._watch(request)
        start, revision = 0, self.cell.revision
        if "continue" in request.query:
            self.before_page()
            start, revision = json.loads(base64.b64decode(request.query["continue"]))
            if revision < self.cell.compacted:
                return _status(410, "Expired", {})
        items = [item for item in self.cell.all(kind.type) if item.revision <= revision]
        page = items[start : start + self.page]
        following = ""
        if start + self.page < len(items):
            following = base64.b64encode(json.dumps([start + self.page, revision]).encode()).decode()
        metadata = {"resourceVersion": str(revision), "continue": following}
        body = {"metadata": metadata, "items": [msgspec.Raw(object_wire_bytes(item)) for item in page]}
        return _json(msgspec.json.encode(body))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watch_queries.append(dict(request.query))
        answer = web.StreamResponse()
        await answer.prepare(request)
        for line in self.lines:
            await answer.write(line)
            await asyncio.sleep(0.01)
        return answer

    async def _commit(self, request: web.Request) -> web.Response:
        decoded = wire.decode_commit(await request.read())
        if self.silent_before_commit:
            self.silent_before_commit -= 1
            await asyncio.sleep(30)
        done = self.cell.apply(decoded.writes, decoded.token)
        if self.silent_after_commit:
            self.silent_after_commit -= 1
            await asyncio.sleep(30)
        if self.cut_after_commit:
            self.cut_after_commit -= 1
            assert request.transport is not None
            request.transport.abort()
        if self.commit_answers:
            status, text = self.commit_answers.pop(0)
            return web.Response(status=status, text=text)
        return _json(wire.encode_committed(done))

    async def _notify(self, request: web.Request) -> web.Response:
        self.cell.notices += wire.decode_notify(await request.read()).notices  # type: ignore[arg-type]
        return web.Response()

    async def _renew(self, request: web.Request) -> web.Response:
        decoded = msgspec.json.decode(await request.read(), type=RenewRequest)
        answers = PlacementResponse(
            results=tuple(PlacementResult(result=PlacementOutcome.ACCEPTED, node=item.node) for item in decoded.items)
        )
        return _json(msgspec.json.encode(answers))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _status(code: int, reason: str, headers: dict[str, str]) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": f"scripted {reason}"}
    return web.json_response(body, status=code, headers=headers)
