"""`holdfast init global` and `holdfast init region`: a cell on this machine, from nothing to serving.

Every step keeps what an earlier run has finished, so the command can be killed and run again. A server's own keys are
created here and never leave the machine. The CA's key stays with the servers of the global cell; a region makes its own
CA for its nodes. Further servers of a cell join in `further_servers.py`.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.client.cell_access import SERVERS_EXTENSION
from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import LOCAL_HOSTS, CellCertificateAuthority, certificate_facts, issue_pem
from holdfast.identity.cell_record import IdentityFile, initialize
from holdfast.identity.certificates import make_ca, write_private, write_public
from holdfast.identity.node_certificates import make_csr, new_key, parse_csr
from holdfast.identity.secret_keys import KEYS_FILE, create_keys
from holdfast.install.default_objects import create_default_objects
from holdfast.install.etcd_member import ETCD_CLIENT_PORT_OFFSET, ETCD_PEER_PORT_OFFSET, EtcdInstallation
from holdfast.install.join_string import JoinString, fetch_verified_ca, token_command
from holdfast.install.places import InstallRecord, Places, Role, toml_text
from holdfast.install.services import Service, install_service
from holdfast.model.join import CellRequests, RegionJoinRequest, RegionJoinResponse, TrustBundle
from holdfast.model.principal import OPERATORS, SERVERS
from holdfast.model.server import server_name
from holdfast.platform.layout import write_atomically

# Time for a new cell to answer `/readyz`.
CELL_START_TIMEOUT_S = 90.0
# Lifetime of the operator's certificate in the kubeconfig. `holdfast init global` renews it in its last third.
OPERATOR_CERTIFICATE_LIFETIME_S = 365 * 86400.0
POLL_EVERY_S = 0.3
# Answers after which the same request is refused again.
_FINAL_REFUSALS = frozenset({400, 401, 403, 404, 409, 422})
CONFIG_NOTE = "Written by `holdfast init`. docs/reference/configuration.md explains each key. Restart after a change."

Say = Callable[[str], None]


class CellPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. `hosts` are further names of the server certificate."""

    name: str
    host: str
    port: int
    url: str
    listen: str = ""
    hosts: tuple[str, ...] = ()
    store: dict[str, str] = {}
    """Settings of the store, such as `etcd_endpoints`; empty for SQLite."""
    start: bool = True
    start_etcd: bool = False
    """Store in an etcd whose members Holdfast starts, one beside each server of the cell."""
    replicas: int = 0
    """Servers that the cell is meant to have; 0 if nobody has said. `holdfast doctor` compares."""

    @property
    def listen_host(self) -> str:
        if self.listen:
            return self.listen
        if self.host in LOCAL_HOSTS:
            return "127.0.0.1" if self.host == "localhost" else self.host
        return "::" if ":" in self.host else "0.0.0.0"

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports that must be free: the cell's own, and those of the etcd that is started beside it."""
        offsets = (ETCD_CLIENT_PORT_OFFSET, ETCD_PEER_PORT_OFFSET) if self.start_etcd else ()
        return self.port, *(self.port + offset for offset in offsets)

    @property
    def certificate_hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.host, *self.hosts, *LOCAL_HOSTS)))


def init_global(places: Places, plan: CellPlan, say: Say) -> None:
    role: Role = "global"
    held = places.begin(role, InstallRecord(role=role, name=role, advertise=plan.url, replicas=plan.replicas))
    pki = places.pki(role)
    make_ca(pki, now_s=time.time())
    authority = CellCertificateAuthority(pki / "ca.crt", pki / "ca.key")
    say(f"CA: {pki / 'ca.crt'} (sha256:{authority.fingerprint[:16]}…)")
    name = _issue_global_certificates(pki, authority, plan)
    write_operator_kubeconfig(places, authority, plan.url)
    say(f"operator credentials: {places.kubeconfig}")
    settings: dict[str, str | int | bool] = {
        "cell": role,
        **server_settings(places, role, plan),
        "cell_ca_key": str(pki / "ca.key"),
        **first_store(places, role, plan, name, say),
    }
    write_cell(places, role, role, settings, declare=True)
    held = msgspec.structs.replace(held, ca=authority.fingerprint)
    service = install_service(places, role, held, start=plan.start, say=say)
    if service is None:
        return
    api = operator_api(places, plan.url)
    wait_ready(api, service, role)
    created = create_default_objects(api)
    say(f"default priority classes, policy, tenant and quota: {created} created")
    write_operator_kubeconfig(places, authority, plan.url, others=server_urls(api))


def _issue_global_certificates(pki: Path, authority: CellCertificateAuthority, plan: CellPlan) -> str:
    """The certificates of the first server of the global cell, which has the CA. Returns the server's name."""
    peer = pki / "peer.pem"
    key = b"" if peer.exists() else stored_key(pki / "peer.next.key")
    name = certificate_facts(peer.read_bytes()).server if peer.exists() else ""
    name = name or server_name("global", parse_csr(make_csr(key or stored_key(pki / "peer.next.key"), "peer")).digest)
    now_s = time.time()
    hosts = plan.certificate_hosts
    issue_pem(authority, pki / "server.pem", "holdfast-cell-global", hosts=hosts, now_s=now_s, server=name)
    issue_pem(authority, peer, "holdfast:server:global", (SERVERS,), now_s=now_s, server=name, key=key)
    (pki / "peer.next.key").unlink(missing_ok=True)
    return name


def first_store(places: Places, role: Role, plan: CellPlan, name: str, say: Say) -> dict[str, str]:
    """Settings of the store of a cell's first server. Starts its etcd if the plan asks for one."""
    if not plan.start_etcd or not plan.start:
        return plan.store
    member = EtcdInstallation(places, role, host=plan.host, port=plan.port, listen=plan.listen_host)
    member.create(plan.name, name, say)
    return member.settings()


def server_urls(api: CellApi) -> tuple[str, ...]:
    """The servers that the cell names."""
    return msgspec.convert(api.get("/join/v1/ca"), TrustBundle).servers


def join_region(places: Places, plan: CellPlan, joining: JoinString, say: Say) -> None:
    role: Role = "region"
    wanted = InstallRecord(role=role, name=plan.name, advertise=plan.url, ca=joining.ca, replicas=plan.replicas)
    is_new = places.record(role) is None
    held = places.begin(role, wanted)
    pki = places.pki(role)
    if not (pki / "link.pem").exists():
        exchange_token(places, role, plan, joining, is_new=is_new)
        say(f"certificates: received from {joining.url}; their keys were made here")
    make_ca(pki / "nodes", now_s=time.time(), common_name=f"holdfast nodes of {plan.name}")
    name = certificate_facts((pki / "link.pem").read_bytes()).server or plan.name
    settings: dict[str, str | int | bool] = {
        **region_settings(places, plan, joining),
        **first_store(places, role, plan, name, say),
    }
    write_cell(places, role, plan.name, settings, declare=True)
    service = install_service(places, role, held, start=plan.start, say=say)
    if service is None:
        return
    wait_ready(CellApi(plan.url, name=plan.name, ca=pki / "ca.crt"), service, plan.name)


def region_settings(places: Places, plan: CellPlan, joining: JoinString) -> dict[str, str | int | bool]:
    pki = places.pki("region")
    return {
        "cell": plan.name,
        **server_settings(places, "region", plan),
        "global_url": joining.url,
        "link_cert": str(pki / "link.pem"),
        "link_key": str(pki / "link.pem"),
        "node_ca": str(pki / "nodes" / "ca.crt"),
        "node_ca_key": str(pki / "nodes" / "ca.key"),
    }


def exchange_token(
    places: Places, role: Role, plan: CellPlan, joining: JoinString, *, is_new: bool
) -> RegionJoinResponse:
    """The certificates for the token. If the global cell refuses it, a machine that is new to the role holds nothing of
    it afterwards, and may join as something else."""
    try:
        return _obtain_certificates(places.pki(role), plan, joining)
    except ApiRefusal as refusal:
        if is_new and refusal.status in _FINAL_REFUSALS:
            shutil.rmtree(places.folder(role))
        step = f"on an operator's machine: {token_command(joining.joins, joining.name)}"
        raise CommandError(refusal.message, next_step=refusal.next_step or step, code=refusal.code) from None


def _obtain_certificates(pki: Path, plan: CellPlan, joining: JoinString) -> RegionJoinResponse:
    """Exchanges the token. The keys are stored before the request, so that a repeated request is the same join."""
    write_public(pki / "ca.crt", fetch_verified_ca(joining.url, joining.ca))
    names = ("server", "peer") if plan.name == "global" else ("server", "peer", "link")
    keys = {name: stored_key(pki / f"{name}.next.key") for name in names}
    requests = {name: make_csr(key, name) for name, key in keys.items()}
    asked = RegionJoinRequest(
        token=joining.token,
        region=plan.name,
        endpoint=plan.url,
        requests=CellRequests(link=requests.get("link", ""), server=requests["server"], peer=requests["peer"]),
        hosts=plan.hosts,
    )
    api = CellApi(joining.url, name="global", ca=pki / "ca.crt", timeout_s=30.0)
    try:
        answer = api.request("POST", "/join/v1/region", json.loads(msgspec.json.encode(asked)))
    finally:
        api.close()
    made = msgspec.convert(answer, RegionJoinResponse)
    write_public(pki / "ca.crt", made.ca.encode())
    # The last file says that all of them are here: the link certificate, or in the global cell the one for peers.
    for name, certificate in (("server", made.server), ("peer", made.peer), ("link", made.link)):
        if name in keys:
            write_private(pki / f"{name}.pem", certificate.encode() + keys[name])
    for name in names:
        (pki / f"{name}.next.key").unlink(missing_ok=True)
    return made


def stored_key(path: Path) -> bytes:
    if not path.exists():
        write_private(path, new_key())
    return path.read_bytes()


def server_settings(places: Places, role: Role, plan: CellPlan) -> dict[str, str | int | bool]:
    pki = places.pki(role)
    return {
        "state": str(places.folder(role)),
        "host": plan.listen_host,
        "port": plan.port,
        "advertise": plan.url,
        "tls_cert": str(pki / "server.pem"),
        "tls_key": str(pki / "server.pem"),
        "client_ca": str(pki / "ca.crt"),
        "peer_cert": str(pki / "peer.pem"),
        "peer_key": str(pki / "peer.pem"),
        "tokens": str(places.folder(role) / "tokens.json"),
    }


def write_cell(places: Places, role: Role, cell: str, settings: dict[str, str | int | bool], *, declare: bool) -> None:
    """The configuration. `declare`: this server is the cell's first, and may create its store."""
    record = IdentityFile(places.folder(role))
    if declare and record.read() is None:
        initialize(record, cell)
    if declare:
        create_keys(places.folder(role) / KEYS_FILE)
    if not places.config(role).exists():  # an operator's changes stay
        write_atomically(places.config(role), toml_text(settings, CONFIG_NOTE).encode(), mode=0o640)


def write_operator_kubeconfig(
    places: Places, authority: CellCertificateAuthority, url: str, *, others: Sequence[str] = ()
) -> None:
    """The operator's kubeconfig. Regions are reached at the endpoints that the global cell lists.

    The context `global` also names the other servers of the global cell, for `holdfast`; kubectl knows one server per
    context, so each other server has a context of its own."""
    pem = places.pki("global") / "operator.pem"
    now_s, seconds = time.time(), OPERATOR_CERTIFICATE_LIFETIME_S
    issue_pem(authority, pem, "operator", (OPERATORS,), now_s=now_s, seconds=seconds)
    held = pem.read_bytes()
    start = held.rindex(b"-----BEGIN ")  # the key follows the certificate
    user = {"client-certificate-data": _base64(held[:start]), "client-key-data": _base64(held[start:])}
    urls = tuple(dict.fromkeys((url, *others)))
    names = {each: "global" if number == 1 else f"global-{number}" for number, each in enumerate(urls, 1)}
    trusted = _base64(authority.bundle.encode())
    more = [{"name": SERVERS_EXTENSION, "extension": {"urls": list(urls)}}]
    clusters = [
        {
            "name": f"holdfast-{name}",
            "cluster": {
                "server": each,
                "certificate-authority-data": trusted,
                **({"extensions": more} if len(urls) > 1 else {}),
            },
        }
        for each, name in names.items()
    ]
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "global",
        "clusters": clusters,
        "contexts": [
            {"name": name, "context": {"cluster": f"holdfast-{name}", "user": "holdfast-operator"}}
            for name in names.values()
        ],
        "users": [{"name": "holdfast-operator", "user": user}],
        "preferences": {},
    }
    write_atomically(places.kubeconfig, json.dumps(content, indent=2).encode() + b"\n")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def operator_api(places: Places, url: str) -> CellApi:
    pki = places.pki("global")
    return CellApi(url, name="global", ca=pki / "ca.crt", cert=pki / "operator.pem", key=pki / "operator.pem")


def wait_ready(api: CellApi, service: Service, cell: str, timeout_s: float = CELL_START_TIMEOUT_S) -> None:
    """Polls until the cell is ready. Raises if its process ends, or after the time."""
    deadline = time.monotonic() + timeout_s
    last = ""
    while True:
        try:
            status, last = api.text("/readyz")
            if status == 200:
                return
        except CommandError as stop:
            if stop.code is not ExitCode.UNREACHABLE:
                raise
            last = stop.message
        if not service.is_running():
            raise CommandError(
                f"cell {cell}: its service ended ({service.failure()})", next_step=f"read {service.log}, then run again"
            )
        if time.monotonic() >= deadline:
            raise CommandError(
                f"cell {cell}: not ready after {timeout_s:g} s ({' '.join(last.split())[:200]})",
                next_step="holdfast doctor, then run the command again",
                code=ExitCode.TIMED_OUT,
            )
        time.sleep(POLL_EVERY_S)


def etcd_settings(endpoints: str, files: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings of `--etcd`. Empty endpoints mean SQLite."""
    if not endpoints:
        return {}
    return {"store": "etcd", "etcd_endpoints": endpoints, **{key: value for key, value in files if value}}
