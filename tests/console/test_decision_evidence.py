"""The evidence of a decision: how old its inputs were, from the store's history, however often they were renewed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.console.test_region_reads import OPERATOR, Region
from tests.factories import meta

from holdfast.console.region_decisions import RegionDecision
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.times import micro_text

DECIDED_S = 1_767_225_600.0


@pytest.fixture
async def region() -> AsyncIterator[Region]:
    made = Region()
    await made.objects.start()
    yield made
    await made.objects.close()


def inputs(contact_s: float, *renewals_s: float) -> tuple[GrantCopy, LeasePage]:
    spec = GrantCopySpec(last_contact_at=micro_text(contact_s), lease_expires_at=micro_text(contact_s + 120))
    leases = {f"n{i}": NodeLease(1, at_s, 15.0) for i, at_s in enumerate(renewals_s)}
    return GrantCopy(metadata=meta("normal", "acme"), spec=spec), LeasePage(
        metadata=meta("page-0"), spec=LeasePageSpec(page=0, leases=leases)
    )


async def evidence(region: Region) -> dict[str, tuple[float, float]]:
    found: Any = (await region.ask("decision", OPERATOR, tenant="acme", decision="d")).data
    assert isinstance(found, RegionDecision)
    return {row.input: (round(row.age_s, 1), row.limit_s) for row in found.evidence}


async def test_ages_are_those_at_the_decision_after_the_inputs_were_renewed(region: Region) -> None:
    await region.put(*inputs(DECIDED_S - 30, DECIDED_S - 2, DECIDED_S - 7, DECIDED_S - 500))
    at = region.reader.revision()
    spec = DecisionSpec(request="r", workload="api", decided_at=micro_text(DECIDED_S), snapshot_revision=at)
    await region.put(Decision(metadata=meta("d", "acme"), spec=spec))
    await region.put(*inputs(DECIDED_S + 60, DECIDED_S + 60))
    assert await evidence(region) == {
        "Node reports": (7.0, 15.0),
        "Grant, Normal": (30.0, 120.0),
        "Policy": (30.0, 120.0),
        "Overrides": (30.0, 120.0),
    }


async def test_evidence_is_empty_when_the_history_is_compacted(region: Region) -> None:
    await region.put(*inputs(DECIDED_S - 30, DECIDED_S - 2))
    at = region.reader.revision()
    spec = DecisionSpec(request="r", workload="api", decided_at=micro_text(DECIDED_S), snapshot_revision=at)
    await region.put(Decision(metadata=meta("d", "acme"), spec=spec))
    await region.put(*inputs(DECIDED_S + 60, DECIDED_S + 60))
    store = region.objects.store_of(kind_of(Decision))
    await store.compact(region.reader.revision())
    assert await evidence(region) == {}
