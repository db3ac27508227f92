"""Synchronous HTTPS client of commands. It uses only the standard library, so that commands start fast.

Every request has a deadline. The client never retries; a command that waits polls. Controllers and agents use the
asynchronous clients of `holdfast.client` instead.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from holdfast.client.refusal_text import cell_label, refusal_text
from holdfast.client.server_urls import split_urls
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model import limits
from holdfast.model.api_groups import api_path

# Maximum size of a response. A larger response is an error, so that a faulty server cannot exhaust memory.
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
# Time to connect to one of several servers of a cell. After that, the next one is tried.
SERVER_CONNECT_S = 2.0
# Maximum pages of one list. At 500 objects a page this is far above any supported platform.
PAGES_MAX = 1000

STRICT = {"fieldValidation": "Strict"}
"""Query of every write to a resource: a field that does not exist is refused, not dropped."""


class ApiRefusal(CommandError):
    """The API refused a request. `status` is the HTTP code, `reason` the API's reason, `why` its whole message, `body`
    the answer as received."""

    def __init__(
        self, what: str, *, status: int, reason: str, why: str, next_step: str = "", body: bytes = b""
    ) -> None:
        code = {401: ExitCode.DENIED, 403: ExitCode.DENIED, 409: ExitCode.CONFLICT}.get(status, ExitCode.FAILED)
        super().__init__(what, next_step=next_step, code=code)
        self.status = status
        self.reason = reason
        self.why = why
        self.body = body


def _tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Raises CommandError with the name of the file that cannot be used."""
    reading = ca
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca is not None else None)
        if cert is not None and key is not None:
            reading = cert
            context.load_cert_chain(str(cert), str(key))
    except OSError as error:
        why = (error.strerror or error.reason or "unreadable") if isinstance(error, ssl.SSLError) else error.strerror
        beside = f" with {key}" if reading is cert and key is not None else ""
        raise CommandError(
            f"{reading}: not usable as a certificate{beside} ({str(why or error).lower()})",
            next_step="restore the file from a copy, or use a kubeconfig with --state",
        ) from error
    return context


class CellApi:
    """The API of one cell. The connection is opened on first use and reopened after a failure.

    `url` may name several servers of the cell, separated by commas. A new connection goes to the first that accepts it.
    """

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
        self.name = name
        self.urls = split_urls(url)
        self._token = token
        self._timeout_s = timeout_s
        self._use(self.urls[0])
        self._context = _tls_context(ca, cert, key)
        self._connection: http.client.HTTPSConnection | None = None

    def _use(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 443

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        """A connection to the server in use, or else to the next one that accepts it. Nothing is sent before."""
        first = self.urls.index(self.url)
        order = (*self.urls[first:], *self.urls[:first])
        for number, url in enumerate(order, 1):
            self._use(url)
            made = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._context)
            if len(order) == 1:
                return made  # it connects with the first request
            try:
                made.timeout = min(timeout_s, SERVER_CONNECT_S)
                made.connect()
                made.sock.settimeout(timeout_s)
                return made
            except ssl.SSLCertVerificationError:
                raise
            except OSError:
                made.close()
                if number == len(order):
                    raise
        raise AssertionError("unreachable")

    def streaming_access(self) -> tuple[ssl.SSLContext, dict[str, str]]:
        """TLS settings and headers for a connection that this client does not make itself, such as a WebSocket."""
        return self._context, {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def get(self, path: str, **query: str) -> Any:
        return self.request("GET", path, query=query)

    def text(self, path: str) -> tuple[int, str]:
        """Status code and body of a plain-text page such as /readyz. No status code is an error."""
        status, body = self.exchange("GET", path, b"", "")
        return status, body.decode(errors="replace")

    def list(self, plural: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """All objects of a kind, page by page."""
        where = f"namespaces/{quote(namespace)}/{plural}" if namespace else plural
        items: list[dict[str, Any]] = []
        parameters = {"limit": str(limits.LIST_PAGE_OBJECTS), **query}
        for _ in range(PAGES_MAX):
            answer = self.request("GET", f"{api_path(plural)}/{where}", query=parameters)
            items.extend(answer["items"])
            rest = answer.get("metadata", {}).get("continue", "")
            if not rest:
                return items
            parameters["continue"] = rest
        raise CommandError(
            f"{plural}: too many objects to list (limit {PAGES_MAX * limits.LIST_PAGE_OBJECTS})",
            next_step="select with -n, -l or --region",
        )

    def apply(self, item: dict[str, Any], plural: str, *, manager: str, dry_run: bool = False) -> Any:
        """Server-side apply: creates or updates the object. `manager` owns the fields that `item` sets."""
        meta = item["metadata"]
        namespace = meta.get("namespace", "")
        where = f"namespaces/{quote(namespace)}/" if namespace else ""
        version = item["apiVersion"]
        # Kinds of the core group, such as Secret, have the version `v1` and a root of their own.
        root = "apis" if "/" in version else "api"
        path = f"/{root}/{version}/{where}{plural}/{quote(meta['name'])}"
        query = {"fieldManager": manager, "force": "true", **({"dryRun": "All"} if dry_run else {})}
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
        """Sends one request and returns the decoded JSON. Raises `Refusal` for status 400 and above, `Stop` if there is
        no response."""
        if body is not None and path.startswith(("/apis/", "/api/")):
            query = {**STRICT, **(query or {})}
        target = f"{path}?{urlencode(query)}" if query else path
        sent = json.dumps(body).encode() if body is not None else b""
        status, answer = self.exchange(method, target, sent, content_type if sent else "", accept)
        if status >= 400:
            raise self._refusal(path, status, answer)
        return json.loads(answer) if answer else None

    def stream(self, path: str, body: Any, *, silence_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """POSTs over a separate connection and yields the JSON lines of the response. Blank lines are skipped."""
        headers = {"Content-Type": "application/json", "User-Agent": "holdfast-cli"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connect_or_raise(silence_s)
        try:
            connection.request("POST", path, body=json.dumps(body).encode(), headers=headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise self._refusal(path, answer.status, answer.read(RESPONSE_BYTES_MAX))
            while line := answer.readline():
                if line.strip():
                    yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._broken("response stream", error) from error
        finally:
            connection.close()

    def post_without_reading(self, path: str, body: Any) -> None:
        """POSTs over a separate connection and closes it before the response arrives, as if the response were lost."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._context)
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def watch(self, path: str, query: dict[str, str], *, silence_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """Watches over a separate connection and yields events until the server closes the watch."""
        for line in self.watch_lines(path, query, silence_s=silence_s):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise self._broken("watch", error) from error

    def watch_lines(self, path: str, query: dict[str, str], *, silence_s: float) -> Iterator[bytes]:
        """The same, as received."""
        target = f"{path}?{urlencode({**query, 'watch': 'true'})}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection = self._connect_or_raise(silence_s)
        try:
            connection.request("GET", target, headers={"User-Agent": "holdfast-cli", **headers})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise self._refusal(path, answer.status, answer.read(RESPONSE_BYTES_MAX))
            while line := answer.readline():
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._broken("watch", error) from error
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def exchange(
        self, method: str, target: str, body: bytes, content_type: str, accept: str = "application/json"
    ) -> tuple[int, bytes]:
        headers = {"Accept": f"{accept}, text/plain", "User-Agent": "holdfast-cli"}
        if content_type:
            headers["Content-Type"] = content_type
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection or self._connect_or_raise(self._timeout_s)
        # Kept for the next request only after a complete response.
        self._connection = None
        try:
            connection.request(method, target, body=body or None, headers=headers)
            answer = connection.getresponse()
            data = answer.read(RESPONSE_BYTES_MAX + 1)
            if answer.length and len(data) <= RESPONSE_BYTES_MAX:
                raise http.client.IncompleteRead(data, answer.length)  # a bounded read does not raise it
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise self._untrusted(error) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._use(self.urls[(self.urls.index(self.url) + 1) % len(self.urls)])
            raise self._unreachable(error) from error
        if len(data) > RESPONSE_BYTES_MAX:
            connection.close()
            raise CommandError(f"{cell_label(self.name)}: response too large (limit {RESPONSE_BYTES_MAX} bytes)")
        self._connection = connection
        return answer.status, data

    def _connect_or_raise(self, timeout_s: float) -> http.client.HTTPSConnection:
        try:
            return self._connect(timeout_s)
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(error) from error
        except OSError as error:
            raise self._unreachable(error) from error

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> CommandError:
        return CommandError(
            f"{cell_label(self.name)}: certificate not signed by this platform's CA ({error.verify_message})",
            next_step="check that no other platform uses the same ports, or choose another --state",
            code=ExitCode.UNREACHABLE,
        )

    def _unreachable(self, error: Exception) -> CommandError:
        text = f"{cell_label(self.name)}: unreachable ({self._cause(error)})"
        return CommandError(text, next_step="holdfast status", code=ExitCode.UNREACHABLE)

    def _broken(self, what: str, error: Exception) -> CommandError:
        text = f"{cell_label(self.name)}: {what} interrupted ({self._cause(error)})"
        return CommandError(text, next_step="run the command again", code=ExitCode.UNREACHABLE)

    def _cause(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no response within {self._timeout_s:g} s"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror.lower()
        return str(error) or type(error).__name__

    def _refusal(self, path: str, status: int, answer: bytes) -> ApiRefusal:
        reason, why = "", answer[:500].decode(errors="replace")
        try:
            body = json.loads(answer)
            reason, why = body.get("reason", ""), body.get("message", why)
        except (ValueError, AttributeError):
            pass
        message, step = refusal_text(self.name, path, status, why)
        return ApiRefusal(message, status=status, reason=reason, why=why, next_step=step, body=answer)
