"""Synchronous HTTPS client of commands. It uses only the standard library, so that commands start fast.

Every request has a deadline. The client never retries; a command that waits polls. Controllers and agents use the
asynchronous clients of `holdfast.client` instead.
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

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.model import limits

# Maximum size of a response. A larger response is an error, so that a faulty server cannot exhaust memory.
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
# Maximum pages of one list. At 500 objects a page this is far above any supported platform.
PAGES_MAX = 1000
NOT_FOUND = 404
_NAMED = re.compile(r"^/apis/[^/]+/v1/(?:namespaces/([^/]+)/)?([a-z]+)/([^/]+)(?:/[a-z]+)?$")
"""Path of one object: tenant (optional), plural and name."""

DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
"""Query of a dry run that rejects unknown fields."""


def cell_label(name: str) -> str:
    """The cell as messages name it: `global cell` or `region NAME`."""
    return "global cell" if name == "global" else f"region {name}"


class ApiRefusal(CommandError):
    """The API refused a request. `status` is the HTTP code, `reason` the API's reason, `why` its whole message."""

    def __init__(self, what: str, *, status: int, reason: str, why: str, next_step: str = "") -> None:
        code = {401: ExitCode.DENIED, 403: ExitCode.DENIED, 409: ExitCode.CONFLICT}.get(status, ExitCode.FAILED)
        super().__init__(what, next_step=next_step, code=code)
        self.status = status
        self.reason = reason
        self.why = why


class CellApi:
    """The API of one cell. The connection is opened on first use and reopened after a failure."""

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
        """Status code and body of a plain-text page such as /readyz. No status code is an error."""
        status, body = self._exchange("GET", path, b"", "")
        return status, body.decode(errors="replace")

    def list(self, plural: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """All objects of a kind, page by page."""
        where = f"namespaces/{quote(namespace)}/{plural}" if namespace else plural
        items: list[dict[str, Any]] = []
        parameters = {"limit": str(limits.LIST_PAGE_OBJECTS), **query}
        for _ in range(PAGES_MAX):
            answer = self.request("GET", f"/apis/holdfast.dev/v1/{where}", query=parameters)
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
        """Sends one request and returns the decoded JSON. Raises `Refusal` for status 400 and above, `Stop` if there is
        no response."""
        target = f"{path}?{urlencode(query)}" if query else path
        sent = json.dumps(body).encode() if body is not None else b""
        status, answer = self._exchange(method, target, sent, content_type if sent else "", accept)
        if status >= 400:
            raise self._refusal(path, status, answer)
        return json.loads(answer) if answer else None

    def stream(self, path: str, body: Any, *, silence_s: float = 60.0) -> Iterator[dict[str, Any]]:
        """POSTs over a separate connection and yields the JSON lines of the response. Blank lines are skipped."""
        headers = {"Content-Type": "application/json", "User-Agent": "holdfast-cli"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=silence_s, context=self._context)
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
        target = f"{path}?{urlencode({**query, 'watch': 'true'})}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=silence_s, context=self._context)
        try:
            connection.request("GET", target, headers={"User-Agent": "holdfast-cli", **headers})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise self._refusal(path, answer.status, answer.read(RESPONSE_BYTES_MAX))
            while line := answer.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._broken("watch", error) from error
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
            raise CommandError(
                f"{cell_label(self.name)}: certificate not signed by this platform's CA ({error.verify_message})",
                next_step="check that no other platform uses the same ports, or choose another --state",
                code=ExitCode.UNREACHABLE,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from error
        if len(data) > RESPONSE_BYTES_MAX:
            connection.close()
            raise CommandError(f"{cell_label(self.name)}: response too large (limit {RESPONSE_BYTES_MAX} bytes)")
        self._connection = connection
        return answer.status, data

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
        message, _, step = why.partition("; next: ")
        if (named := _NAMED.search(path)) is not None:
            tenant, plural, name = (unquote(part or "") for part in named.groups())
            subject = f"{_singular(plural)} {f'{tenant}/' if tenant else ''}{name}"
            if status == NOT_FOUND:
                message, step = f"{subject}: not found", f"holdfast get {plural}{f' -n {tenant}' if tenant else ''}"
            elif name not in message:
                message = f"{subject}: {message}"
        else:
            message = message or f"{cell_label(self.name)}: request refused (status {status})"
        return ApiRefusal(message, status=status, reason=reason, why=why, next_step=step)


def _singular(plural: str) -> str:
    from holdfast.model.kinds import ALL

    return next((kind.singular for kind in ALL if kind.plural == plural), plural)
