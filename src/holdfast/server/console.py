"""The console over HTTP: sign-in, pages, one stream per tab, and the connection of each region.

A request to `/console/api` must carry the header `X-Holdfast-Console`, whatever its credential: a page of another
origin cannot send it without permission, which is never given. The cookie is accepted on these paths only, and only
together with the key that the header carries. A WebSocket carries the key as a subprotocol, and must name its origin.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast import __version__
from holdfast.console.drill_desk import DrillDesk
from holdfast.console.global_reads import GlobalReader, part, without_region_times
from holdfast.console.pages import allowed_pages, check_has_past, read_page
from holdfast.console.past import CellHistory, HistoryRange, PastObjects
from holdfast.console.recovery_reads import moments
from holdfast.console.region_hub import AT, PastHub, RegionHub
from holdfast.console.region_lists import ListRevisions, RegionLists
from holdfast.console.region_queries import parse_moment
from holdfast.console.sessions import SESSION_TTL_S, SESSIONS_FILE, ConsoleSession, ConsoleSessions, LinkRefused
from holdfast.console.viewer import Viewer, viewer_of
from holdfast.foundation.ports import Ports
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.oidc_sign_in import OIDC_SIGN_IN_TTL_S, OidcSignIn
from holdfast.model import limits
from holdfast.model.errors import BadRequest, Fault, Forbidden, Unauthorized
from holdfast.model.principal import Principal
from holdfast.server import status
from holdfast.server.agent_sessions import WaitingSession
from holdfast.server.console_assets import DOCUMENTATION, SECURITY_HEADERS, ConsoleAssets
from holdfast.server.request import AnyResponse, Request, Response, StreamResponse, json_response
from holdfast.server.websocket import is_websocket
from holdfast.store.objects import Objects

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Interval at which an open page gets its data anew. Answers are shared by all tabs that show the same.
STREAM_EVERY_S = 1.0
# Age up to which the data of a page is shared.
PAGE_FRESH_S = 0.8
# Pages whose data is kept. The one that was read least recently is dropped.
PAGES_KEPT = 256
# Answers from this size on are compressed, if the browser accepts it.
COMPRESS_FROM_BYTES = 4096
# Largest body of a sign-in.
MAX_SIGN_IN_BYTES = 8 * 1024

HEADER = "x-holdfast-console"
KEY_PROTOCOL = "key.console.holdfast.dev."
"""Prefix of the subprotocol with which a page sends its key when it opens a WebSocket."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_NDJSON = "application/x-ndjson"
_encoder = msgspec.json.Encoder()


class SignIn(msgspec.Struct, frozen=True):
    """A sign-in: the code of a link, a bearer token, or what an issuer sent the browser back with. None of them with a
    client certificate."""

    code: str = ""
    token: str = ""
    issuer_code: str = ""
    issuer_state: str = ""


class ConsolePage(msgspec.Struct, frozen=True):
    """The data of a page as JSON. `etag` changes with the data, but not with the times of the regions' answers."""

    body: bytes
    etag: str
    as_of: float
    revision: int
    region_times: dict[str, float] = {}
    """Region → time of its part, Unix time."""


class ConsoleService:
    """The console of the global cell. `state` is the directory for its sessions; None keeps them in memory. `drills` is
    the folder where the supervisor of this machine takes drills; None if there is no supervisor."""

    def __init__(
        self,
        objects: Objects,
        authenticator: Authenticator,
        ports: Ports,
        state: Path | None,
        drills: Path | None = None,
    ) -> None:
        path = state / SESSIONS_FILE if state is not None else None
        self.sessions = ConsoleSessions(path, ports, authenticator.is_credential_valid)
        self.hub = RegionHub(ports)
        self.lists = RegionLists(self.hub, ports.clock)
        self.revisions = ListRevisions(ports.clock)
        self.reader = GlobalReader(objects, self.hub, ports)
        self.history: CellHistory[GlobalReader] = CellHistory(objects, ports, self._past_reader)
        self.assets = ConsoleAssets()
        self.documentation = ConsoleAssets(DOCUMENTATION)
        self.drills = DrillDesk(drills) if drills is not None else None
        self.oidc: OidcSignIn | None = None
        """Sign-in at the issuer of the cell, if it has one."""
        self.task_sessions: dict[str, WaitingSession] = {}
        """Sessions with tasks that a region was asked to open, and open ones, by id."""
        self._ports = ports
        self._pages: dict[tuple[Any, ...], tuple[float, asyncio.Task[ConsolePage]]] = {}

    def _past_reader(self, past: PastObjects, then: Ports) -> GlobalReader:
        return GlobalReader(past, PastHub(self.hub, then.clock.now()), then)

    async def page(self, viewer: Viewer, name: str, parameters: dict[str, str]) -> ConsolePage:
        """The page, computed at most once per PAGE_FRESH_S for all who may see the same."""
        key = (name, tuple(sorted(parameters.items())), viewer.scope, viewer.groups)
        now_s = self._ports.clock.monotonic()
        kept = self._pages.pop(key, None)
        if kept is None or (kept[1].done() and now_s - kept[0] >= PAGE_FRESH_S):
            kept = (now_s, asyncio.ensure_future(self._read(viewer, name, parameters)))
        self._pages[key] = kept
        while len(self._pages) > PAGES_KEPT:
            self._pages.pop(next(iter(self._pages)))
        return await asyncio.shield(kept[1])

    async def _read(self, viewer: Viewer, name: str, parameters: dict[str, str]) -> ConsolePage:
        reader, as_of = self.reader, 0.0
        if AT in parameters:
            check_has_past(name)
            reader, moment = await self.history.reader(parse_moment(parameters[AT]))
            as_of = moment.at_s
        found = await read_page(reader, viewer, name, parameters)
        as_of, revision = as_of or self._ports.clock.now(), reader.revision()
        timeless, times = without_region_times(found)
        etag = hashlib.blake2b(_encoder.encode(timeless), digest_size=9).hexdigest()
        head = _encoder.encode({"asOf": as_of, "revision": revision, "etag": etag})
        return ConsolePage(
            head[:-1] + b',"data":' + _encoder.encode(found) + b"}", etag, as_of, revision, region_times=times
        )


def service_of(app: Application) -> ConsoleService:
    if app.console is None:
        raise status.HttpRefusal(
            404, "NotFound", "console: the server could not find the requested resource; next: use the global cell"
        )
    return app.console


# Authentication ------------------------------------------------------------------------------------------------------


def check_request(app: Application, request: Request) -> None:
    """Refuses requests that another site may have caused, before anything is read."""
    service_of(app)
    why = _foreign_reason(request)
    if why:
        app.gate.audit.record_refusal(
            request.principal, request.method.lower(), "console", "CrossSite", message=why, request=request.id
        )
        raise Forbidden(f"console: {why}")


def _foreign_reason(request: Request) -> str:
    host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
    if not session_key(request):
        return f"the header {HEADER} is required"
    if is_websocket(request) and not origin:
        return "a WebSocket must name its origin"
    if request.scheme == "http" and _host_name(host) not in _LOOPBACK:
        return f"plain HTTP is served to this machine only (found host {host[:100]})"
    if origin and origin != f"{request.scheme}://{host}":
        return f"requests of another origin are refused (found {origin[:100]})"
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "requests of another site are refused"
    return ""


def session_key(request: Request) -> str:
    """The key that the page sends: in the header, or as a subprotocol of a WebSocket, whose headers it cannot set."""
    if HEADER in request.headers or not is_websocket(request):
        return request.headers.get(HEADER, "")
    offered = (part.strip() for part in request.headers.get("sec-websocket-protocol", "").split(","))
    return next((name.removeprefix(KEY_PROTOCOL) for name in offered if name.startswith(KEY_PROTOCOL)), "")


def _host_name(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def require_viewer(app: Application, request: Request) -> Viewer:
    """The caller as a reader. A caller without anything to read is refused and audited."""
    try:
        cells = app.authenticator.credential_cells(request.principal)
        return msgspec.structs.replace(viewer_of(request.principal), cells=cells)
    except Forbidden as refusal:
        app.gate.audit.record_refusal(
            request.principal, "read", "console", "Forbidden", message=refusal.message, request=request.id
        )
        raise


def _cookie_name(request: Request) -> str:
    """Cookies are shared by all ports of a host, so each platform has its own name."""
    port = urlsplit(f"//{request.headers.get('host', '')[:200]}").netloc.rpartition(":")[2]
    return f"holdfast-console-{port if port.isdigit() else 'default'}"


def _cookie(request: Request, named: str = "") -> str:
    wanted = named or _cookie_name(request)
    for pair in request.headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""


def session_principal(app: Application, request: Request) -> Principal:
    """The caller of a session. Raises Unauthorized without details."""
    service = service_of(app)
    session = service.sessions.find(_cookie(request), session_key(request))
    if session is None:
        raise Unauthorized("console: not signed in, or the session has ended; next: holdfast console")
    request.session_is_live = lambda: service.sessions.is_live(session)
    request.console_session = session
    return session.principal


async def make_link(app: Application, request: Request) -> Response:
    """`POST /console/api/links`: a one-time sign-in link for the caller itself."""
    service = service_of(app)
    require_viewer(app, request)
    await _check_empty(request)
    code, expires_s = service.sessions.make_link(request.caller)
    # Not awaited, like the sign-in: on a full disk an operator needs the console.
    app.gate.audit.record_use(request.principal, "create", "console/links", request=request.id, is_awaited=False)
    left_s = round(expires_s - app.ports.clock.now())
    return json_response({"path": f"/console#sign-in={code}", "expiresInSeconds": left_s})


async def _check_empty(request: Request) -> None:
    if await request.body():
        raise BadRequest(f"{request.path}: expected a request without a body")


async def sign_in(app: Application, request: Request) -> Response:
    """`POST /console/api/session`: exchanges a link or a token for a session."""
    service = service_of(app)
    check_request(app, request)
    try:
        wanted = msgspec.json.decode(await request.body() or b"{}", type=SignIn)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"sign-in: cannot decode the request ({wrong})") from wrong
    try:
        if wanted.code:
            issued = service.sessions.exchange(wanted.code)
        elif wanted.token:
            await app.authenticator.prepare(f"Bearer {wanted.token}")
            issued = service.sessions.begin(_allowed(app, app.authenticator.from_token(wanted.token)))
        elif wanted.issuer_state:
            issued = service.sessions.begin(_allowed(app, await _from_issuer(service, request, wanted)))
        elif request.principal.groups:
            issued = service.sessions.begin(_allowed(app, request.caller))
        else:
            raise Unauthorized("sign-in: a link or a token is needed", facts={"why": "NoCredential"})
    except LinkRefused as refusal:
        _audit_sign_in(app, request, refusal.reason, refusal.user)
        message = {"LinkUsed": "it was used before", "LinkExpired": "it has expired"}.get(refusal.reason, "unknown")
        raise Unauthorized(f"sign-in link: {message}; next: holdfast console makes a new one") from None
    except Unauthorized as refusal:
        _audit_sign_in(app, request, str(refusal.facts.get("why", "TokenUnknown")), "")
        if wanted.issuer_state:
            raise Unauthorized("sign-in: not accepted after the issuer's answer; next: sign in again") from None
        raise Unauthorized("sign-in: the token is not accepted; next: holdfast token create NAME --viewer") from None
    app.gate.audit.record_use(
        issued.session.principal, "signIn", "console/session", request=request.id, is_awaited=False
    )
    response = json_response({"key": issued.key, **_session_facts(app, issued.session.principal, issued.session)})
    response.headers.append((b"set-cookie", _set_cookie(request, issued.cookie, int(SESSION_TTL_S))))
    return secured(response)


async def ways_to_sign_in(app: Application, request: Request) -> Response:
    """`GET /console/api/sign-in`: what the sign-in page offers."""
    oidc = service_of(app).oidc
    return secured(json_response({"issuer": oidc.issuer if oidc is not None else ""}))


async def begin_at_issuer(app: Application, request: Request) -> Response:
    """`POST /console/api/oidc`: where the browser signs in. It comes back to `/console/oidc`."""
    check_request(app, request)
    await _check_empty(request)
    oidc = service_of(app).oidc
    if oidc is None:
        raise BadRequest("sign-in: this cell has no issuer; next: holdfast serve --oidc-issuer-url")
    begun = await oidc.begin(f"{request.scheme}://{request.headers.get('host', '')}/console/oidc")
    response = json_response({"location": begun.location})
    cookie = _set_cookie(request, begun.binding, int(OIDC_SIGN_IN_TTL_S), _issuer_cookie(request))
    response.headers.append((b"set-cookie", cookie))
    return secured(response)


async def _from_issuer(service: ConsoleService, request: Request, wanted: SignIn) -> Principal:
    if service.oidc is None:
        raise Unauthorized(facts={"why": "NoIssuer"})
    binding = _cookie(request, _issuer_cookie(request))
    return await service.oidc.finish(wanted.issuer_state, wanted.issuer_code, binding)


def _issuer_cookie(request: Request) -> str:
    return f"{_cookie_name(request)}-issuer"


def _allowed(app: Application, who: Principal) -> Principal:
    viewer_of(app.access.expand(who))
    return who


def _audit_sign_in(app: Application, request: Request, reason: str, user: str) -> None:
    who = user or f"system:anonymous at {request.address or 'an unknown address'}"
    text = f"from {request.address or 'an unknown address'}"
    app.gate.audit.record_refusal(who, "signIn", "console/session", reason, message=text, request=request.id)


def _set_cookie(request: Request, value: str, seconds: int, named: str = "") -> bytes:
    secure = "; Secure" if request.scheme == "https" else ""
    name = named or _cookie_name(request)
    return f"{name}={value}; Path=/console; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}".encode()


async def session(app: Application, request: Request) -> Response:
    """`GET /console/api/session`: who is signed in, and what is offered."""
    return secured(json_response(_session_facts(app, request.principal, request.console_session)))


def _session_facts(app: Application, who: Principal, held: ConsoleSession | None) -> dict[str, Any]:
    expanded = app.access.expand(who)
    viewer = viewer_of(expanded)
    own = [t for t in sorted(viewer.tenants or ()) if app.access_refusal(expanded, "create", "pods", "exec", t) is None]
    everywhere = app.access_refusal(expanded, "create", "pods", "exec") is None
    return {
        "user": who.name,
        "role": viewer.role,
        "tenants": sorted(viewer.tenants) if viewer.tenants is not None else None,
        "pages": allowed_pages(viewer),
        "execTenants": None if everywhere else own,
        "version": __version__,
        "now": app.ports.clock.now(),
        "expiresAt": held.expires_s if held is not None else 0.0,
    }


async def sign_out(app: Application, request: Request) -> Response:
    """`DELETE /console/api/session`."""
    await _check_empty(request)
    if request.console_session is not None:
        service_of(app).sessions.end(request.console_session)
    response = json_response({"signedOut": True})
    response.headers.append((b"set-cookie", _set_cookie(request, "", 0)))
    return secured(response)


# Pages ---------------------------------------------------------------------------------------------------------------


def _parameters(request: Request) -> dict[str, str]:
    return {name: value[:300] for name, value in request.query.items() if name not in ("from", "page", "once")}


async def page(app: Application, request: Request) -> Response:
    """`GET /console/api/pages/NAME`."""
    viewer = require_viewer(app, request)
    found = await service_of(app).page(viewer, request.target.parameters["page"], _parameters(request))
    response = Response(found.body)
    if len(found.body) >= COMPRESS_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        response = Response(gzip.compress(found.body, 1), headers=[(b"content-encoding", b"gzip")])
    return secured(response)


async def history(app: Application, request: Request) -> Response:
    """`GET /console/api/history`: how far back each cell can be shown, and moments worth looking at."""
    service, viewer = service_of(app), require_viewer(app, request)
    known = await service.hub.ask_all(service.reader.region_names(), "history", viewer)
    regions = {name: found.oldest_s for name, a in known.items() if (found := part(a, HistoryRange)) is not None}
    oldest = await service.history.range()
    answer = {
        "now": app.ports.clock.now(),
        "oldestS": oldest.oldest_s,
        "regions": regions,
        "moments": moments(service.reader, viewer, oldest.oldest_s),
    }
    return secured(json_response(msgspec.to_builtins(answer)))


def secured(response: Response) -> Response:
    response.headers.extend(_no_store())
    return response


async def stream(app: Application, request: Request) -> AnyResponse:
    """`GET /console/api/stream?page=NAME`: the page now, and again whenever it changes. `from` is the last etag.

    With `once` the stream ends after its first event: browsers allow six connections to a server, so only a few tabs
    can hold one, and the others ask again each second.
    """
    service, viewer = service_of(app), require_viewer(app, request)
    name = request.query.get("page", "")
    if AT in request.query:
        raise BadRequest("stream: the past does not change; next: read /console/api/pages with at")
    await service.page(viewer, name, _parameters(request))  # a refusal is an ordinary response
    events = _events(app, viewer, name, _parameters(request), seen=request.query.get("from", ""))
    if request.flag("once"):
        return Response(await anext(events), content_type="text/event-stream", headers=_no_store())
    return StreamResponse(events, content_type="text/event-stream", headers=_no_store())


def _no_store() -> list[tuple[bytes, bytes]]:
    return [*SECURITY_HEADERS, (b"cache-control", b"no-store")]


async def _events(
    app: Application, viewer: Viewer, name: str, parameters: dict[str, str], *, seen: str
) -> AsyncIterator[bytes]:
    service = service_of(app)
    while True:
        try:
            found = await service.page(viewer, name, parameters)
        except Fault as fault:
            yield b"event: fault\ndata: " + _encoder.encode({"message": fault.message}) + b"\n\n"
        else:
            if found.etag != seen:
                seen = found.etag
                yield b"event: page\nid: " + found.etag.encode() + b"\ndata: " + found.body + b"\n\n"
            else:
                beat = _encoder.encode(
                    {"asOf": found.as_of, "revision": found.revision, "regionTimes": found.region_times}
                )
                yield b"event: alive\ndata: " + beat + b"\n\n"
        await app.ports.clock.sleep(STREAM_EVERY_S)


# Regions -------------------------------------------------------------------------------------------------------------


def check_caller_is_region(app: Application, request: Request) -> None:
    """Refuses everyone but the link of the region in the path."""
    region, who = request.target.parameters["region"], request.principal
    if app.cell != "global" or "region" not in who.roles or who.region != region:
        message = f'User "{who.name}" is not the link of region {region[:100]}'
        app.gate.audit.record_refusal(who, "query", "console", "Forbidden", message=message, request=request.id)
        raise Forbidden(message)


async def region_stream(app: Application, request: Request) -> StreamResponse:
    """`GET /region/v1/REGION/queries`: the queries for a region, one per line."""
    return StreamResponse(_query_lines(service_of(app).hub, request.target.parameters["region"]), content_type=_NDJSON)


async def _query_lines(hub: RegionHub, region: str) -> AsyncIterator[bytes]:
    queue = hub.connect(region)
    try:
        yield b"\n"
        while True:
            try:
                async with asyncio.timeout(limits.AGENT_CALL_KEEPALIVE_S):
                    query = await queue.get()
            except TimeoutError:
                yield b"\n"  # keepalive: both sides notice a dead connection
                continue
            if query is None:
                return
            yield _encoder.encode(query) + b"\n"
    finally:
        hub.disconnect(region, queue)


async def region_answer(app: Application, request: Request) -> Response:
    """`POST /region/v1/REGION/answers/ID`."""
    region, query = request.target.parameters["region"], request.target.parameters["id"]
    taken = service_of(app).hub.resolve(region, query, await request.body())
    return json_response({"taken": taken})
