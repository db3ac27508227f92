"""`holdfast plan --lose-region` in words: who recovers where, on which node, who makes way, what waits or is short."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.commands.lose_region import _as_text, _has_work, _placed
from holdfast.insight.what_if import PlannedPlacement

NOTHING: dict[str, Any] = {
    "lost": {"region": "east", "zone": ""}, "recovers": [], "safe": [], "short": [], "decided": True, "unprotected": [],
    "places": [], "evicts": [], "waits": [],
}  # fmt: skip
FITS = PlannedPlacement("west", "risk-west-r0", "west-1", ())
TAKES = PlannedPlacement("west", "risk-west-r1", "west-2", ("spare/fill-west-3.1", "spare/fill-west-4.2"))
WAITS = PlannedPlacement("west", "risk-west-r2", reason="PortsExhausted", message="no free port", to_fit="free a port")


def test_what_the_planner_would_do_is_told_place_by_place() -> None:
    told = _placed([FITS, TAKES, WAITS])
    assert [(p["replica"], p["node"]) for p in told["places"]] == [
        ("risk-west-r0", "west-1"),
        ("risk-west-r1", "west-2"),
    ]
    assert [(e["tenant"], e["replica"], e["for"]) for e in told["evicts"]] == [
        ("spare", "fill-west-3", "risk-west-r1"),
        ("spare", "fill-west-4", "risk-west-r1"),
    ]
    assert [(w["replica"], w["reason"], w["toFit"]) for w in told["waits"]] == [
        ("risk-west-r2", "PortsExhausted", "free a port")
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "if region east is lost:"),
        ({"lost": {"region": "east", "zone": "east-a"}}, "if zone east-a of region east is lost:"),
        ({"safe": [{"tenant": "pay", "workload": "risk"}]}, "pay/risk: still serves minServing in another region"),
        (
            {"short": [{"tenant": "pay", "workload": "risk", "why": "west: 0 of 4 recovery places"}]},
            "STAYS SHORT: pay/risk: west: 0 of 4 recovery places",
        ),
        (_placed([TAKES]), "fill-west-3"),
        (
            _placed([WAITS]),
            "PENDING: risk-west-r2 in west: PortsExhausted: no free port (to fit: free a port)",
        ),
        ({"decided": False}, "the search reached its limit"),
        ({"unprotected": [{"tenant": "shop", "workload": "web", "replicas": 2}]}, "NO OBJECTIVE"),
    ],
)
def test_every_part_of_the_picture_is_said(given: dict[str, Any], said: str) -> None:
    assert said in _as_text({**NOTHING, **given})


def test_a_batch_that_is_done_waits_for_no_region() -> None:
    going = {"spec": {"replicas": 2, "batch": {"completions": 4}}, "status": {"succeeded": 3}}
    assert _has_work(going) and not _has_work({**going, "status": {"succeeded": 4}})
    assert _has_work({"spec": {"replicas": 1}}) and not _has_work({"spec": {"replicas": 0}})
