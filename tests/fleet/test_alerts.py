"""Alert rules use existing metrics and runbooks, and fire when expected."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml
from prometheus_client.metrics import MetricWrapperBase
from tests.requirements import skip_or_fail

from holdfast.foundation import metrics

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/alerts/holdfast.rules.yaml").read_text())


def test_every_alert_uses_a_known_metric_and_names_a_runbook() -> None:
    collectors = [item for item in vars(metrics).values() if isinstance(item, MetricWrapperBase)]
    known = {family.name for item in collectors for family in item.describe()}
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        for name in re.findall(r"holdfast_[a-z_]+", rule["expr"]):
            assert name in known, f"{rule['alert']}: {name}"
        assert (ROOT / rule["annotations"]["runbook"]).is_file() and rule["annotations"]["summary"]


def promtool(*words: str, where: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or shutil.which("promtool", path=str(ROOT / ".tools/bin"))
    if program is None:
        skip_or_fail("promtool is missing; make tools fetches it")
    return subprocess.run([program, *words], cwd=where, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_accepts_the_alert_rules() -> None:
    ran = promtool("check", "rules", "--lint=all", "--lint-fatal", "holdfast.rules.yaml", where=ROOT / "deploy/alerts")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_alerts_fire_only_when_expected(tmp_path: Path) -> None:
    for source in (ROOT / "deploy/alerts/holdfast.rules.yaml", Path(__file__).parent / "alerts.test.yaml"):
        shutil.copy(source, tmp_path)
    ran = promtool("test", "rules", "alerts.test.yaml", where=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
