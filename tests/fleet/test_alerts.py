"""Alert rules use existing metrics and runbooks, and fire when expected."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import yaml
from prometheus_client.metrics import Histogram, MetricWrapperBase
from tests.factories import cache_of, meta
from tests.requirements import skip_or_fail

from holdfast.cell import fleet_gauges
from holdfast.foundation import metrics
from holdfast.model.recovery_budget import RecoveryBudget, RecoveryBudgetSpec, RecoveryBudgetStatus, SlotShape
from holdfast.model.workload import RecoveryObjective

ROOT = Path(__file__).parents[2]
RULE_TESTS = sorted(Path(__file__).parent.glob("alerts*.test.yaml"))
RULES = yaml.safe_load((ROOT / "deploy/alerts/holdfast.rules.yaml").read_text())


def test_every_alert_uses_a_known_metric_and_names_a_runbook() -> None:
    collectors = [item for item in vars(metrics).values() if isinstance(item, MetricWrapperBase)]
    known = {family.name for item in collectors for family in item.describe()}
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        for name in re.findall(r"holdfast_[a-z_]+", rule["expr"]):
            assert name.removesuffix("_bucket").removesuffix("_total") in known, f"{rule['alert']}: {name}"
        assert (ROOT / rule["annotations"]["runbook"]).is_file() and rule["annotations"]["summary"]


def test_quantiles_are_compared_with_values_that_their_buckets_can_show() -> None:
    """A quantile is never more than the largest bucket, so an alert above that would never fire."""
    histograms = {item._name: item for item in vars(metrics).values() if isinstance(item, Histogram)}
    compared = []
    for rule in (rule for group in RULES["groups"] for rule in group["rules"]):
        if "histogram_quantile" in rule["expr"]:
            (name,) = re.findall(r"(holdfast_[a-z_]+)_bucket", rule["expr"])
            threshold = float(rule["expr"].rpartition(">")[2])
            bounds = histograms[name]._kwargs["buckets"]
            assert any(threshold < bound for bound in bounds), f"{rule['alert']}: {threshold} of {bounds}"
            compared.append(rule["alert"])
    assert set(compared) == {"HoldfastStageSlow", "HoldfastStoreSlow"}


def test_every_alert_has_a_rule_test_and_a_drill() -> None:
    alerts = {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}
    tests = [test for path in RULE_TESTS for test in yaml.safe_load(path.read_text())["tests"]]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == alerts
    assert set(tomllib.loads((ROOT / "deploy/alerts/drill.toml").read_text())) == alerts


def test_pending_alert_fires_before_the_default_recovery_deadline() -> None:
    rules = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
    seconds = float(rules["HoldfastPendingTooLong"]["expr"].rpartition(">")[2])
    assert seconds <= RecoveryObjective(min_serving=1).deadline_seconds / 2


def test_recovery_slot_gauges_are_per_region_and_vanish_with_the_budget() -> None:
    def budget(where: str, admitted: int) -> RecoveryBudget:
        shapes = (SlotShape(resources={"cpu": "1"}, count=4),)
        status = RecoveryBudgetStatus(admitted=admitted, consumed=admitted)
        return RecoveryBudget(meta(where), RecoveryBudgetSpec(region=where, slot_shapes=shapes), status)

    def read() -> dict[tuple[str, str], float]:
        (family,) = metrics.FLEET_RECOVERY_SLOTS.collect()
        return {(s.labels["region"], s.labels["state"]): s.value for s in family.samples}

    fleet_gauges.update_gauges(cache_of(budget("east", 4), budget("west", 1)), 0.0)
    found = read()
    assert (found["east", "Consumed"], found["west", "Consumed"], found["west", "Requested"]) == (4, 1, 4)
    fleet_gauges.update_gauges(cache_of(budget("east", 4)), 0.0)
    assert {region for region, _ in read()} == {"east"}


def promtool(*words: str, where: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or shutil.which("promtool", path=str(ROOT / ".tools/bin"))
    if program is None:
        skip_or_fail("promtool is missing; make tools fetches it")
    return subprocess.run([program, *words], cwd=where, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_accepts_the_alert_rules() -> None:
    ran = promtool("check", "rules", "--lint=all", "--lint-fatal", "holdfast.rules.yaml", where=ROOT / "deploy/alerts")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_alerts_fire_only_when_expected(tmp_path: Path) -> None:
    for source in (ROOT / "deploy/alerts/holdfast.rules.yaml", *RULE_TESTS):
        shutil.copy(source, tmp_path)
    ran = promtool("test", "rules", *(path.name for path in RULE_TESTS), where=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
