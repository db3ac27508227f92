"""Checks of machines and cells."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.agent.config import AgentConfig
from holdfast.identity.cell_certificates import CellCertificateAuthority, issue_pem
from holdfast.identity.certificates import make_ca
from holdfast.install.cell_checks import certificate_check, clock_finding, remote_checks, version_finding
from holdfast.install.cells import CellPlan
from holdfast.install.doctor import Needs, failures, machine_report
from holdfast.install.machine_checks import clock_state, clock_sync_finding, disk_checks, port_check, task_port_checks
from holdfast.install.places import ROLES, TASK_PORTS, Places, Role

NOW_S = 1_700_000_000.0


def test_port_in_use_fails_and_a_free_one_does_not() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        found = port_check(port)
        assert (found.status, found.message) == ("fail", "in use by another process")
        assert str(port) in found.next_step
    assert port_check(port).status == "ok"


def test_task_ports_that_others_hold_or_may_take_are_warnings(tmp_path: Path) -> None:
    local, reserved = tmp_path / "ip_local_port_range", tmp_path / "ip_local_reserved_ports"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        (taken,) = task_port_checks(port, port, local)
        assert (taken.status, taken.message) == ("warn", f"1 in use by other processes ({port})")
    local.write_text("32768\t60999\n")
    reserved.write_text("\n")
    (free,) = task_port_checks(port, port, local.with_name("absent"))
    assert free.status == "ok"
    local.write_text(f"{port}\t60999\n")
    _, found = task_port_checks(port, port, local)
    assert (found.status, found.message) == ("warn", f"the kernel gives {port}-60999 to outgoing connections")
    assert f"ip_local_reserved_ports={port}-{port}" in found.next_step
    reserved.write_text(f"1000,{port - 1}-{port + 1}\n")
    assert [each.status for each in task_port_checks(port, port, local)] == ["ok"]


def test_task_ports_are_those_that_an_agent_takes_by_default() -> None:
    settings = AgentConfig(name="n", region="r", zone="z", state_dir="s", url="u", ca="c")
    assert settings.port_range == TASK_PORTS


def test_ports_of_the_etcd_that_is_started_are_checked_too(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        client = held.getsockname()[1]
        plan = CellPlan(name="global", host="h", port=client - 100, url="u", start_etcd=True)
        found = machine_report(Places(tmp_path), "global", Needs(ports=plan.ports))
    assert [each.status for each in found if each.name == f"port {client}"] == ["fail"]
    assert len([each for each in found if each.name.startswith("port ")]) == 3


@pytest.mark.parametrize(("ahead_s", "status"), [(0.2, "ok"), (-3.0, "warn"), (400.0, "fail"), (-400.0, "fail")])
def test_clock_difference_is_judged(ahead_s: float, status: str) -> None:
    assert clock_finding(ahead_s).status == status


@pytest.mark.parametrize(("state", "status"), [(0, "ok"), (1, "ok"), (5, "warn"), (-1, "warn")])
def test_clock_that_nothing_keeps_right_is_a_warning(state: int, status: str) -> None:
    found = clock_sync_finding(state)
    assert (found.name, found.status) == ("clock", status)
    assert bool(found.next_step) == (status == "warn")


def test_kernel_is_asked_about_its_clock() -> None:
    assert clock_state() in range(6)


@pytest.mark.parametrize(
    ("theirs", "status"), [("0.1.3", "ok"), ("0.2.0", "warn"), ("0.3.0", "fail"), ("1.1.0", "fail"), ("x", "warn")]
)
def test_version_difference_is_judged(theirs: str, status: str) -> None:
    assert version_finding(theirs, "0.1.0").status == status


@pytest.mark.parametrize(("later_s", "status"), [(10.0, "ok"), (800.0, "warn"), (1001.0, "fail"), (-1000.0, "fail")])
def test_certificate_lifetime_is_judged(later_s: float, status: str, tmp_path: Path) -> None:
    made = make_ca(tmp_path, now_s=NOW_S)
    authority = CellCertificateAuthority(made.certificate, made.key)
    issue_pem(authority, tmp_path / "server.pem", "cell", hosts=("h",), now_s=NOW_S, seconds=1000.0)
    found = certificate_check(tmp_path / "server.pem", NOW_S + later_s)
    assert found.status == status
    assert status == "ok" or found.next_step


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"])
def test_unreadable_certificate_is_a_finding(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    path.write_bytes(content)
    assert certificate_check(path, NOW_S).status == "fail"


def test_cell_that_does_not_answer_is_a_finding(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{held.getsockname()[1]}"
        found = list(remote_checks(url, Places(tmp_path), "region"))
    assert [each.status for each in found] == ["ok", "fail"]
    assert "firewall" in found[1].next_step


def test_name_that_does_not_resolve_is_a_finding(tmp_path: Path) -> None:
    found = list(remote_checks("https://no-such-host.invalid:1", Places(tmp_path), "region"))
    assert [each.status for each in found] == ["fail"]


def test_missing_directory_is_measured_at_its_parent(tmp_path: Path) -> None:
    names = [finding.name for finding in disk_checks(tmp_path / "a" / "b")]
    assert names == ["disk space", "disk sync"]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("role", ROLES)
def test_new_machine_has_every_finding_with_a_next_step(role: Role, tmp_path: Path) -> None:
    found = machine_report(Places(tmp_path), role, Needs(task_ports=TASK_PORTS if role == "agent" else None))
    assert {"clock", "disk space", "disk sync", "open files"} <= {each.name for each in found}
    assert all(each.next_step for each in found if each.status != "ok")
    assert isinstance(failures(found), list)
