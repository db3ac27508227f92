"""`ExpressionRefused` names the expression and the policy revision, and tells a failing expression from a false one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factories

from holdfast.insight.decision_matrix import decision_matrix
from holdfast.insight.expression_refusals import expression_refusal_text
from holdfast.insight.region_clients import RegionClient
from holdfast.insight.timeline import Evidence, request_timeline
from holdfast.insight.what_if import _planned as planned_placements
from holdfast.insight.why_not import WhyNotQuery
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.scheduler_policy import FilterExpression, PolicyRevision, PolicyRevisionSpec, PolicyRules
from holdfast.model.scheduling_request import (
    RefusalCount,
    RequestMember,
    SchedulingRequest,
    SchedulingRequestSpec,
    SchedulingRequestStatus,
)
from holdfast.model.template import Template
from holdfast.scheduling.plan import requirements_of
from holdfast.scheduling.snapshot import Snapshot
from holdfast.scheduling.snapshot.builder import build_snapshot

REVISION = "gpu-guard-123456789abc"
RULES = PolicyRules(
    filter_expressions=(
        FilterExpression("always", "true"),
        FilterExpression("not-here", "node.zone != 'z'"),
        FilterExpression("gpus", "node.capacity.gpu == 0 || request.resources.gpu > 0"),
    )
)
FALSE = f"filter expression not-here of policy revision {REVISION} is false"
FAILS = f"filter expression gpus of policy revision {REVISION} fails on node n1 (no key gpu)"


def snapshot() -> Snapshot:
    return build_snapshot("here", [factories.node()])


def request() -> SchedulingRequest:
    template = Template(command=("x",), resources={"cpu": "1", "memory": "1Gi"})
    members = (RequestMember("web-0", "u0"),)
    spec = SchedulingRequestSpec(workload="web", assignment="a", revision="1", template=template, members=members)
    refusal = RefusalCount(
        "ExpressionRefused", 1, ("n1",), "A filter expression of the active policy rejects the node."
    )
    return SchedulingRequest(
        factories.meta("web", "acme"), spec, SchedulingRequestStatus(pending=1, reasons=(refusal,))
    )


def region() -> RegionClient:
    copy = GrantCopy(
        factories.meta("normal", "acme"),
        GrantCopySpec(limit={"cpu": "4", "memory": "8Gi"}, lease_expires_at="2100-01-01T00:00:00Z"),
    )
    kinds = ("Binding", "Reservation", "RecoverySlot", "Override", "Region", "Volume")
    objects: dict[str, list[Any]] = {kind: [] for kind in kinds}
    revision = PolicyRevision(factories.meta(REVISION), PolicyRevisionSpec(policy="gpu-guard", rules=RULES))
    return RegionClient.holding(
        "here", {**objects, "Node": [factories.node()], "GrantCopy": [copy], "PolicyRevision": [revision]}
    )


def test_why_not_names_each_expression_and_tells_which_fails() -> None:
    query = WhyNotQuery(snapshot(), requirements_of(request()), RULES, 0.0, REVISION)
    found = query.explain_node("n1")
    assert found is not None
    (blocker,) = found.blockers
    assert blocker.message == f"{FALSE}; {FAILS}" == query.expression_refusal()


def test_region_query_names_the_active_revision_and_no_revision_of_a_file() -> None:
    here, ask = region(), requirements_of(request())
    assert REVISION in here.why_not_query(ask, 0.0).expression_refusal()
    assert "of the policy is false" in here.why_not_query(ask, 0.0, RULES).expression_refusal()


def test_matrix_of_a_decision_names_the_expression() -> None:
    made = decision_matrix(snapshot(), requirements_of(request()), RULES, 0.0, REVISION)
    assert made.groups[0].message == f"{FALSE}; {FAILS}"


def test_plan_names_the_expression() -> None:
    (placing,) = planned_placements(region(), request(), None, 0.0)
    assert placing.message.startswith(FALSE)
    (placing,) = planned_placements(region(), request(), RULES, 0.0)
    assert placing.message.startswith("filter expression not-here of the policy is false")


@pytest.mark.parametrize("text", [FALSE, ""])
def test_explain_names_the_expression_or_at_least_the_revision(text: str) -> None:
    """A tenant's user may not read policies, but its own decisions, which name the revision."""
    decision = Decision(factories.meta("d", "acme"), DecisionSpec(request="web", workload="web"))
    decision = msgspec.structs.replace(decision, spec=msgspec.structs.replace(decision.spec, policy_revision=REVISION))
    made = request_timeline(request(), Evidence(decision=decision, expression_refusal=text))
    assert made.reasons == (
        f"1 node ExpressionRefused (such as n1): "
        f"{text or f'a filter expression of policy revision {REVISION} rejects the node'}",
    )


def test_nodes_that_pass_have_no_text() -> None:
    assert expression_refusal_text(snapshot(), requirements_of(request()), PolicyRules(), [0]) == ""
