"""What `explain` says about persistent volumes."""

from __future__ import annotations

import msgspec
import pytest
from tests import factories

from holdfast.insight.explain import empty_volume_lines
from holdfast.insight.timeline import Evidence, replica_timeline
from holdfast.model.assignment import Purpose
from holdfast.model.binding import Binding, BindingSpec, Intent
from holdfast.model.replica import PlacementBlock
from holdfast.model.template_volume import ClaimVolume, TemplateVolume
from holdfast.model.volume import BoundVolume, OnRegionLoss


@pytest.mark.parametrize(("new", "said"), [(True, "which was made for it and is empty"), (False, "with its data")])
def test_timeline_says_whether_the_volume_has_data(new: bool, said: str) -> None:
    volume = BoundVolume("orders", "orders.api-us-east-0", "u", "1Gi", new=new)
    intent = Intent(replica_uid="r", template_hash="h", attempt=1)
    spec = BindingSpec(replica="a", intent=intent, node="n1", template=factories.TEMPLATE, volumes=(volume,))
    item = factories.replica(0)
    placed = PlacementBlock(node="n1", zone="z", binding="b", bound_at="2026-01-01T00:00:00Z")
    item = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, placement=placed))
    shown = replica_timeline(item, Evidence(binding=Binding(factories.meta("b", "acme"), spec)))
    assert [e.text for e in shown.events if "volume" in e.text] == [f"with volume orders.api-us-east-0, {said}"]


@pytest.mark.parametrize(
    ("purpose", "lost", "lines"),
    [
        (Purpose.RECOVERY, OnRegionLoss.START_EMPTY, 1),
        (Purpose.RECOVERY, OnRegionLoss.WAIT, 0),
        (Purpose.NORMAL, OnRegionLoss.START_EMPTY, 0),
    ],
)
def test_recovery_without_data_is_said(purpose: Purpose, lost: OnRegionLoss, lines: int) -> None:
    claim = ClaimVolume("orders", "1Gi", on_region_loss=lost)
    template = msgspec.structs.replace(
        factories.TEMPLATE, volumes=(TemplateVolume(name="d", mount_path="/d", claim=claim),)
    )
    item = factories.assignment(where="eu-west", template=template, purpose=purpose)
    found = empty_volume_lines([item])
    assert len(found) == lines
    assert all("region eu-west started with an empty volume (VolumeClaim orders" in line for line in found)
