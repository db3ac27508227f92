"""The command lines of reference pages, run in order on a real platform, each of them or with a reason why not.

The tutorials and the pages of the installation have tests of their own. `make prove STAGE=platforms`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.platforms import ROOT, RunningPlatform, running_platform

from holdfast.platform.supervisor import path_with_venv

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("HOLDFAST_PROVE" not in os.environ, reason="takes minutes; make prove STAGE=platforms runs it"),
]
_FIRST_DECISION = "holdfast get decisions -n payments -o json | jq -r '.items[0].metadata.name'"
_LINE = re.compile(r"^ {4}((?:holdfast|kubectl) .*)$", re.MULTILINE)


class PageLines(msgspec.Struct, frozen=True):
    """`changes` are what a reader replaces; `not_run` says why a line that starts so is not run."""

    changes: tuple[tuple[str, str], ...] = ()
    not_run: dict[str, str] = {}


PAGES = {
    "access.md": PageLines(
        changes=(
            ("user add ann ", "user add anna "),
            ("user add bob ", "user add bobby "),
            ("--user bob > bob.", "--user bobby > bob."),
            ("user remove bob ", "user remove bobby "),
            ("/etc/prometheus/", ""),
            ("holdfast audit tail", "timeout 5 holdfast audit tail || test $? = 124"),
            ("--public-key audit.pub", '--public-key "$HOLDFAST_STATE/cells/global/audit.pub"'),
        ),
        not_run={
            "holdfast serve …": "needs an issuer; tests/identity/test_oidc.py has one",
            "holdfast break-glass review": "the name is generated; tests/e2e/test_every_alert.py reviews a session",
        },
    ),
    "how-to/maintenance.md": PageLines(
        not_run={"holdfast maintenance end": "the name is generated; tests/e2e/test_scheduled_drills.py ends one"}
    ),
    "autoscaling.md": PageLines(
        not_run={"holdfast pool provide": "runs until it is stopped; tests/e2e/test_autoscaling.py runs it"}
    ),
    "how-to/reach.md": PageLines(
        changes=(
            (" -it ", " "),  # The test has no terminal.
            ("-- sh", "-- true"),
            ("cp app.conf", "cp /etc/hostname"),
            (":/tmp/dump", ":/tmp/app.conf"),
            ("analytics/nightly", "analytics/analytics"),
            ("nightly-us-east-0.1", "analytics-us-east-0.1"),
            # Two regions have replicas, and maxUnavailable is 1: this region has no share of the budget.
            ("delete pod risk-api-us-east-0.1", "delete pod risk-api-us-east-0.1 --force --grace-period=0"),
        ),
        not_run={
            "kubectl --context us-east -n payments port-forward": "runs until it is stopped; tests/e2e/test_reach.py",
            "kubectl --context us-east -n payments attach": "runs until it is stopped; tests/e2e/test_reach.py",
            "holdfast port-forward": "runs until it is stopped; tests/e2e/test_reach.py",
            "holdfast attach": "runs until it is stopped; tests/e2e/test_reach.py",
            "holdfast logs payments/risk-api-us-east-0 --previous": "needs an earlier run; tests/e2e/test_reach.py",
        },
    ),
    "how-to/secrets.md": PageLines(
        changes=(("kubectl -n payments create secret", "echo s > password; kubectl -n payments create secret"),)
    ),
    "policies.md": PageLines(
        changes=(
            ("TENANT/DECISION", f"payments/$({_FIRST_DECISION})"),
            ("WORKLOAD.yaml", f"{ROOT}/examples/workloads.yaml"),
            ("--last 200", "--last 200 || test $? = 3"),  # Some decisions would differ.
            ("FILE", f"{ROOT}/examples/policies/packing.yaml"),
            ("-f packing.yaml", f"-f {ROOT}/examples/policies/packing.yaml"),
        )
    ),
    "operations/many-machines.md": PageLines(
        not_run={"holdfast credentials revoke": "ends the region; tests/e2e/test_install_servers.py revokes one"}
    ),
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("pages") / "state") as running:
        yield running


@pytest.mark.parametrize("name", PAGES)
def test_command_lines_of_page_succeed(name: str, platform: RunningPlatform, tmp_path: Path) -> None:
    page = PAGES[name]
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli "$@"\n')
    program.chmod(0o755)
    env = {
        **os.environ,
        "KUBECONFIG": platform.up_output["kubeconfig"],
        "HOLDFAST_STATE": str(platform.state),
        "PATH": f"{programs}:{path_with_venv(os.environ['PATH'])}:{ROOT / '.tools' / 'bin'}",
        "CI": "true",
    }
    ran, failed = 0, []
    for line in _LINE.findall((ROOT / "docs" / name).read_text()):
        if any(line.startswith(start) for start in page.not_run):
            continue
        for old, new in page.changes:
            line = line.replace(old, new)  # noqa: PLW2901 - as the reader types it
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        ran += 1
        if done.returncode != 0:
            failed.append(f"{line}: exit {done.returncode}: {done.stdout[-300:]}{done.stderr[-500:]}")
    assert failed == [], "\n".join(failed)
    assert ran >= 2


def test_reasons_name_lines_of_the_pages() -> None:
    for name, page in PAGES.items():
        lines = _LINE.findall((ROOT / "docs" / name).read_text())
        for start in page.not_run:
            assert any(line.startswith(start) for line in lines), f"{name}: {start}"
