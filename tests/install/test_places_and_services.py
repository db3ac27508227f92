"""Paths, records and units of an installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.install.places import ROLES, InstallRecord, Places, Role, parse_advertise, toml_text
from holdfast.install.removal import removal_warning
from holdfast.install.services import SERVICE_USER, Service, exec_start, unit_text


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("10.0.0.1", "https://10.0.0.1:7400"),
        ("10.0.0.1:9000", "https://10.0.0.1:9000"),
        ("control.example", "https://control.example:7400"),
        ("[fd00::1]:9000", "https://[fd00::1]:9000"),
        ("fd00::1", "https://[fd00::1]:7400"),
        ("https://10.0.0.1:9000", "https://10.0.0.1:9000"),
    ],
)
def test_advertised_address_is_parsed(text: str, url: str) -> None:
    assert parse_advertise(text, 7400)[2] == url


@pytest.mark.parametrize("text", ["", ":7400", "a b", "host:0", "host:99999", "host/path", "http://x:1", "*.example"])
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="--advertise") as refusal:
        parse_advertise(text, 7400)
    assert refusal.value.code is ExitCode.USAGE


def test_same_installation_continues_and_another_one_is_refused(tmp_path: Path) -> None:
    places = Places(tmp_path)
    wanted = InstallRecord(role="region", name="us-east", advertise="https://h:1", ca="aa")
    assert places.begin("region", wanted) == wanted
    assert places.begin("region", wanted) == wanted
    for other in (
        InstallRecord(role="region", name="eu-west", advertise="https://h:1", ca="aa"),
        InstallRecord(role="region", name="us-east", advertise="https://h:2", ca="aa"),
        InstallRecord(role="region", name="us-east", advertise="https://h:1", ca="bb"),
    ):
        with pytest.raises(CommandError, match="already holds us-east") as refusal:
            places.begin("region", other)
        assert refusal.value.code is ExitCode.CONFLICT
    assert places.roles() == ("region",)


def test_configuration_without_record_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "region.toml").write_text("cell = 'mine'\n")
    with pytest.raises(CommandError, match="has no record"):
        Places(tmp_path).begin("region", InstallRecord(role="region", name="us-east"))


def test_removal_of_a_role_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="not installed"):
        removal_warning(Places(tmp_path), "region")


def test_settings_are_read_back_as_written() -> None:
    settings: dict[str, str | int | bool] = {"cell": 'a "b" \\ c', "port": 7400, "rebalance": False, "host": "::"}
    assert tomllib.loads(toml_text(settings, "one\ntwo")) == settings


def test_directory_of_the_user_has_no_service_manager(tmp_path: Path) -> None:
    service = Service(Places(tmp_path), "global")
    assert service.manager == "none"
    assert service.unit_path == tmp_path / "holdfast-global.service"


def test_unit_that_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    """A unit newer than its process restarts the service, so a command that is run twice would restart it."""
    places = Places(tmp_path)
    places.folder("global").mkdir(parents=True)
    service = Service(places, "global")
    service.install()
    before = service.unit_path.stat()
    service.install()
    assert service.unit_path.stat().st_mtime_ns == before.st_mtime_ns
    service.unit_path.write_text("[Unit]\n")
    service.install()
    assert "ExecStart=" in service.unit_path.read_text()


@pytest.mark.parametrize("role", ROLES)
def test_unit_restarts_survives_a_reboot_and_runs_the_configuration(role: Role, tmp_path: Path) -> None:
    places = Places(tmp_path)
    text = unit_text(places, role, user="" if role == "agent" else SERVICE_USER)
    assert "WantedBy=multi-user.target" in text
    assert "Restart=always" in text
    assert f"ExecStart={' '.join(exec_start(places, role))}" in text
    if role == "agent":
        assert "KillMode=process" in text  # tasks survive their agent
    else:
        assert f"User={SERVICE_USER}" in text
        assert "ProtectSystem=strict" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None and "CI" not in os.environ, reason="needs systemd-analyze")
@pytest.mark.parametrize("role", ROLES)
def test_systemd_accepts_the_unit(role: Role, tmp_path: Path) -> None:
    unit = tmp_path / f"holdfast-{role}.service"
    unit.write_text(unit_text(Places(tmp_path), role))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    about_unit = [line for line in checked.stderr.splitlines() if unit.name in line]
    assert not about_unit, "\n".join(about_unit)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None and "CI" not in os.environ, reason="needs systemd-analyze")
@pytest.mark.parametrize("role", ["global", "region"])
def test_cells_have_little_exposure(role: Role, tmp_path: Path) -> None:
    unit = tmp_path / f"holdfast-{role}.service"
    unit.write_text(unit_text(Places(tmp_path), role, user=SERVICE_USER))
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout[-300:] + checked.stderr
