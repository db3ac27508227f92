"""Regions and join tokens through the API, from any machine with operator credentials."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.client.cell_access import region_url
from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import bundle_hashes
from holdfast.install.join_string import JoinString
from holdfast.model.join import TrustBundle, token_text
from holdfast.platform.cell_connection import connect_cell
from holdfast.platform.join_tokens import JOIN_TOKENS_PATH, create_join_token
from holdfast.platform.layout import Layout

REGIONS_PATH = "/apis/holdfast.dev/v1/regions"
GLOBAL = "global"


def global_api(state: str) -> CellApi:
    layout = Layout(state)
    return connect_cell(layout, layout.load(), GLOBAL)


def add_region(api: CellApi, name: str, *, zones: tuple[str, ...], residency: tuple[str, ...], cost: int) -> bool:
    """Creates the Region object. An existing one stays as it is. Returns whether it was created."""
    spec = {"zones": list(zones or (f"{name}-a",)), "residency": list(residency), "cost": cost}
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Region", "metadata": {"name": name}, "spec": spec}
    try:
        api.request("POST", REGIONS_PATH, body)
    except ApiRefusal as refusal:
        if refusal.status == 409:
            return False
        raise
    return True


def find_region(api: CellApi, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.get(f"{REGIONS_PATH}/{quote(name)}")
        return found
    except ApiRefusal as refusal:
        if refusal.status != 404:
            raise
    names = ", ".join(item["metadata"]["name"] for item in api.list("regions")) or "none"
    raise CommandError(f"region {name}: not found (found {names})", next_step=f"holdfast region add {name}")


def region_join_string(api: CellApi, name: str, *, ttl_s: float, hosts: tuple[str, ...] = ()) -> str:
    """A join string for the cell of a region. The global cell stores only the token's hash."""
    find_region(api, name)
    return _cell_join_string(api, "region", name, ttl_s, {"hosts": list(hosts)} if hosts else {})


def missing_server_join_strings(
    api: CellApi, cell: str, replicas: int, *, ttl_s: float, hosts: tuple[str, ...] = ()
) -> list[str]:
    """A join string for each server that the cell lacks to have `replicas`. Each carries the wanted number."""
    joined = sum(item["spec"]["cell"] == cell and not item["spec"].get("revoked") for item in api.list("servers"))
    missing = range(max(0, replicas - max(1, joined)))
    return [server_join_string(api, cell, ttl_s=ttl_s, hosts=hosts, replicas=replicas) for _ in missing]


def server_join_string(api: CellApi, cell: str, *, ttl_s: float, hosts: tuple[str, ...] = (), replicas: int = 0) -> str:
    """A join string for a further server of the global cell or of a region that has joined."""
    if cell != GLOBAL and not region_url(find_region(api, cell)["spec"]):
        raise CommandError(
            f"region {cell}: its first server has not joined yet",
            next_step=f"holdfast region token {cell}, then holdfast init region --join on its machine",
            code=ExitCode.CONFLICT,
        )
    more = {"server": True, **({"hosts": list(hosts)} if hosts else {})}
    return _cell_join_string(api, "server", cell, ttl_s, more, replicas=replicas)


def _cell_join_string(
    api: CellApi, joins: str, cell: str, ttl_s: float, more: dict[str, Any], *, replicas: int = 0
) -> str:
    trusted = _trust(api)
    text = token_text(GLOBAL, secrets.token_urlsafe(32))
    digest = hashlib.sha256(text.encode()).hexdigest()
    spec: dict[str, Any] = {"sha256": digest, "ttlSeconds": ttl_s, "region": cell, **more}
    body = {"apiVersion": "holdfast.dev/v1", "kind": "JoinToken", "metadata": {"name": _token_name(cell)}, "spec": spec}
    api.request("POST", JOIN_TOKENS_PATH, body)
    url, ca = _servers(api, trusted), _signer(trusted)
    return JoinString(joins=joins, name=cell, url=url, ca=ca, token=text, replicas=replicas).encode()


def revoke(api: CellApi, plural: str, name: str, *, confirm: bool, reason: str) -> dict[str, Any]:
    """Asks the global cell to revoke a region or a server. Raises ApiRefusal 409 with the effects if not confirmed."""
    body = {"confirm": confirm, "reason": reason}
    found: dict[str, Any] = api.request("POST", f"/join/v1/{plural}/{quote(name)}/revoke", body)
    return found


def node_join_string(state: str, region: str, *, node: str, uses: int, ttl_s: float, certificate_s: float) -> str:
    """A join string for nodes of a region. The region stores only the token's hash."""
    above = global_api(state)
    found = find_region(above, region)
    if not region_url(found["spec"]):
        raise CommandError(
            f"region {region}: its cell has not joined yet, so no node can",
            next_step=f"on the region's machine: holdfast init region --join TOKEN (holdfast region token {region})",
            code=ExitCode.CONFLICT,
        )
    layout = Layout(state)
    api = connect_cell(layout, layout.load(), region)
    text = create_join_token(
        api, region, _token_name(node or region), node=node, uses=uses, ttl_s=ttl_s, certificate_s=certificate_s
    )
    zones = tuple(found["spec"].get("zones", ()))
    trusted = _trust(api)
    url, ca = _servers(api, trusted), _signer(trusted)
    return JoinString(joins="node", name=region, url=url, ca=ca, token=text, zones=zones).encode()


def _trust(api: CellApi) -> TrustBundle:
    """What the cell says about its CA and its servers, over verified TLS."""
    return msgspec.convert(api.get("/join/v1/ca"), TrustBundle)


def _signer(trusted: TrustBundle) -> str:
    """SHA-256 of the CA certificate that signs now."""
    return trusted.signer or list(bundle_hashes(trusted.ca.encode()))[-1]


def _servers(api: CellApi, trusted: TrustBundle) -> str:
    """All servers of the cell, the one that answered first."""
    return ",".join(dict.fromkeys((api.url, *trusted.servers)))


def _token_name(about: str) -> str:
    return f"join-{about.replace('.', '-')[:40]}-{int(time.time()):x}-{secrets.token_hex(2)}"
