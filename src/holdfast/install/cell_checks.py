"""Checks of certificates and of other cells: name, reach, TLS, clock and version."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast import __version__
from holdfast.client.server_urls import split_urls
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError
from holdfast.identity.cell_certificates import certificate_facts
from holdfast.install.findings import DoctorFinding
from holdfast.install.join_string import fetch_verified_ca
from holdfast.install.places import InstallRecord, Places, Role
from holdfast.model.join import TrustBundle
from holdfast.model.times import parse_time, seconds_text

CONNECT_TIMEOUT_S = 5.0
# Difference of clocks above which it is warned about: times of events and logs no longer fit together.
CLOCK_WARN_S = 1.0
# Difference of clocks above which certificates that were just issued can be refused. They are backdated by 5 minutes.
CLOCK_FAIL_S = 240.0
# Part of a certificate's lifetime that is left when its renewal is overdue.
RENEWAL_OVERDUE_FRACTION = 0.25


def certificate_checks(places: Places, role: Role) -> Iterator[DoctorFinding]:
    names = {"global": ("ca.crt", "server.pem", "operator.pem"), "region": ("ca.crt", "server.pem", "link.pem")}
    folder = places.pki(role) if role != "agent" else places.folder(role) / "identity"
    for name in names.get(role, ("ca.crt", "node.pem")):
        path = folder / name
        if path.exists():
            yield certificate_check(path, time.time())


def certificate_check(path: Path, now_s: float) -> DoctorFinding:
    name = f"certificate {path.name}"
    try:
        held = certificate_facts(path.read_bytes())
    except (OSError, ValueError, IndexError) as error:
        return DoctorFinding(name, "fail", f"{path}: not readable ({error})", "restore the file, or join again")
    left_s = held.end_s - now_s
    text = f"until {seconds_text(held.end_s)}"
    if left_s <= 0:
        return DoctorFinding(name, "fail", f"expired at {seconds_text(held.end_s)}", "join again with a new token")
    if now_s < held.start_s - 300.0:
        return DoctorFinding(name, "fail", f"valid only from {seconds_text(held.start_s)}", "set this machine's clock")
    if left_s < (held.end_s - held.start_s) * RENEWAL_OVERDUE_FRACTION:
        return DoctorFinding(name, "warn", f"{text}; its renewal is overdue", "check the connection to the other cell")
    return DoctorFinding(name, "ok", text)


def joined_servers(places: Places, role: Role, held: InstallRecord) -> int | None:
    """Servers that this machine's own cell names; None if the cell does not answer."""
    api = CellApi(held.advertise, name=held.name, ca=places.pki(role) / "ca.crt", timeout_s=CONNECT_TIMEOUT_S)
    try:
        return max(1, len(msgspec.convert(api.get("/join/v1/ca"), TrustBundle).servers))
    except (CommandError, msgspec.ValidationError):
        return None
    finally:
        api.close()


def server_count_finding(cell: str, joined: int | None, wanted: int) -> DoctorFinding:
    if joined is None:
        text = f"unknown, because this server does not answer (expected {wanted})"
        return DoctorFinding("servers", "warn", text, "read the log of its service")
    text = f"{joined} of {wanted} servers have joined cell {cell}"
    if joined >= wanted:
        return DoctorFinding("servers", "ok", text)
    step = f"holdfast server token {cell} --replicas {wanted}, then holdfast init … --join on each new machine"
    return DoctorFinding("servers", "warn", text, step)


def remote_checks(urls: str, places: Places, role: Role, *, fingerprint: str = "") -> Iterator[DoctorFinding]:
    """The checks of every server in `urls`. If one of several passes, the others' failures are only warnings.
    `fingerprint` is the CA hash of a join token, for a machine that has no CA certificate yet."""
    found = [list(_server_checks(url, places, role, fingerprint)) for url in split_urls(urls)]
    passes = any(all(each.status != "fail" for each in findings) for findings in found)
    for finding in (each for findings in found for each in findings):
        softened = passes and finding.status == "fail"
        yield msgspec.structs.replace(finding, status="warn") if softened else finding


def _server_checks(url: str, places: Places, role: Role, fingerprint: str) -> Iterator[DoctorFinding]:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        step = f"check DNS and /etc/hosts for {host}"
        yield DoctorFinding(f"name {host}", "fail", f"does not resolve ({error.strerror})", step)
        return
    yield DoctorFinding(f"name {host}", "ok", f"resolves to {found}")
    start = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        step = f"check that the cell runs and that firewalls allow TCP port {port}"
        yield DoctorFinding(f"reach {host}:{port}", "fail", f"cannot connect ({why})", step)
        return
    yield DoctorFinding(f"reach {host}:{port}", "ok", f"connected in {(time.monotonic() - start) * 1000:.0f} ms")
    yield from _tls_checks(url, places, role, fingerprint)


def _tls_checks(url: str, places: Places, role: Role, fingerprint: str) -> Iterator[DoctorFinding]:
    ca = (places.pki(role) if role != "agent" else places.folder(role) / "identity") / "ca.crt"
    name = f"tls {urlsplit(url).netloc}"
    try:
        if fingerprint:
            fetch_verified_ca(url, fingerprint)
            yield DoctorFinding(name, "ok", "the CA is the one in the token")
        if not ca.exists():
            return
        api = CellApi(url, name="cell", ca=ca, timeout_s=CONNECT_TIMEOUT_S)
        before_s = time.time()
        trusted = msgspec.convert(api.get("/join/v1/ca"), TrustBundle)
        after_s = time.time()
        version = str(api.get("/version").get("gitVersion", "")).rpartition("holdfast-")[2]
        api.close()
    except (CommandError, msgspec.ValidationError) as wrong:
        text = wrong.message if isinstance(wrong, CommandError) else str(wrong)
        yield DoctorFinding(name, "fail", text, getattr(wrong, "next_step", ""))
        return
    yield DoctorFinding(name, "ok", "its certificate is of the platform's CA")
    if trusted.at:
        yield clock_finding(parse_time(trusted.at) - (before_s + after_s) / 2)
    if version:
        yield version_finding(version, __version__)


def clock_finding(ahead_s: float) -> DoctorFinding:
    text = f"the other cell's clock is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) >= CLOCK_FAIL_S:
        return DoctorFinding("clock", "fail", text, "set both clocks, and keep them with NTP")
    if abs(ahead_s) >= CLOCK_WARN_S:
        return DoctorFinding("clock", "warn", text, "keep both clocks with NTP")
    return DoctorFinding("clock", "ok", "within a second of the other cell")


def version_finding(theirs: str, ours: str) -> DoctorFinding:
    """Versions may differ by one minor version during an upgrade."""
    try:
        other, own = ([int(part) for part in text.split(".")[:2]] for text in (theirs, ours))
    except ValueError:
        return DoctorFinding("version", "warn", f"{theirs} there, {ours} here", "install the same version on both")
    if other == own:
        return DoctorFinding("version", "ok", f"{ours} on both")
    apart = other[0] != own[0] or abs(other[1] - own[1]) > 1
    step = "upgrade one minor version at a time"
    return DoctorFinding("version", "fail" if apart else "warn", f"{theirs} there, {ours} here", step)
