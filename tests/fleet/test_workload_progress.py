"""Rollout and counts of a workload are one outcome, and the quota's status describes the grants of its own commit."""

from __future__ import annotations

import msgspec
from tests.expected import present
from tests.factories import assignment, cache_of, meta, region, with_new_revision, workload

from holdfast.fleet import grants, workload_progress
from holdfast.model.meta import Key
from holdfast.model.quota import Quota, QuotaSpec
from holdfast.model.reasons import Reason
from holdfast.model.times import seconds_text
from holdfast.model.writes import Create, SetStatus

NOW = 1_800_000_000.0


def test_progress_of_a_workload_is_one_outcome() -> None:
    item = workload("api")
    view = cache_of(item, region("east"), assignment("api", "east"))
    outcome = workload_progress.decide(item.key, view, NOW)
    writes = [w for w in outcome.writes if isinstance(w, SetStatus)]
    assert len(writes) == len(outcome.writes)
    assert {name for w in writes for name in w.blocks} == {"rollout", "summary"}
    assert {c.type for w in writes for c in w.conditions} == {"RolledOut", "Assigned", "Serving"}
    assert {(w.key, w.uid) for w in writes} == {(item.key, item.uid)}, "one row: all writes are to the workload"
    assert outcome.requeue_after_s is None or outcome.requeue_after_s > 0


def test_quota_status_describes_the_grants_of_its_commit() -> None:
    quota = Quota(metadata=meta("quota", "acme"), spec=QuotaSpec(hard={"cpu": "12", "memory": "12Gi"}))
    view = cache_of(quota, region("east"), assignment("api", "east"))
    outcome = grants.decide(Key("acme", "quota"), view, NOW)
    status = next(w for w in outcome.writes if isinstance(w, SetStatus))
    granted = next(c for c in status.conditions if c.type == "Granted")
    assert (granted.status, granted.reason) == ("False", Reason.SHRINK_PENDING)
    for write in outcome.writes:
        if isinstance(write, Create):
            named = msgspec.structs.replace(write.object, metadata=meta(write.object.metadata.name, "acme"))
            view.put(named)
    stored = present(view.get(Quota, "quota", "acme"))
    dated = tuple(msgspec.structs.replace(c, last_transition_time=seconds_text(NOW)) for c in status.conditions)
    kept = msgspec.structs.replace(stored.status, conditions=dated, **_fields(status))
    view.put(with_new_revision(stored, status=msgspec.structs.replace(kept, observed_generation=1)))
    assert not grants.decide(Key("acme", "quota"), view, NOW).writes, (
        "the new grants wake it, and nothing is left to say"
    )


def _fields(write: SetStatus) -> dict[str, object]:
    return {name: write.blocks[name] for name in ("granted", "used", "regions")}
