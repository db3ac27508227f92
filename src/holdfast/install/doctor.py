"""`holdfast doctor`: what this machine and its connections need, each finding with its next step.

The checks before an installation and those of an installed role are the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.client import cell_access
from holdfast.client.sync_api import CellApi
from holdfast.foundation.exit_codes import CommandError
from holdfast.install.cell_checks import certificate_checks, joined_servers, remote_checks, server_count_finding
from holdfast.install.findings import DoctorFinding
from holdfast.install.machine_checks import (
    agent_checks,
    clock_state,
    clock_sync_finding,
    disk_checks,
    file_limit_check,
    port_check,
    task_port_checks,
)
from holdfast.install.places import Places, Role
from holdfast.install.services import Service


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a role needs that its machine does not say. `other` is the URL of the cell that it talks to."""

    ports: tuple[int, ...] = ()
    task_ports: tuple[int, int] | None = None
    other: str = ""


def machine_report(places: Places, role: Role, needs: Needs) -> list[DoctorFinding]:
    """All checks of one role. Ports are checked until it is installed."""
    return list(_findings(places, role, needs))


def _findings(places: Places, role: Role, needs: Needs) -> Iterator[DoctorFinding]:
    held = places.record(role)
    if held is not None and held.complete:
        yield _service(places, role)
    else:
        yield from (port_check(port) for port in needs.ports)
        if needs.task_ports is not None:
            yield from task_port_checks(*needs.task_ports)
    yield clock_sync_finding(clock_state())
    yield from disk_checks(places.state)
    yield file_limit_check()
    if role == "agent":
        yield from agent_checks()
    if held is not None:
        yield from certificate_checks(places, role)
    if held is not None and held.replicas and held.complete:
        yield server_count_finding(held.name, joined_servers(places, role, held), held.replicas)
    if needs.other:
        yield from remote_checks(needs.other, places, role)


def _service(places: Places, role: Role) -> DoctorFinding:
    service = Service(places, role)
    if service.is_running():
        return DoctorFinding("service", "ok", f"{service.name} runs")
    return DoctorFinding("service", "fail", f"{service.name} does not run ({service.failure()})", f"read {service.log}")


def installed_report(places: Places) -> dict[str, list[DoctorFinding]]:
    """The checks of every role that this machine holds."""
    found: dict[str, list[DoctorFinding]] = {}
    for role in places.roles():
        other = _other_cell(places, role)
        found[role] = machine_report(places, role, Needs(other=other))
        if role == "global":
            found[role] += _region_findings(places)
        if role == "region":
            found[role] += other_region_findings(places, other)
    return found


def _other_cell(places: Places, role: Role) -> str:
    """The URL of the cell that this role talks to: in its configuration."""
    import tomllib

    try:
        settings = tomllib.loads(places.config(role).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(settings.get("global_url" if role == "region" else "url", "")) if role != "global" else ""


def _region_findings(places: Places) -> list[DoctorFinding]:
    """Whether the global cell's machine reaches every region."""
    try:
        regions = cell_access.region_objects(places.kubeconfig)
    except CommandError as stop:
        return [DoctorFinding("global cell", "fail", stop.message, stop.next_step)]
    found: list[DoctorFinding] = []
    for item in regions:
        name, endpoint = item["metadata"]["name"], cell_access.region_url(item["spec"])
        if not endpoint:
            step = f"holdfast region token {name}, then holdfast init region on its machine"
            found.append(DoctorFinding(f"region {name}", "warn", "its cell has not joined yet", step))
            continue
        found += remote_checks(endpoint, places, "global")
    return found


def other_region_findings(places: Places, url: str) -> list[DoctorFinding]:
    """Whether a region's machine reaches the other regions, which it probes for the global cell at `url`. Another
    region's loss is no fault of this machine, so nothing of it is a failure."""
    held, pki = places.record("region"), places.pki("region")
    api = CellApi(url, name="global", ca=pki / "ca.crt", cert=pki / "link.pem", key=pki / "link.pem")
    try:
        regions = api.list("regions")
    except (CommandError, OSError):
        return []  # the checks of the way to the global cell have said why
    finally:
        api.close()
    found: list[DoctorFinding] = []
    for item in regions:
        if held is None or item["metadata"]["name"] != held.name:
            found += remote_checks(cell_access.region_url(item["spec"]), places, "region")
    return [msgspec.structs.replace(each, status="warn") if each.status == "fail" else each for each in found]


def failures(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    return [finding for finding in findings if finding.status == "fail"]
