"""Break-glass sessions: what they give, that they end on either clock, and that another person reviews them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from holdfast.cell.break_glass_watch import BreakGlassWatch
from holdfast.gate.granted_access import GrantedAccess
from holdfast.model.principal import from_identity

from . import conftest
from .conftest import V1, WORKLOADS, Api, World, workload

RECEIVERS = "/apis/holdfast.dev/v1/notificationreceivers"
PATH = f"{V1}/breakglasssessions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
REASON = "INC-214: the rollout is stuck"


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: dict[str, tuple[str, ...]] = {
        "bea": ("holdfast:break-glass",),
        "app": ("holdfast:approvers",),
        "both": ("holdfast:approvers", "holdfast:break-glass"),
    }
    monkeypatch.setattr(conftest, "GROUPS", conftest.GROUPS | groups)


def session(name: str = "s1", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"reason": REASON, **spec}}


async def test_session_gives_its_scope_and_nothing_that_outlives_it(api: Api) -> None:
    await api.post(WORKLOADS, workload("web"))
    bea = api.as_user("bea")
    assert (await bea.get(WORKLOADS)).code == 403
    assert (await bea.post(PATH, session(tenant="shop", requester="ada"))).code == 201
    assert (await bea.get(f"{PATH}/s1")).json["spec"]["requester"] == "bea"
    assert (await bea.get(WORKLOADS)).code == 200
    assert (await bea.merge(f"{WORKLOADS}/web", {"spec": {"replicas": 1}})).code == 200
    assert (await bea.get(WORKLOADS.replace("shop", "other"))).code == 403
    assert (await bea.get(f"{V1}/tenants")).code == 403
    role = {
        "metadata": {"name": "r"},
        "rules": [{"verbs": ["get"], "apiGroups": ["holdfast.dev"], "resources": ["workloads"]}],
    }
    assert (await bea.post(f"{RBAC}/namespaces/shop/roles", role)).code == 403
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "holdfast:tenant-user"},
        "subjects": [{"kind": "User", "name": "bea"}],
    }
    assert (await bea.post(f"{RBAC}/namespaces/shop/rolebindings", binding)).code == 403
    assert (await bea.merge(f"{PATH}/s1", {"spec": {"closed": True}})).code == 200
    assert (await bea.get(WORKLOADS)).code == 403


async def test_session_can_neither_silence_nor_redirect_its_own_alarm(api: Api) -> None:
    secret = {"tenant": "shop", "name": "hook"}
    kind = {"apiVersion": "holdfast.dev/v1", "kind": "NotificationReceiver"}
    made = {**kind, "metadata": {"name": "pager"}, "spec": {"url": "https://pager.example.com/", "secret": secret}}
    assert (await api.post(RECEIVERS, made)).code == 201
    bea = api.as_user("bea")
    assert (await bea.post(PATH, session(resources=["notificationreceivers"]))).code == 422
    assert (await bea.post(PATH, session())).code == 201
    assert (await bea.get("/apis/holdfast.dev/v1/regions")).code == 200
    assert (await bea.merge(f"{RECEIVERS}/pager", {"spec": {"suspend": True}})).code == 403
    assert (await bea.delete(f"{RECEIVERS}/pager")).code == 403
    assert (await bea.post(RECEIVERS, {**made, "metadata": {"name": "mine"}})).code == 403
    assert (await bea.delete("/apis/holdfast.dev/v1/notifications")).code == 403


async def test_session_is_limited_to_verbs_resources_and_a_reason(api: Api) -> None:
    bea = api.as_user("bea")
    assert (await bea.post(PATH, session(reason="x"))).code == 422
    assert (await bea.post(PATH, session(durationSeconds=7200))).code == 422
    assert (await bea.post(PATH, session(verbs=["*"]))).code == 422
    assert (await bea.post(PATH, session(verbs=["impersonate"]))).code == 422
    assert (await bea.post(PATH, session(resources=["clusterroles"]))).code == 422
    assert (await bea.post(PATH, session(tenant="missing"))).code == 422
    assert (await bea.post(PATH, session(verbs=["list"], resources=["workloads"]))).code == 201
    assert (await bea.get(WORKLOADS)).code == 200
    assert (await bea.post(WORKLOADS, workload("new"))).code == 403
    assert (await bea.merge(f"{PATH}/s1", {"spec": {"durationSeconds": 1800}})).code == 422
    assert (await api.as_user("tim").post(PATH, session("other"))).code == 403


async def test_session_is_reviewed_by_another_person_before_it_is_deleted(api: Api) -> None:
    both, bea = api.as_user("both"), api.as_user("bea")
    review = {"spec": {"review": {"note": "as the incident says"}}}
    assert (await both.post(PATH, session("own"))).code == 201
    assert (await both.merge(f"{PATH}/own", review)).code == 422
    assert (await bea.merge(f"{PATH}/own", review)).code == 403
    assert (await api.delete(f"{PATH}/own")).code == 403
    approver = api.as_user("app")
    assert (await approver.merge(f"{PATH}/own", {"spec": {"closed": True}})).code == 403
    assert (await approver.merge(f"{PATH}/own", review)).code == 200
    assert (await api.get(f"{PATH}/own")).json["spec"]["review"]["reviewer"] == "app"
    assert (await api.merge(f"{PATH}/own", {"spec": {"closed": True}})).code == 200
    assert (await api.delete(f"{PATH}/own")).code == 200
    for index in range(3):
        assert (await bea.post(PATH, session(f"s{index}"))).code == 201
    refused = await bea.post(PATH, session("s4"))
    assert refused.code == 403 and b"nobody has reviewed" in refused.body


class MovedClock:
    """A clock whose wall time can be set back."""

    def __init__(self, now_s: float) -> None:
        self.wall_s, self.passed_s = now_s, 1000.0

    def now(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.passed_s

    async def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


async def test_session_ends_on_the_monotonic_clock_although_the_wall_clock_is_set_back(world: World, api: Api) -> None:
    await api.as_user("bea").post(PATH, session(durationSeconds=600))
    clock = MovedClock(world.ports.clock.now())
    access = GrantedAccess(world.objects, clock)
    bea = from_identity("bea", ("holdfast:break-glass",), credential="t")
    assert access.rows(bea).rows
    clock.wall_s, clock.passed_s = clock.wall_s - 3600, clock.passed_s + 599
    assert access.rows(bea).rows
    clock.passed_s += 2
    assert not access.rows(bea).rows
    late = MovedClock(world.ports.clock.now() + 601)
    assert not GrantedAccess(world.objects, late).rows(bea).rows


async def test_open_session_is_counted_and_has_a_warning_event(world: World, api: Api, tmp_path: Path) -> None:
    await api.as_user("bea").post(PATH, session(tenant="shop"))
    watch = BreakGlassWatch(world.objects, world.app.events, world.ports)
    await watch.start()
    await watch.count()
    await watch.count()

    def gauge(state: str) -> float | None:
        return REGISTRY.get_sample_value("holdfast_break_glass_sessions", {"state": state})

    assert (gauge("open"), gauge("unreviewed")) == (1, 1)
    found = (await api.get("/api/v1/events")).json["items"]
    opened = [event for event in found if event["reason"] == "BreakGlassOpened"]
    assert len(opened) == 1 and opened[0]["type"] == "Warning" and REASON in opened[0]["message"]
    await api.merge(f"{PATH}/s1", {"spec": {"closed": True, "review": {"note": "fine"}}})
    await watch.count()
    assert (gauge("open"), gauge("unreviewed")) == (0, 0)


async def test_session_that_is_closed_before_the_next_count_has_its_event_too(world: World, api: Api) -> None:
    watch = BreakGlassWatch(world.objects, world.app.events, world.ports)
    await watch.count()
    await api.as_user("bea").post(PATH, session(tenant="shop"))
    await api.merge(f"{PATH}/s1", {"spec": {"closed": True}})
    await watch.count()
    found = (await api.get("/api/v1/events")).json["items"]
    assert [event["reason"] for event in found if event["reason"] == "BreakGlassOpened"] == ["BreakGlassOpened"]
