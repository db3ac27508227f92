"""Probes and hooks of a task: a request, a connection or a command, and when it counts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.model.meta import ApiStruct, visible_default
from holdfast.model.validation import Causes, check_range, forbidden, invalid, required, unsupported

PROBE_SCHEMES = ("HTTP", "HTTPS")
_PROBE_PATH = re.compile(r"/[!-~]*")


class HttpProbe(ApiStruct, frozen=True):
    path: str = visible_default("/")
    port: str = ""
    scheme: str = "HTTP"


class TcpProbe(ApiStruct, frozen=True):
    port: str = ""


class ExecProbe(ApiStruct, frozen=True):
    command: tuple[str, ...] = ()


class Probe(ApiStruct, frozen=True):
    """Exactly one of http, tcp and exec. `port` names a port of the template; empty: the first."""

    http: HttpProbe | None = None
    tcp: TcpProbe | None = None
    exec: ExecProbe | None = None
    period_seconds: float = visible_default(2.0)
    timeout_seconds: float = visible_default(1.0)
    initial_delay_seconds: float = 0.0
    success_threshold: int = visible_default(1)
    failure_threshold: int = visible_default(3)


class Hook(ApiStruct, frozen=True):
    """Exactly one of http and exec. `port` names a port of the template; empty: the first."""

    http: HttpProbe | None = None
    exec: ExecProbe | None = None
    timeout_seconds: float = 0.0
    """`timeoutSeconds` 0: `preStop` may use three quarters of the grace period, `postStart` a minute."""


def validate_probe(field: str, probe: Probe, tcp_ports: Sequence[str]) -> Causes:
    """`tcp_ports` are the names of the template's TCP ports."""
    ways = [w for w in ("http", "tcp", "exec") if getattr(probe, w) is not None]
    if len(ways) != 1:
        yield invalid(field, ways, "exactly one of http, tcp, exec must be set")
    yield from _validate_ways(field, probe.http, probe.tcp, probe.exec, tcp_ports)
    yield from check_range(f"{field}.periodSeconds", probe.period_seconds, 0.1, 3600)
    yield from check_range(f"{field}.timeoutSeconds", probe.timeout_seconds, 0.1, 600)
    yield from check_range(f"{field}.initialDelaySeconds", probe.initial_delay_seconds, 0, 3600)
    yield from check_range(f"{field}.successThreshold", probe.success_threshold, 1, 100)
    yield from check_range(f"{field}.failureThreshold", probe.failure_threshold, 1, 1000)


def validate_hook(field: str, hook: Hook, tcp_ports: Sequence[str]) -> Causes:
    ways = [w for w in ("http", "exec") if getattr(hook, w) is not None]
    if len(ways) != 1:
        yield invalid(field, ways, "exactly one of http, exec must be set")
    yield from _validate_ways(field, hook.http, None, hook.exec, tcp_ports)
    yield from check_range(f"{field}.timeoutSeconds", hook.timeout_seconds, 0, 3600)


def _validate_ways(
    field: str, http: HttpProbe | None, tcp: TcpProbe | None, exec_: ExecProbe | None, ports: Sequence[str]
) -> Causes:
    for way in (http, tcp):
        if way is None:
            continue
        if not ports:
            yield forbidden(field, "the template declares no TCP ports to probe")
        elif way.port and way.port not in ports:
            yield unsupported(f"{field}.port", way.port, ports)
    if http is not None:
        if not _PROBE_PATH.fullmatch(http.path):
            yield invalid(f"{field}.http.path", http.path, "must start with '/' and be ASCII without spaces")
        if http.scheme.upper() not in PROBE_SCHEMES:
            yield unsupported(f"{field}.http.scheme", http.scheme, PROBE_SCHEMES)
    if exec_ is not None and not exec_.command:
        yield required(f"{field}.exec.command")
    if exec_ is not None and any("\0" in word for word in exec_.command):
        yield invalid(f"{field}.exec.command", "\\0", "must not contain NUL bytes")
