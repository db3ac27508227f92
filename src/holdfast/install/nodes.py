"""`holdfast node join`: an agent on this machine, from a join string to a node that is Ready."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.client.server_urls import split_urls
from holdfast.client.sync_api import ApiRefusal, CellApi
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.identity.certificates import write_private
from holdfast.install.join_string import JoinString, fetch_verified_ca
from holdfast.install.places import InstallRecord, Places
from holdfast.install.removal import remove_role
from holdfast.install.services import Service, install_service
from holdfast.model.validation import check_subdomain
from holdfast.platform.layout import write_atomically

# Time for a new agent to get its certificate and to be Ready.
NODE_START_TIMEOUT_S = 90.0
POLL_EVERY_S = 0.3
CONFIG_NOTE = "# Written by `holdfast node join`. docs/agent.md explains each key. Restart the agent after a change.\n"

Say = Callable[[str], None]


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. Empty values are chosen or detected."""

    name: str
    zone: str
    address: str
    port_range: tuple[int, int]
    pool: str = ""
    tenant: str = ""
    capacity: dict[str, str] = {}
    labels: dict[str, str] = {}
    drivers: tuple[str, ...] = ()
    start: bool = True


def plan_node(joining: JoinString, *, name: str, zone: str, address: str, **more: Any) -> NodePlan:
    """Completes the options with what the join string and the machine say."""
    name = name or socket.gethostname().partition(".")[0].lower()
    wrong = list(check_subdomain("--name", name))
    if wrong:
        raise CommandError(f"--name {name}: {wrong[0].message}", next_step="--name node-1", code=ExitCode.USAGE)
    if zone and joining.zones and zone not in joining.zones:
        known = ", ".join(joining.zones)
        raise CommandError(f"--zone {zone}: region {joining.name} has {known}", code=ExitCode.USAGE)
    if not zone and len(joining.zones) > 1:
        known = ", ".join(joining.zones)
        raise CommandError(
            f"node {name}: region {joining.name} has several zones ({known})",
            next_step=f"add --zone {joining.zones[0]}",
            code=ExitCode.USAGE,
        )
    zone = zone or (joining.zones[0] if joining.zones else f"{joining.name}-a")
    return NodePlan(name=name, zone=zone, address=address or own_address(joining.url), **more)


def own_address(url: str) -> str:
    """The address of this machine on the way to the region. Sends nothing."""
    parts = urlsplit(split_urls(url)[0])
    try:
        family, _, _, _, target = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise CommandError(
            f"{url}: no route to it ({error.strerror or error})",
            next_step="check the name and the network, or add --address",
            code=ExitCode.UNREACHABLE,
        ) from None


def join_node(places: Places, plan: NodePlan, joining: JoinString, say: Say) -> None:
    """If the region refuses a machine that has not joined before, nothing is left of it on the machine."""
    installed_before = places.record("agent") is not None
    try:
        _install_and_wait(places, plan, joining, say)
    except CommandError as stop:
        joined = (places.folder("agent") / "identity" / "node.pem").exists()
        if installed_before or joined or stop.code is ExitCode.TIMED_OUT or places.record("agent") is None:
            raise
        remove_role(places, "agent", keep_state=False)
        say("removed what this command had installed")
        raise


def _install_and_wait(places: Places, plan: NodePlan, joining: JoinString, say: Say) -> None:
    record = InstallRecord(role="agent", name=plan.name, advertise=joining.url, ca=joining.ca)
    held = places.begin("agent", record)
    state = places.folder("agent")
    identity = state / "identity"
    identity.mkdir(mode=0o700, exist_ok=True)
    if not (identity / "node.pem").exists():
        write_private(identity / "ca.crt", fetch_verified_ca(joining.url, joining.ca))
        write_private(state / "join-token", joining.token.encode() + b"\n")
        say(f"region {joining.name}: its CA is the one in the token")
    elif is_certificate_rejected(joining, plan.name, identity / "ca.crt", identity / "node.pem"):
        write_private(state / "join-token", joining.token.encode() + b"\n")
        (identity / "token").unlink(missing_ok=True)  # a token of several uses may be the one that it used before
        say(f"region {joining.name}: does not accept the node's certificate any more; the agent joins again")
    if not places.config("agent").exists():
        text = CONFIG_NOTE + _settings_text(plan, joining, state)
        write_atomically(places.config("agent"), text.encode(), mode=0o640)
    expected = Service(places, "agent")
    expected.install()
    # The region may still say Ready of the agent before. Reports of the one that starts now have higher numbers.
    last = _last_report(joining, plan.name, identity) if expected.will_start_anew() else -1
    said: list[str] = []
    service = install_service(places, "agent", held, start=plan.start, say=said.append)
    if service is not None:
        _wait_until_ready(plan, joining, identity, service, last)
    for line in said:  # not before, because an agent that the region refuses ends
        say(line)
    if service is None:
        return
    (state / "join-token").unlink(missing_ok=True)


def _settings_text(plan: NodePlan, joining: JoinString, state: Path) -> str:
    import json

    values: dict[str, Any] = {
        "name": plan.name,
        "region": joining.name,
        "zone": plan.zone,
        "state_dir": str(state),
        "url": joining.url,
        "ca": str(state / "identity" / "ca.crt"),
        "join_token_file": str(state / "join-token"),
        "address": plan.address,
        "port_range": list(plan.port_range),
        **({"pool": plan.pool} if plan.pool else {}),
        **({"tenant": plan.tenant} if plan.tenant else {}),
        **({"drivers": list(plan.drivers)} if plan.drivers else {}),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    for table, pairs in (("capacity", plan.capacity), ("labels", plan.labels)):
        if pairs:
            lines += ["", f"[{table}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in pairs.items())]
    return "\n".join(lines) + "\n"


def _wait_until_ready(plan: NodePlan, joining: JoinString, identity: Path, service: Service, last_report: int) -> None:
    """Polls with the node's own certificate, which may read the node's own object."""
    deadline = time.monotonic() + NODE_START_TIMEOUT_S
    seen = "no certificate yet"
    while True:
        pem = identity / "node.pem"
        if pem.exists():
            seen = _readiness(joining, plan.name, identity / "ca.crt", pem, last_report)
            if not seen:
                return
        if not service.is_running():
            raise CommandError(
                f"node {plan.name}: the agent ended ({service.failure()})",
                next_step=f"on an operator's machine: holdfast node token --region {joining.name} --node {plan.name}, "
                "then here: holdfast node join - with that token",
            )
        if time.monotonic() >= deadline:
            raise CommandError(
                f"node {plan.name}: not Ready after {NODE_START_TIMEOUT_S:g} s ({seen})",
                next_step="holdfast doctor, then run the command again",
                code=ExitCode.TIMED_OUT,
            )
        time.sleep(POLL_EVERY_S)


def _read_status(joining: JoinString, node: str, ca: Path, pem: Path) -> dict[str, Any]:
    api = CellApi(joining.url, name=joining.name, ca=ca, cert=pem, key=pem)
    status: dict[str, Any] = api.get(f"/apis/holdfast.dev/v1/nodes/{quote(node)}").get("status", {})
    return status


def is_certificate_rejected(joining: JoinString, node: str, ca: Path, pem: Path) -> bool:
    """Whether the region answers that the node's certificate was revoked or has expired."""
    try:
        _read_status(joining, node, ca, pem)
    except ApiRefusal as refusal:
        return refusal.status == HTTPStatus.UNAUTHORIZED
    except (CommandError, OSError):
        return False
    return False


def _last_report(joining: JoinString, node: str, identity: Path) -> int:
    """The number of the node's last report; -1 if there is none, or the region does not answer. A region that answers
    only later has missed the node for longer, and does not say Ready of an agent that ended."""
    pem = identity / "node.pem"
    if not pem.exists():
        return -1
    try:
        return int((_read_status(joining, node, identity / "ca.crt", pem).get("execution") or {}).get("sequence", 0))
    except (CommandError, OSError):
        return -1


def _readiness(joining: JoinString, node: str, ca: Path, pem: Path, last_report: int) -> str:
    """Why the node is not Ready; empty if it is."""
    try:
        return readiness_of(_read_status(joining, node, ca, pem), last_report)
    except (CommandError, OSError) as wrong:
        return getattr(wrong, "message", str(wrong))


def readiness_of(status: dict[str, Any], last_report: int) -> str:
    """Why a node with this status is not Ready; empty if it is. Reports up to `last_report` are of an earlier agent."""
    contact, execution = status.get("contact") or {}, status.get("execution") or {}
    if contact.get("state") != "Live":
        why = contact.get("message") or contact.get("reason", "no report")
        return f"contact {contact.get('state', 'unknown')}: {why}"
    if execution.get("sequence", 0) <= last_report:
        return "the agent that was started has not reported yet"
    return "" if execution.get("reconciled") else "it compares its tasks with its Bindings"
