"""`holdfast init … --join` with a token of `holdfast server token`: a further server of a cell that runs.

The machine gets certificates of its own from the global cell, and with them, from another server of the cell, the keys
that all of its servers share (`identity/shared_material.py`). If Holdfast runs the cell's etcd, it adds a member here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import CellCertificateAuthority, certificate_facts
from holdfast.identity.certificates import REVOKED_FILE, write_private, write_public
from holdfast.identity.node_certificates import make_csr
from holdfast.identity.secret_keys import KEYS_FILE
from holdfast.identity.server_records import REVOKED_SERVERS_FILE
from holdfast.identity.shared_material import SharedMaterial, take_ca, unseal
from holdfast.install.cells import (
    CellPlan,
    Say,
    exchange_token,
    operator_api,
    region_settings,
    server_settings,
    server_urls,
    stored_key,
    wait_ready,
    write_cell,
    write_operator_kubeconfig,
)
from holdfast.install.etcd_member import EtcdInstallation
from holdfast.install.join_string import JoinString
from holdfast.install.places import InstallRecord, Places, Role
from holdfast.install.services import install_service
from holdfast.model.join import MaterialRequest, SealedMaterial


def join_cell(places: Places, plan: CellPlan, joining: JoinString, say: Say) -> None:
    """Installs this machine as a further server of the cell that the token names."""
    role: Role = "global" if plan.name == "global" else "region"
    wanted = InstallRecord(role=role, name=plan.name, advertise=plan.url, ca=joining.ca, replicas=joining.replicas)
    is_new = places.record(role) is None
    held = places.begin(role, wanted)
    pki = places.pki(role)
    others = _obtain(places, role, plan, joining, is_new=is_new)
    say(f"certificates: received from the global cell; their keys were made here ({_name(pki)})")
    if not places.config(role).exists():
        material = _fetch_material(pki, plan.name, others or joining.url)
        _write_material(places, role, material)
        say("keys that the servers of the cell share: received, sealed for this machine")
        settings: dict[str, str | int | bool] = {
            **_role_settings(places, plan, joining),
            **_store_settings(places, role, plan, material.etcd, say),
        }
        write_cell(places, role, plan.name, settings, declare=False)
    service = install_service(places, role, held, start=plan.start, say=say)
    if service is None:
        return
    wait_ready(CellApi(plan.url, name=plan.name, ca=pki / "ca.crt"), service, plan.name)
    if role == "global":
        authority = CellCertificateAuthority(pki / "ca.crt", pki / "ca.key")
        write_operator_kubeconfig(places, authority, plan.url)  # makes the operator's certificate
        write_operator_kubeconfig(places, authority, plan.url, others=server_urls(operator_api(places, plan.url)))
        say(f"operator credentials: {places.kubeconfig}")


def _obtain(places: Places, role: Role, plan: CellPlan, joining: JoinString, *, is_new: bool) -> str:
    """Certificates, unless an earlier run got them. Returns the URLs of the cell's other servers."""
    pki = places.pki(role)
    known = pki / "others"
    last = pki / ("peer.pem" if plan.name == "global" else "link.pem")
    if not last.exists() or not known.exists():
        made = exchange_token(places, role, plan, joining, is_new=is_new)
        write_public(known, ",".join(made.servers).encode())
    return known.read_text(encoding="ascii")


def _name(pki: Path) -> str:
    return certificate_facts((pki / "peer.pem").read_bytes()).server


def _fetch_material(pki: Path, cell: str, urls: str) -> SharedMaterial:
    key = stored_key(pki / "material.key")
    api = CellApi(urls, name=cell, ca=pki / "ca.crt", cert=pki / "peer.pem", key=pki / "peer.pem", timeout_s=30.0)
    asked = MaterialRequest(csr=make_csr(key, "material"))
    try:
        answer: dict[str, Any] = api.request("POST", "/join/v1/server/material", json.loads(msgspec.json.encode(asked)))
    finally:
        api.close()
    (pki / "material.key").unlink()
    return unseal(key, msgspec.convert(answer, SealedMaterial))


def _write_material(places: Places, role: Role, material: SharedMaterial) -> None:
    pki, folder = places.pki(role), places.folder(role)
    if role == "global":
        take_ca(pki / "ca.crt", pki / "ca.key", material)
    else:
        (pki / "nodes").mkdir(mode=0o700, exist_ok=True)
        write_public(pki / "nodes" / "ca.crt", material.node_ca.encode())
        write_private(pki / "nodes" / "ca.key", material.node_ca_key.encode())
    for path, text in (
        (folder / KEYS_FILE, material.secret_keys),
        (folder / "tokens.json", material.tokens),
        (pki / REVOKED_SERVERS_FILE, material.revoked_servers),
        (pki / REVOKED_FILE, material.revoked_serials),
    ):
        if text:
            write_private(path, text.encode())


def _role_settings(places: Places, plan: CellPlan, joining: JoinString) -> dict[str, str | int | bool]:
    if plan.name == "global":
        key = str(places.pki("global") / "ca.key")
        return {"cell": "global", **server_settings(places, "global", plan), "cell_ca_key": key}
    return region_settings(places, plan, joining)


def _store_settings(places: Places, role: Role, plan: CellPlan, etcd: dict[str, str], say: Say) -> dict[str, str]:
    """The cell's etcd: a further member of it here if Holdfast runs it, else the one that the operator runs."""
    endpoints = tuple(etcd.get("endpoints", "").split(","))
    if not endpoints[0]:
        raise CommandError(
            f"cell {plan.name}: its first server uses SQLite, so it cannot have another",
            next_step="install the cell with --start-etcd, or with --etcd URL,…",
            code=ExitCode.CONFLICT,
        )
    folder = places.folder(role) / "etcd"
    folder.mkdir(mode=0o700, exist_ok=True)
    files = {"ca": "ca.crt", "ca_key": "ca.key", "password_file": "password"}
    if "ca_key" not in etcd:
        files |= {"cert": "client.crt", "key": "client.key"}
    for key, file in files.items():
        if key in etcd:
            write_private(folder / file, etcd[key].encode())
    if "ca_key" in etcd:
        member = EtcdInstallation(places, role, host=plan.host, port=plan.port, listen=plan.listen_host)
        return member.settings(member.join(_name(places.pki(role)), endpoints, say))
    known = {f"etcd_{key}": str(folder / file) for key, file in files.items() if key in etcd}
    return {"store": "etcd", "etcd_endpoints": etcd["endpoints"], "etcd_user": etcd.get("user", ""), **known}
