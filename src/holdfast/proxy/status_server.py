"""Health and metrics of an entry proxy over HTTP: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from holdfast.foundation.exit_codes import CommandError
from holdfast.foundation.metrics_text import proxy_metrics

BODY_BYTES_MAX = 1024


class StatusServer:
    """`address` is HOST:PORT; empty: nothing listens. `readiness` returns the reason if the proxy is not ready."""

    def __init__(self, address: str, readiness: Callable[[], str]) -> None:
        self._address, self._readiness = address, readiness
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        if not self._address:
            return
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        host, _, port = self._address.rpartition(":")
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            why = error.strerror or str(error)
            raise CommandError(
                f"proxy: cannot listen on {self._address} ({why})", next_step="choose another `status` address"
            ) from None

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._readiness()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=proxy_metrics(), content_type="text/plain")
