"""The files in deploy/ are valid for systemd and etcd, and use only existing options."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from holdfast.cli.commands.serve import serve
from holdfast.cli.commands.storage import backup

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = DEPLOY / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("name", ["holdfast-cell", "holdfast-backup"])
def test_systemd_unit_is_valid_and_hardened(tmp_path: Path, name: str) -> None:
    # The operator chooses the path of the program; here it only has to exist.
    unit = tmp_path / f"{name}@us-east.service"
    unit.write_text((UNITS / f"{name}@.service").read_text().replace("/opt/holdfast/bin/holdfast", sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert "holdfast" not in verified.stderr, verified.stderr
    analyzed = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.search(r"exposure level[^:]*: ([0-9.]+)", analyzed.stdout)
    if found is None:
        pytest.skip(f"this systemd judges no unit offline: {analyzed.stderr[:200]}")
    assert float(found[1]) < 3.0, analyzed.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_backup_timer_is_valid_and_runs_every_hour(tmp_path: Path) -> None:
    for name in ("holdfast-backup@.service", "holdfast-backup@.timer"):
        text = (UNITS / name).read_text().replace("/opt/holdfast/bin/holdfast", sys.executable)
        (tmp_path / name.replace("@", "@us-east")).write_text(text)
    timer = tmp_path / "holdfast-backup@us-east.timer"
    verified = subprocess.run(["systemd-analyze", "verify", str(timer)], capture_output=True, text=True, timeout=60)
    assert "holdfast" not in verified.stderr, verified.stderr
    assert "OnCalendar=hourly" in timer.read_text()


def test_backup_unit_uses_existing_options() -> None:
    command = re.search(r"^ExecStart=(.*)$", (UNITS / "holdfast-backup@.service").read_text(), re.MULTILINE)
    assert command is not None
    named = {word for word in command[1].split() if word.startswith("--")}
    assert {"--verify", "--keep"} <= named <= {option for parameter in backup.params for option in parameter.opts}


def test_example_options_exist() -> None:
    options = (DEPLOY / "example" / "us-east.env").read_text().split("HOLDFAST_OPTIONS=")[1].split()
    named = {word for word in options if word.startswith("--")}
    known = {option for parameter in serve.params for option in parameter.opts}
    assert named <= known


def test_etcd_example_uses_tls_everywhere() -> None:
    held = yaml.safe_load((DEPLOY / "example" / "etcd.conf.yml").read_text())
    urls = [held[key] for key in held if key.endswith("urls")]
    assert urls and all(url.startswith("https://") for url in urls)
