"""`/healthz`, `/livez`, `/readyz`: named checks, all together, with `?verbose`, or one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.model.errors import Fault
from holdfast.model.kinds import BY_NAME
from holdfast.server import status
from holdfast.server.request import Request, Response, text_response

if TYPE_CHECKING:
    from holdfast.server.app import Application

# Age of an unanswered commit from which the store counts as hung. The longest ordinary pause, a checkpoint on a busy
# disk, takes about a second.
STORE_SILENCE_MAX_S = 5.0

Check = Callable[[], str]
"""Returns what is wrong; empty if healthy."""


class Health:
    """The checks of one server. `ready` checks also decide whether it receives traffic."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self.live: dict[str, Check] = {"ping": lambda: "", "store": self._store}
        self.ready: dict[str, Check] = {"draining": self._draining}

    def _store(self) -> str:
        try:
            self._app.objects.head(BY_NAME["Tenant"])
            self._app.objects.get(BY_NAME["Tenant"], "", "default")
        except Fault as fault:
            return fault.message
        silent_s = self._app.objects.oldest_commit_s
        if silent_s >= STORE_SILENCE_MAX_S:
            return f"the store has not answered a commit for {silent_s:.0f} s (limit {STORE_SILENCE_MAX_S:g} s)"
        return ""

    def _draining(self) -> str:
        return "the server is shutting down" if self._app.draining else ""

    def checks(self, which: str) -> dict[str, Check]:
        return self.live if which == "livez" else {**self.live, **self.ready}


async def health(app: Application, request: Request) -> Response:
    """`/{livez|readyz|healthz}[/{check}]`"""
    which = request.path.strip("/").split("/")[0]
    checks = app.health.checks(which)
    named = request.target.parameters.get("check", "")
    if named:
        if named not in checks:
            known = ", ".join(checks)
            raise status.HttpRefusal(404, "NotFound", f"check {named[:80]}: not found (expected one of {known})")
        checks = {named: checks[named]}
    excluded = request.query.get("exclude", "")
    results = {name: check() for name, check in checks.items() if name != excluded}
    failed = any(results.values())
    if not failed and "verbose" not in request.query:
        return text_response("ok")
    lines = [f"[-]{name} failed: {wrong}" if wrong else f"[+]{name} ok" for name, wrong in results.items()]
    lines.append(f"{which} check {'failed' if failed else 'passed'}")
    return text_response("\n".join(lines) + "\n", 500 if failed else 200)
