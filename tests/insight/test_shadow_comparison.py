"""Results of a shadow policy: only decisions of its revision count, and differences are named."""

from __future__ import annotations

from tests.factories import meta

from holdfast.insight.shadow_comparison import EXAMPLES_MAX, compare_shadow
from holdfast.model.decision import Decision, DecisionEntry, DecisionSpec, Shadow, ShadowEntry


def decision(name: str, shadow: Shadow | None) -> Decision:
    entries = (DecisionEntry(replica="web-0", uid="u0", attempt=1, node="n1"),)
    spec = DecisionSpec(request="r", workload="web", entries=entries, shadow=shadow)
    return Decision(metadata=meta(name, "shop"), spec=spec)


def test_decisions_of_other_revisions_are_not_counted() -> None:
    found = compare_shadow(
        "west",
        [
            decision("a", Shadow(revision="new", same=2, different=1, additional=1, missing=3)),
            decision("b", Shadow(revision="old", same=9)),
            decision("c", None),
        ],
        "new",
    )
    assert (found.decisions, found.same, found.different, found.additional, found.missing) == (1, 2, 1, 1, 3)


def test_replicas_of_batches_that_were_not_compared_are_counted_apart() -> None:
    recorded = [decision("a", Shadow(revision="new", same=2)), decision("b", Shadow(revision="new", skipped=3))]
    found = compare_shadow("west", recorded, "new")
    assert (found.decisions, found.same, found.different, found.skipped) == (1, 2, 0, 3)


def test_differences_name_both_nodes_and_are_bounded() -> None:
    other = Shadow(revision="new", different=1, entries=(ShadowEntry(replica="web-0", node="n2"),))
    nowhere = Shadow(revision="new", missing=1, entries=(ShadowEntry(replica="web-0", reason="InsufficientCpu"),))
    found = compare_shadow("west", [decision("a", other), decision("b", nowhere)], "new")
    assert found.examples == (
        "west: shop/web-0: active n1, shadow n2",
        "west: shop/web-0: active n1, shadow no node (InsufficientCpu)",
    )
    many = compare_shadow("west", [decision(f"d{n}", other) for n in range(20)], "new")
    assert many.different == 20 and len(many.examples) == EXAMPLES_MAX
