"""The text of `holdfast plan --lose-region`: every part of the result is printed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.commands.lose_region import _as_text
from holdfast.insight.region_loss import loss_effects, replica_rows
from holdfast.insight.what_if import PlannedPlacement

NOTHING: dict[str, Any] = {
    "lost": {"region": "east", "zone": ""},
    "recovers": [],
    "safe": [],
    "short": [],
    "decided": True,
    "unprotected": [],
    "places": [],
    "evicts": [],
    "waits": [],
}
PLACED = PlannedPlacement("west", "risk-west-r1", "west-2", ("spare/fill-west-3.1", "spare/fill-west-4.2"))
PENDING = PlannedPlacement(
    "west", "risk-west-r2", reason="PortsExhausted", message="no free port", to_fit="free a port"
)


def unprotected(replicas: int, after_s: float, *, elsewhere: bool = True) -> dict[str, Any]:
    row = {"replicas": replicas, "reassignAfterSeconds": after_s, "canRunElsewhere": elsewhere}
    return {"unprotected": [{"tenant": "shop", "workload": "web", **row}]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "if region east is lost:"),
        ({"lost": {"region": "east", "zone": "east-a"}}, "if zone east-a of region east is lost:"),
        (
            {"recovers": [{"tenant": "pay", "workload": "risk", "region": "west", "replicas": 4}]},
            "pay/risk   4 replicas start in west",
        ),
        ({"safe": [{"tenant": "pay", "workload": "risk"}]}, "pay/risk   still serves minServing in another region"),
        (
            {"short": [{"tenant": "pay", "workload": "risk", "why": "west: 0 of 4 recovery places", "region": "west"}]},
            "pay/risk   misses its recovery objective: west: 0 of 4 recovery places; recovery tries west",
        ),
        (replica_rows([PLACED]), "fill-west-3"),
        (replica_rows([PENDING]), "PENDING: risk-west-r2 in west: PortsExhausted: no free port (to fit: free a port)"),
        ({"decided": False}, "the search reached its limit"),
        (unprotected(2, 900.0), "shop/web   2 replicas start elsewhere after 900 s (no recovery objective)"),
        (unprotected(1, 0.0), "shop/web   1 replica waits for the region (no recovery objective)"),
        (
            unprotected(2, 900.0, elsewhere=False),
            "shop/web   2 replicas wait: no other region can run it (no recovery objective)",
        ),
    ],
)
def test_region_loss_text_names_every_part(changes: dict[str, Any], expected: str) -> None:
    outcome = {**NOTHING, **changes}
    assert expected in _as_text(outcome | {"effects": loss_effects(outcome)})
