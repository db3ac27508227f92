"""A small synchronous HTTPS client for commands: standard library only, so that commands start at once.

It reads and applies; controllers, agents and everything that must survive faults use `holdfast.client` instead.
Every request has a deadline. It never retries by itself: a command that waits says so and asks again.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from holdfast.cli.exits import Exit, Stop

MAX_ANSWER_BYTES = 64 * 1024 * 1024
PAGE = 500
MAX_PAGES = 1000
NOT_FOUND = 404
_NAMED = re.compile(r"^/apis/[^/]+/v1/(?:namespaces/([^/]+)/)?([a-z]+)/([^/]+)(?:/[a-z]+)?$")
"""The path of one object: its tenant if it has one, its plural and its name."""

DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
"""Asks what would be said to a write, a misspelt field included."""


class Refusal(Stop):
    """The API answered, and the answer was no. `status` is the HTTP code, `reason` the API's word for it."""

    def __init__(self, what: str, *, status: int, reason: str, why: str, next_step: str = "") -> None:
        code = {401: Exit.DENIED, 403: Exit.DENIED, 409: Exit.CONFLICT}.get(status, Exit.FAILED)
        super().__init__(what, why=why, next_step=next_step, code=code)
        self.status = status
        self.reason = reason


class Api:
    """One cell's API. Connections are opened on first use and reopened after a failure."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        ca: Path | None,
        cert: Path | None = None,
        key: Path | None = None,
        token: str = "",
        timeout_s: float = 5.0,
    ) -> None:
        parts = urlsplit(url)
        self.name = name
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 443
        self._token = token
        self._timeout_s = timeout_s
        self._context = ssl.create_default_context(cafile=str(ca) if ca is not None else None)
        if cert is not None and key is not None:
            self._context.load_cert_chain(str(cert), str(key))
        self._connection: http.client.HTTPSConnection | None = None

    def get(self, path: str, **query: str) -> Any:
        return self.request("GET", path, query=query)

    def text(self, path: str) -> tuple[int, str]:
        """A plain-text page such as /readyz: the code and the body, whatever the code."""
        status, body = self._exchange("GET", path, b"", "")
        return status, body.decode(errors="replace")

    def list(self, plural: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """All objects of a kind, page by page."""
        where = f"namespaces/{quote(namespace)}/{plural}" if namespace else plural
        items: list[dict[str, Any]] = []
        asked = {"limit": str(PAGE), **query}
        for _ in range(MAX_PAGES):
            answer = self.request("GET", f"/apis/holdfast.dev/v1/{where}", query=asked)
            items.extend(answer["items"])
            rest = answer.get("metadata", {}).get("continue", "")
            if not rest:
                return items
            asked["continue"] = rest
        raise Stop(f"{plural}: more than {MAX_PAGES * PAGE} objects", next_step="narrow the question")

    def apply(self, item: dict[str, Any], plural: str, *, manager: str, dry_run: bool = False) -> Any:
        """Server-side apply: creates or changes the object and owns the fields it names."""
        meta = item["metadata"]
        namespace = meta.get("namespace", "")
        where = f"namespaces/{quote(namespace)}/" if namespace else ""
        path = f"/apis/{item['apiVersion']}/{where}{plural}/{quote(meta['name'])}"
        query = {"fieldManager": manager, "force": "true", **(DRY_RUN if dry_run else {})}
        return self.request("PATCH", path, item, query=query, content_type="application/apply-patch+yaml")

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        """One request; the decoded JSON answer, or `Refusal`, or `Stop` when there was no answer."""
        target = f"{path}?{urlencode(query)}" if query else path
        sent = json.dumps(body).encode() if body is not None else b""
        status, answer = self._exchange(method, target, sent, content_type if sent else "", accept)
        if status >= 400:
            raise self._refusal(method, path, status, answer)
        return json.loads(answer) if answer else None

    def stream(self, path: str, body: Any, *, silence_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """POST, and the JSON lines of an answer that goes on; over a connection of its own. Blank lines are skipped."""
        headers = {"Content-Type": "application/json", "User-Agent": "holdfast-cli"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=silence_s, context=self._context)
        try:
            connection.request("POST", path, body=json.dumps(body).encode(), headers=headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise self._refusal("POST", path, answer.status, answer.read(MAX_ANSWER_BYTES))
            while line := answer.readline():
                if line.strip():
                    yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Stop(
                f"the answer of the {self.name} cell at {self.url} broke off",
                why=str(error) or type(error).__name__,
                code=Exit.UNREACHABLE,
            ) from error
        finally:
            connection.close()

    def send_only(self, path: str, body: Any) -> None:
        """POSTs over a connection of its own and hangs up before the answer: what a lost line looks like from here."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._context)
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        except (OSError, http.client.HTTPException) as error:
            raise Stop(f"cannot reach the {self.name} cell", why=str(error), code=Exit.UNREACHABLE) from error
        finally:
            connection.close()

    def watch(self, path: str, query: dict[str, str], *, silence_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """GET with `watch`, and its events as they come; over a connection of its own. Ends when the server ends it."""
        target = f"{path}?{urlencode({**query, 'watch': 'true'})}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=silence_s, context=self._context)
        try:
            connection.request("GET", target, headers={"User-Agent": "holdfast-cli", **headers})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise self._refusal("GET", path, answer.status, answer.read(MAX_ANSWER_BYTES))
            while line := answer.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
            raise Stop(f"the watch of the {self.name} cell broke off", why=why, code=Exit.UNREACHABLE) from error
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self, method: str, target: str, body: bytes, content_type: str, accept: str = "application/json"
    ) -> tuple[int, bytes]:
        headers = {"Accept": f"{accept}, text/plain", "User-Agent": "holdfast-cli"}
        if content_type:
            headers["Content-Type"] = content_type
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        # Taken back only after a whole answer: a connection that failed half-way is never used again.
        self._connection = None
        try:
            connection.request(method, target, body=body or None, headers=headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER_BYTES + 1)
            if answer.length and len(data) <= MAX_ANSWER_BYTES:
                raise http.client.IncompleteRead(data, answer.length)  # a bounded read does not say so itself
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise Stop(
                f"the {self.name} cell at {self.url} has a certificate that this platform's CA did not sign",
                why=error.verify_message,
                next_step="check that no other platform uses the same ports",
                code=Exit.UNREACHABLE,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Stop(
                f"cannot reach the {self.name} cell at {self.url}",
                why=self._words(error),
                next_step="holdfast status shows which processes run; holdfast up starts them",
                code=Exit.UNREACHABLE,
            ) from error
        if len(data) > MAX_ANSWER_BYTES:
            connection.close()
            raise Stop(f"{target}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
        self._connection = connection
        return answer.status, data

    def _words(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):  # TLS tells it with the line of its source
            return f"no answer within {self._timeout_s:g} s"
        return str(error) or type(error).__name__

    def _refusal(self, method: str, path: str, status: int, answer: bytes) -> Refusal:
        reason, why = "", answer[:500].decode(errors="replace")
        try:
            said = json.loads(answer)
            reason, why = said.get("reason", ""), said.get("message", why)
        except (ValueError, AttributeError):
            pass
        if status == NOT_FOUND and (named := _NAMED.search(path)) is not None:
            tenant, plural, name = (unquote(part or "") for part in named.groups())
            whose = f"tenant {tenant}" if tenant else f"the {self.name} cell"
            what = f"there is no {name} among the {plural} of {whose}"
            step = f"holdfast get {plural}{f' -n {tenant}' if tenant else ''} lists them"
            return Refusal(what, status=status, reason=reason, why=why, next_step=step)
        return Refusal(f"{method} {path} at the {self.name} cell: {status}", status=status, reason=reason, why=why)
