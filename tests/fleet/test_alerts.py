"""Alert rules name metrics that exist and runbooks that can be opened."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from prometheus_client.metrics import MetricWrapperBase

from holdfast.runtime import metrics

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/alerts/holdfast.rules.yaml").read_text())


def test_every_rule_is_about_something_that_is_measured_and_says_what_to_do():
    collectors = [item for item in vars(metrics).values() if isinstance(item, MetricWrapperBase)]
    known = {family.name for item in collectors for family in item.describe()}
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        for name in re.findall(r"holdfast_[a-z_]+", rule["expr"]):
            assert name in known, f"{rule['alert']}: {name}"
        assert (ROOT / rule["annotations"]["runbook"]).is_file() and rule["annotations"]["summary"]
