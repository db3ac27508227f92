"""VolumeClaims and templates that name them: what is accepted, what counts, what is part of a revision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.model.quantity import STORAGE
from holdfast.model.reasons import Reason
from holdfast.model.template import Template, requests, template_claims, template_hash, validate_template
from holdfast.model.template_volume import ClaimVolume, ScratchVolume, TemplateVolume, with_claim_terms
from holdfast.model.volume import (
    OnRegionLoss,
    ReclaimPolicy,
    VolumeClaim,
    VolumeClaimSpec,
    validate_volume_claim,
    volume_refusal,
)
from holdfast.model.workload import Exclusivity, Gang, ReassignAfterLoss, WorkloadType, validate_workload

DATA = TemplateVolume(name="data", mount_path="/data", claim=ClaimVolume("orders"))


def claim(name: str = "orders", **spec: Any) -> VolumeClaim:
    return VolumeClaim(factories.meta(name, "acme"), VolumeClaimSpec(**{"size": "1Gi", **spec}))


def template(*volumes: TemplateVolume) -> Template:
    return msgspec.structs.replace(factories.TEMPLATE, volumes=volumes or (DATA,))


@pytest.mark.parametrize("size", ["", "many", "-1Gi", "15Mi"])
def test_claim_needs_a_size_that_holds_a_file_system(size: str) -> None:
    assert [cause.field for cause in validate_volume_claim(claim(size=size), None)] == ["spec.size"]


@pytest.mark.parametrize("name", ["..", "a/b", "Orders", "a.b"])
def test_claim_whose_name_is_no_label_is_refused(name: str) -> None:
    assert [cause.field for cause in validate_volume_claim(claim(name), None)] == ["metadata.name"]


def test_claim_is_immutable() -> None:
    changed = claim(reclaim_policy=ReclaimPolicy.DELETE)
    assert [cause.field for cause in validate_volume_claim(changed, claim())] == ["spec"]
    (larger,) = validate_volume_claim(claim(size="2Gi"), claim())
    assert larger.field == "spec.size" and "create another VolumeClaim of the new size" in larger.message
    assert not list(validate_volume_claim(claim(), claim()))


def test_user_names_a_claim_and_nothing_else() -> None:
    assert not list(validate_template("spec.template", template()))
    filled = msgspec.structs.replace(DATA, claim=ClaimVolume("orders", "1Gi"))
    both = msgspec.structs.replace(DATA, scratch=ScratchVolume("16Mi"))
    hostile = msgspec.structs.replace(DATA, claim=ClaimVolume("../other"))
    again = msgspec.structs.replace(DATA, name="more", mount_path="/more")
    for volumes in ((filled,), (both,), (hostile,), (DATA, again)):
        assert list(validate_template("spec.template", template(*volumes)))
    asked = msgspec.structs.replace(template(), resources={"cpu": "1", "memory": "1Gi", "storage": "1Gi"})
    assert [c.field for c in validate_template("spec.template", asked)] == ["spec.template.resources.storage"]


@pytest.mark.parametrize(
    "spec",
    [
        {"exclusive": Exclusivity()},
        {"gang": Gang(min_available=1)},
        {"reassign": ReassignAfterLoss(after_seconds=60.0)},
        {"type": WorkloadType.BATCH},
    ],
)
def test_workload_whose_ordinals_change_hands_has_no_claims(spec: dict[str, Any]) -> None:
    refused = validate_workload(factories.workload(template=template(), **spec), None)
    assert "spec.template.volumes" in [cause.field for cause in refused]
    assert not list(validate_workload(factories.workload(template=template()), None))


def test_terms_of_a_claim_count_as_storage_and_are_no_part_of_the_revision() -> None:
    claims = {"orders": claim(on_region_loss=OnRegionLoss.START_EMPTY)}
    resolved = msgspec.structs.replace(template(), volumes=with_claim_terms(template().volumes, claims))
    assert requests(resolved)[STORAGE] == 1024**3 and STORAGE not in requests(template())
    assert template_hash(resolved) == template_hash(template())
    (found,) = template_claims(resolved)
    assert (found.on_region_loss, found.uid) == (OnRegionLoss.START_EMPTY, claims["orders"].uid)


def test_only_the_node_of_a_volume_is_allowed() -> None:
    assert volume_refusal("n1", "n1") is None
    assert volume_refusal("n1", "n2") is Reason.VOLUME_ON_OTHER_NODE
    assert volume_refusal("n1", "n1", terminating=True) is Reason.VOLUME_TERMINATING
