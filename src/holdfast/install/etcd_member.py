"""`--start-etcd`: a member of the cell's etcd on this machine, with TLS and client certificates on every connection.

The first server of a cell makes a CA for the cell's etcd, which all servers of the cell share, because each of them
may have to add the next. A further server joins as a learner and is promoted when it has caught up, so that a machine
which fails meanwhile costs the cluster nothing. A member has the name of its server.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.cell_certificates import LOCAL_HOSTS
from holdfast.identity.certificates import CA_DAYS, issue, make_ca
from holdfast.install.places import Places, Role
from holdfast.install.services import Service
from holdfast.model.errors import Unavailable
from holdfast.platform.layout import write_atomically
from holdfast.store.etcd.members import ClusterMember, EtcdRefusal, add_learner, list_members, promote, remove_member
from holdfast.store.etcd.target import EtcdTarget

# Ports of etcd for clients and for the other members, counted from the cell's port.
ETCD_CLIENT_PORT_OFFSET, ETCD_PEER_PORT_OFFSET = 100, 200
# Size of the database at which etcd refuses writes.
ETCD_QUOTA_BYTES = 4 * 1024**3
# Time for a member to start, to be admitted, and to catch up.
MEMBER_JOIN_TIMEOUT_S = 120.0
POLL_EVERY_S = 0.3

Say = Callable[[str], None]
ETCD_ROLES: dict[Role, Role] = {"global": "etcd-global", "region": "etcd-region"}


class EtcdInstallation:
    """The member beside the cell of `role`. Its certificates are below the cell's state, which the service owns."""

    def __init__(self, places: Places, role: Role, *, host: str, port: int, listen: str) -> None:
        self._places = places
        self._etcd: Role = ETCD_ROLES[role]
        self.pki = places.folder(role) / "etcd"
        self._host = host
        literal = f"[{host}]" if ":" in host else host
        everywhere = f"[{listen}]" if ":" in listen else listen
        client, peer = port + ETCD_CLIENT_PORT_OFFSET, port + ETCD_PEER_PORT_OFFSET
        self.client_url, self.peer_url = f"https://{literal}:{client}", f"https://{literal}:{peer}"
        self._listen = f"https://{everywhere}:{client}", f"https://{everywhere}:{peer}"

    def settings(self, others: tuple[str, ...] = ()) -> dict[str, str]:
        """Settings of the cell: its own member first."""
        return {
            "store": "etcd",
            "etcd_endpoints": ",".join(dict.fromkeys((self.client_url, *others))),
            "etcd_ca": str(self.pki / "ca.crt"),
            "etcd_cert": str(self.pki / "client.crt"),
            "etcd_key": str(self.pki / "client.key"),
        }

    def target(self, *endpoints: str) -> EtcdTarget:
        cert, key = str(self.pki / "client.crt"), str(self.pki / "client.key")
        return EtcdTarget(endpoints=endpoints or (self.client_url,), ca=str(self.pki / "ca.crt"), cert=cert, key=key)

    def create(self, cell: str, name: str, say: Say) -> None:
        """The first member of a new cluster."""
        make_ca(self.pki, now_s=time.time(), common_name=f"holdfast etcd of {cell}")
        self._install(name, f"{name}={self.peer_url}", "new")
        service = Service(self._places, self._etcd)
        say(f"etcd: {service.start()}")
        self._wait_until_listed(service, self.target(), name)

    def join(self, name: str, endpoints: tuple[str, ...], say: Say) -> tuple[str, ...]:
        """A further member of the cluster at `endpoints`. Returns the client URLs of the other members."""
        self._issue()
        there = self.target(*endpoints)
        members = self._admit(there, name)
        own = next(member for member in members if self.peer_url in member.peer_urls)
        started = [member for member in members if member.name or member is own]
        cluster = ",".join(f"{member.name or name}={url}" for member in started for url in member.peer_urls)
        self._install(name, cluster, "existing")
        service = Service(self._places, self._etcd)
        say(f"etcd: {service.start()}")
        self._promote(service, there, own.id)
        say(f"etcd: member {name} has caught up; the cluster has {len(members)}")
        return tuple(url for member in members if member is not own for url in member.client_urls)

    def _admit(self, there: EtcdTarget, name: str) -> list[ClusterMember]:
        """Adds this machine as a learner, unless an earlier run has. Only one learner joins at a time."""
        deadline = time.monotonic() + MEMBER_JOIN_TIMEOUT_S
        while True:
            try:
                members = list_members(there)
                if any(self.peer_url in member.peer_urls for member in members):
                    return members
                return add_learner(there, self.peer_url)
            except Unavailable as fault:
                if time.monotonic() >= deadline:
                    raise CommandError(
                        f"etcd: {name} is not admitted ({fault.message})",
                        next_step="check that a majority of its members runs, then run the command again",
                        code=ExitCode.TIMED_OUT,
                    ) from None
            time.sleep(POLL_EVERY_S)

    def _promote(self, service: Service, there: EtcdTarget, member: int) -> None:
        deadline = time.monotonic() + MEMBER_JOIN_TIMEOUT_S
        last = ""
        while True:
            try:
                found = next((each for each in list_members(there) if each.id == member), None)
                if found is not None and not found.learner and found.name:
                    return
                promote(there, member)
            except EtcdRefusal as refusal:
                last = refusal.message
            except Unavailable as fault:
                last = fault.message
            self._check(service, deadline, last or "not in sync with the leader")
            time.sleep(POLL_EVERY_S)

    def _wait_until_listed(self, service: Service, target: EtcdTarget, name: str) -> None:
        deadline = time.monotonic() + MEMBER_JOIN_TIMEOUT_S
        while True:
            try:
                if any(member.name == name for member in list_members(target)):
                    return
                last = "it does not list itself"
            except Unavailable as fault:
                last = fault.message
            self._check(service, deadline, last)
            time.sleep(POLL_EVERY_S)

    def _check(self, service: Service, deadline: float, last: str) -> None:
        if not service.is_running():
            raise CommandError(f"etcd: its service ended ({service.failure()})", next_step=f"read {service.log}")
        if time.monotonic() >= deadline:
            raise CommandError(
                f"etcd: not ready after {MEMBER_JOIN_TIMEOUT_S:g} s ({last})",
                next_step=f"read {service.log}, then run the command again",
                code=ExitCode.TIMED_OUT,
            )

    def _issue(self) -> None:
        """Certificates as long-lived as their CA: its key is on the same machines, so shorter ones protect nothing."""
        names = (self._host, *LOCAL_HOSTS)
        ips = tuple(name for name in names if _is_address(name))
        dns = tuple(name for name in names if not _is_address(name))
        now_s = time.time()
        issue(self.pki, "member", "etcd", now_s=now_s, server=True, ips=ips, dns=dns, days=CA_DAYS)
        issue(self.pki, "client", "holdfast", now_s=now_s, days=CA_DAYS)

    def _install(self, name: str, cluster: str, state: str) -> None:
        self._issue()
        folder = self._places.folder(self._etcd)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "pki").mkdir(mode=0o700, exist_ok=True)
        for file in ("ca.crt", "member.crt", "member.key"):
            write_atomically(folder / "pki" / file, (self.pki / file).read_bytes())
        tls = {
            "cert-file": str(folder / "pki" / "member.crt"),
            "key-file": str(folder / "pki" / "member.key"),
            "trusted-ca-file": str(folder / "pki" / "ca.crt"),
            "client-cert-auth": True,
        }
        settings = {
            "name": name,
            "data-dir": str(folder / "data"),
            "listen-client-urls": self._listen[0],
            "advertise-client-urls": self.client_url,
            "listen-peer-urls": self._listen[1],
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": cluster,
            "initial-cluster-token": f"holdfast-{self._etcd}",
            "initial-cluster-state": state,
            "client-transport-security": tls,
            "peer-transport-security": tls,
            "quota-backend-bytes": ETCD_QUOTA_BYTES,
            "logger": "zap",
            "log-level": "warn",
        }
        path = self._places.config(self._etcd)
        if not path.exists():
            write_atomically(path, json.dumps(settings, indent=2).encode() + b"\n", mode=0o640)
        Service(self._places, self._etcd).install()


def leave_cluster(target: EtcdTarget, name: str) -> bool:
    """Removes this machine's member, if others remain. Returns whether it did."""
    try:
        members = list_members(target)
        own = next((member for member in members if member.name == name), None)
        if own is None or len(members) == 1:
            return False
        remove_member(target, own.id)
    except Unavailable:
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_installed(places: Places, role: Role) -> bool:
    return role in ETCD_ROLES and places.folder(ETCD_ROLES[role]).exists()


def etcd_service(places: Places, role: Role) -> Service:
    return Service(places, ETCD_ROLES[role])


def etcd_folder(places: Places, role: Role) -> Path:
    return places.folder(ETCD_ROLES[role])
