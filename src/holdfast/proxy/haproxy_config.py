"""The configuration of HAProxy, as text. Pure: equal plans give equal text.

Every value in it is a number, a checked address or a checked name. Nothing that a tenant or a node wrote reaches the
file unchecked.
"""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.proxy.backends import Backend, ProxyPlan, tcp_backend_name
from holdfast.proxy.settings import HttpListener, ProxySettings, TcpListener

ADMIN_SOCKET = "admin.sock"
UNKNOWN_HOST = "unknown-host"
_SETTINGS_MARK = "# settings "


def settings_mark(settings: ProxySettings) -> str:
    """First line of the file: a file of other settings is never started again."""
    return _SETTINGS_MARK + hashlib.sha256(msgspec.json.encode(settings)).hexdigest()


def render(settings: ProxySettings, plan: ProxyPlan, *, drop_privileges: bool) -> str:
    lines = [settings_mark(settings), "# Written by holdfast proxy. Changes are overwritten.", ""]
    lines += _global(settings, drop_privileges=drop_privileges)
    lines += _defaults(settings)
    for http in settings.http:
        lines += _http_frontend(settings, http)
    for tcp in settings.tcp:
        lines += _tcp_frontend(settings, tcp)
    lines += [
        f"backend {UNKNOWN_HOST}",
        "    mode http",
        '    http-request return status 404 content-type text/plain string "no workload has this hostname here"',
        "",
        "backend tenants",
        "    stick-table type string len 64 size 100k expire 10m store conn_cur",
        "",
    ]
    for backend in plan.http:
        lines += _http_backend(settings, backend)
    for backend in plan.tcp:
        lines += _tcp_backend(settings, backend)
    return "\n".join(lines)


def _global(settings: ProxySettings, *, drop_privileges: bool) -> list[str]:
    # The numeric ids of nobody and nogroup. Sockets are bound before.
    privileges = ["    uid 65534", "    gid 65534"] if drop_privileges else []
    return [
        "global",
        f"    maxconn {settings.max_connections}",
        f"    stats socket unix@{ADMIN_SOCKET} mode 600 level admin expose-fd listeners",
        f"    hard-stop-after {settings.drain_seconds}s",
        "    log stdout format raw daemon notice",
        *privileges,
        "",
    ]


def _defaults(settings: ProxySettings) -> list[str]:
    return [
        "defaults",
        "    log global",
        "    option dontlognull",
        "    option dontlog-normal",
        "    option redispatch 1",
        "    retries 5",
        "    timeout connect 2s",
        "    timeout queue 5s",
        "    timeout client 60s",
        "    timeout server 60s",
        "    timeout tunnel 1h",
        "    timeout http-request 10s",
        "    timeout http-keep-alive 10s",
        # One failed connection takes a server out, and the next check that passes brings it back. So a request that
        # finds a region dead is retried on the standby region, instead of failing until two checks have.
        "    default-server check inter 2s fastinter 500ms downinter 1s fall 2 rise 1",
        "    default-server observe layer4 error-limit 1 on-error mark-down",
        "",
    ]


def _bind(settings: ProxySettings, port: int, certificate: str = "") -> str:
    host = f"[{settings.bind}]" if ":" in settings.bind else settings.bind
    return f"    bind {host}:{port}" + (f" ssl crt {certificate} alpn h2,http/1.1" if certificate else "")


def _http_frontend(settings: ProxySettings, listener: HttpListener) -> list[str]:
    scheme = "https" if listener.certificate else "http"
    return [
        f"frontend http:{listener.port}",
        "    mode http",
        _bind(settings, listener.port, listener.certificate),
        # A process that a reload replaced answers the next request of an idle connection before it closes it.
        "    option idle-close-on-response",
        # What a client says about itself is replaced, not extended.
        "    http-request set-header X-Forwarded-For %[src]",
        f"    http-request set-header X-Forwarded-Proto {scheme}",
        "    http-request set-header X-Forwarded-Host %[req.hdr(host)]",
        "    http-request set-var(txn.host) req.hdr(host),lower,field(1,:),regsub([.]$,)",
        f"    use_backend http:{listener.port}:%[var(txn.host)]",
        f"    default_backend {UNKNOWN_HOST}",
        "",
    ]


def _tcp_frontend(settings: ProxySettings, listener: TcpListener) -> list[str]:
    name = tcp_backend_name(listener.port)
    return [
        f"frontend listen:{name}",
        "    mode tcp",
        _bind(settings, listener.port),
        f"    default_backend {name}",
        "",
    ]


def _http_backend(settings: ProxySettings, backend: Backend) -> list[str]:
    return [
        f"backend {backend.name}",
        "    mode http",
        "    balance roundrobin",
        "    option allbackups",
        f"    http-request track-sc0 str({backend.tenant}) table tenants",
        f"    http-request deny deny_status 429 if {{ sc0_conn_cur gt {settings.max_connections_per_tenant} }}",
        "    retry-on conn-failure empty-response",
        # A request that may have had an effect is not sent twice. A failed connection is still retried.
        "    http-request disable-l7-retry unless { method GET HEAD OPTIONS }",
        *_servers(backend),
        "",
    ]


def _tcp_backend(settings: ProxySettings, backend: Backend) -> list[str]:
    return [
        f"backend {backend.name}",
        "    mode tcp",
        "    balance leastconn",
        "    option allbackups",
        f"    tcp-request content track-sc0 str({backend.tenant}) table tenants",
        f"    tcp-request content reject if {{ sc0_conn_cur gt {settings.max_connections_per_tenant} }}",
        *_servers(backend),
        "",
    ]


def _servers(backend: Backend) -> list[str]:
    return [
        f"    server {server.name} {_host(server.address)}:{server.port}" + (" backup" if server.standby else "")
        for server in backend.servers
    ]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
