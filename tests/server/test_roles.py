"""Roles and bindings over the API: what they give, when it ends, and every way to get more than one has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.gate.audit import read_records
from holdfast.model.errors import Forbidden
from holdfast.model.kinds import BY_NAME
from holdfast.model.meta import ObjectMeta
from holdfast.model.principal import from_identity
from holdfast.model.rbac import ROLE_RULES_MAX, SUBJECT_BINDINGS_MAX, RoleBinding, RoleRef, RoleSubject
from holdfast.model.writes import Create, Delete

from . import conftest
from .conftest import V1, WORKLOADS, Api, World, workload

RBAC = "/apis/rbac.authorization.k8s.io/v1"
IN_SHOP = f"{RBAC}/namespaces/shop"
ROLES, BINDINGS = f"{IN_SHOP}/roles", f"{IN_SHOP}/rolebindings"


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: dict[str, tuple[str, ...]] = {
        "ann": (),
        "adm": ("holdfast:tenant-admin:shop",),
        "vic": ("holdfast:viewers",),
        "star*": (),
    }
    monkeypatch.setattr(conftest, "GROUPS", conftest.GROUPS | groups)


def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules)}


def rule(verbs: str, resources: str, group: str = "holdfast.dev", **more: Any) -> dict[str, Any]:
    return {"verbs": verbs.split(), "resources": resources.split(), "apiGroups": [group], **more}


def binding(name: str, ref: str, *users: str, kind: str = "Role") -> dict[str, Any]:
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"} for user in users]
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": ref},
        "subjects": subjects,
    }


async def audited(world: World) -> list[dict[str, Any]]:
    await world.gate.audit.flush()
    return [record for _, record in await read_records(world.store, limit=10_000)]


async def test_bound_role_allows_its_verbs_at_once_and_nothing_after_removal(api: Api) -> None:
    ann = api.as_user("ann")
    assert (await ann.get(WORKLOADS)).code == 403
    assert (await api.post(ROLES, role("deployer", rule("list get create patch", "workloads")))).code == 201
    assert (await api.post(BINDINGS, binding("ann", "deployer", "ann"))).code == 201
    assert (await ann.get(WORKLOADS)).code == 200
    assert (await ann.post(WORKLOADS, workload("web"))).code == 201
    assert (await ann.merge(f"{WORKLOADS}/web", {"spec": {"replicas": 4}})).code == 200
    assert (await ann.delete(f"{WORKLOADS}/web")).code == 403
    assert (await ann.get(WORKLOADS.replace("shop", "other"))).code == 403
    assert (await api.delete(f"{BINDINGS}/ann")).code == 200
    assert (await ann.get(WORKLOADS)).code == 403


async def test_who_may_list_pods_by_a_bound_role_may_list_their_use(api: Api) -> None:
    use, ann = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods", api.as_user("ann")
    assert (await ann.get(use)).code == 403
    assert (await api.post(ROLES, role("reader", rule("list", "pods", group="")))).code == 201
    assert (await api.post(BINDINGS, binding("ann", "reader", "ann"))).code == 201
    assert (await ann.get(use)).code == 200
    assert (await ann.get(use.replace("shop", "other"))).code == 403


async def test_open_watch_ends_after_its_role_is_removed(
    world: World, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.open_streams.STREAM_CREDENTIALS_CHECK_EVERY_S", 0.05)
    await api.post(ROLES, role("reader", rule("list watch", "workloads")))
    await api.post(BINDINGS, binding("ann", "reader", "ann"))
    async with api.as_user("ann").watch(f"{WORKLOADS}?watch=true") as events:
        await asyncio.sleep(0)
        assert events.code == 200 and not events.ended.is_set()
        await api.delete(f"{BINDINGS}/ann")
        await asyncio.wait_for(events.ended.wait(), 10)


async def test_tenant_admin_gives_only_what_it_has(world: World, api: Api) -> None:
    adm = api.as_user("adm")
    assert (await adm.post(ROLES, role("ok", rule("get list", "workloads")))).code == 201
    assert (await adm.post(BINDINGS, binding("user", "holdfast:tenant-user", "ann", kind="ClusterRole"))).code == 201
    assert (await adm.post(BINDINGS, binding("admin", "holdfast:tenant-admin", "ann", kind="ClusterRole"))).code == 201
    refused = [
        (ROLES, role("quota", rule("update", "quotas")), "PrivilegeEscalation"),
        (ROLES, role("wild", rule("*", "workloads")), "WildcardNotPermitted"),
        (ROLES, role("wild2", rule("get", "*")), "WildcardNotPermitted"),
        (ROLES, role("bind", rule("bind escalate", "roles clusterroles", "rbac.authorization.k8s.io")), "Escalation"),
        (ROLES, role("as", rule("impersonate", "users groups", "")), "Escalation"),
        (ROLES, role("holdfast:operator", rule("get", "workloads")), "BuiltInRole"),
        (BINDINGS, binding("op", "holdfast:operator", "adm", kind="ClusterRole"), "PrivilegeEscalation"),
        (BINDINGS, binding("view", "holdfast:viewer", "adm", kind="ClusterRole"), "PrivilegeEscalation"),
        (BINDINGS, binding("none", "missing", "adm"), "RoleNotFound"),
    ]
    for path, body, _reason in refused:
        reply = await adm.post(path, body)
        assert reply.code == 403, (body, reply.body)
    for path in (f"{RBAC}/clusterroles", f"{RBAC}/clusterrolebindings", f"{RBAC}/namespaces/other/roles"):
        assert (await adm.post(path, role("x", rule("get", "workloads")))).code == 403
    reasons = " ".join(r.get("reason", "") for r in await audited(world) if r["principal"] == "adm")
    assert all(reason in reasons for _, _, reason in refused)
    stored = {r["metadata"]["name"] for r in (await api.get(ROLES)).json["items"]}
    assert stored == {"ok"}


async def test_role_is_not_widened_by_update_or_through_a_bound_role(api: Api) -> None:
    adm = api.as_user("adm")
    await adm.post(ROLES, role("ok", rule("get list", "workloads")))
    wider = {"rules": [rule("update", "quotas")]}
    assert (await adm.merge(f"{ROLES}/ok", wider)).code == 403
    # A person whose bound role may write roles gives no more than the person has either.
    await api.post(ROLES, role("roles", rule("create get", "roles", "rbac.authorization.k8s.io")))
    await api.post(BINDINGS, binding("ann", "roles", "ann"))
    ann = api.as_user("ann")
    assert (await ann.post(ROLES, role("mine", rule("get", "roles", "rbac.authorization.k8s.io")))).code == 201
    assert (await ann.post(ROLES, role("more", rule("get", "workloads")))).code == 403
    assert (await ann.post(BINDINGS, binding("self", "ok", "ann"))).code == 403


async def test_verbs_bind_and_escalate_lift_the_comparison(api: Api) -> None:
    group = "rbac.authorization.k8s.io"
    await api.post(ROLES, role("target", rule("get", "quotas")))
    grants = (rule("create", "rolebindings roles", group), rule("bind", "roles", group, resourceNames=["target"]))
    await api.post(ROLES, role("binder", *grants))
    await api.post(BINDINGS, binding("ann", "binder", "ann"))
    ann = api.as_user("ann")
    assert (await ann.post(BINDINGS, binding("t", "target", "ann"))).code == 201
    assert (await ann.post(BINDINGS, binding("b", "binder", "ann"))).code == 201  # ann has all of it
    assert (await ann.post(ROLES, role("more", rule("get", "workloads")))).code == 403
    await api.post(ROLES, role("escalator", rule("escalate", "roles", group)))
    await api.post(BINDINGS, binding("e", "escalator", "ann"))
    assert (await ann.post(ROLES, role("more", rule("get", "workloads")))).code == 201


async def test_operators_bind_operators_and_builtin_roles_stay_as_they_are(api: Api) -> None:
    bindings = f"{RBAC}/clusterrolebindings"
    assert (await api.post(bindings, binding("ops", "holdfast:operator", "ann", kind="ClusterRole"))).code == 201
    ann = api.as_user("ann")
    assert (await ann.post("/api/v1/namespaces", {"metadata": {"name": "new"}})).code == 201
    assert (await ann.get("/metrics")).code == 200
    for name in ("holdfast:viewer", "holdfast:mine"):
        assert (await ann.post(f"{RBAC}/clusterroles", role(name, rule("get", "nodes")))).code == 403
    await api.delete(f"{bindings}/ops")
    assert (await ann.get("/metrics")).code == 403


async def test_components_cannot_get_roles_and_role_references_are_bounded(api: Api) -> None:
    bindings = f"{RBAC}/clusterrolebindings"
    body = binding("nodes", "holdfast:operator", kind="ClusterRole")
    body["subjects"] = [{"kind": "Group", "name": "holdfast:nodes"}]
    assert (await api.post(bindings, body)).code == 422
    body["subjects"] = [{"kind": "User", "name": "holdfast:node:west:n1"}]
    assert (await api.post(bindings, body)).code == 201
    assert (await api.as_user("holdfast:node:west:n1").get(f"{RBAC}/clusterroles")).code == 403
    rules = [rule("get", "workloads")] * (ROLE_RULES_MAX + 1)
    assert (await api.post(ROLES, role("big", *rules))).code == 422
    for path in ("a/b", "..", "a%2fb"):
        assert (await api.post(ROLES, role(path, rule("get", "workloads")))).code == 422


async def test_subject_with_a_star_matches_no_other_subject(api: Api) -> None:
    await api.post(ROLES, role("reader", rule("list", "workloads")))
    await api.post(BINDINGS, binding("star", "reader", "star-of-others"))
    assert (await api.as_user("star*").get(WORKLOADS)).code == 403
    assert (await api.post(BINDINGS, binding("star2", "reader", "star*"))).code == 422


async def test_bindings_of_one_subject_are_bounded(api: Api) -> None:
    await api.post(ROLES, role("reader", rule("list", "workloads")))
    for index in range(SUBJECT_BINDINGS_MAX):
        assert (await api.post(BINDINGS, binding(f"b{index}", "reader", "ann"))).code == 201
    reply = await api.post(BINDINGS, binding("last", "reader", "ann"))
    assert reply.code == 403 and b"next: put their rules into one role" in reply.body


async def test_impersonation_needs_the_verb_and_never_reaches_components(world: World, api: Api) -> None:
    tim = api.as_user("tim")
    assert (await tim.get(WORKLOADS, impersonate_user="ada", impersonate_group="holdfast:operators")).code == 403
    await api.post(f"{RBAC}/clusterroles", role("as-tim", rule("impersonate", "users", "", resourceNames=["tim"])))
    await api.post(f"{RBAC}/clusterrolebindings", binding("as-tim", "as-tim", "ann", kind="ClusterRole"))
    ann = api.as_user("ann")
    assert (await ann.get(WORKLOADS, impersonate_user="ada")).code == 403
    assert (await ann.get(WORKLOADS, impersonate_user="tim", impersonate_group="holdfast:operators")).code == 403
    assert (await ann.get(WORKLOADS, impersonate_user="tim")).code == 403  # the name alone has no group
    assert (await api.get(WORKLOADS, impersonate_user="tim", impersonate_group="holdfast:tenant:shop")).code == 200
    assert (await api.get(WORKLOADS, impersonate_user="x", impersonate_group="holdfast:controllers")).code == 403
    assert (await api.get(WORKLOADS, impersonate_user="x", impersonate_uid="1")).code == 400
    assert [r for r in await audited(world) if r["verb"] in ("get", "list") and r["principal"] == "tim"]


@pytest.mark.parametrize(
    "path",
    [
        "/apis/holdfast.dev/v1/namespaces/shop/../other/workloads",
        "/apis/holdfast.dev/v1/namespaces/shop%2f..%2fother/workloads",
        "/apis/holdfast.dev/v1/namespaces/Other/workloads",
        "/apis/holdfast.dev/v1//namespaces/other/workloads",
        "/apis/holdfast.dev/v1/namespaces/other/workloads/",
        "/APIS/holdfast.dev/v1/namespaces/other/workloads",
        "/apis/holdfast.dev/v1/namespaces/other/Workloads",
        "/apis/holdfast.dev/v1/namespaces/other/workloads/.",
        "/apis/holdfast.dev/v1/workloads?fieldSelector=metadata.namespace%3Dshop",
    ],
)
async def test_path_forms_of_another_tenant_are_refused(api: Api, path: str) -> None:
    reply = await api.as_user("tim").get(path)
    assert reply.code in (400, 403, 404), reply.body
    assert b'"items"' not in reply.body


async def test_access_reviews_follow_bound_roles(api: Api) -> None:
    await api.post(ROLES, role("reader", rule("list", "workloads")))
    await api.post(BINDINGS, binding("ann", "reader", "ann"))
    where = {"verb": "list", "group": "holdfast.dev", "resource": "workloads", "namespace": "shop"}
    review = {"spec": {"resourceAttributes": where}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await api.as_user("ann").post(path, review)).json["status"]["allowed"] is True
    assert (await api.as_user("star*").post(path, review)).json["status"]["allowed"] is False
    other = {"spec": {"user": "ann", "resourceAttributes": where}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert (await api.post(path, other)).json["status"]["allowed"] is True
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    found = (await api.as_user("ann").post(path, {"spec": {"namespace": "shop"}})).json["status"]["resourceRules"]
    assert {"verbs": ["list"], "apiGroups": ["holdfast.dev"], "resources": ["workloads"]} in found


async def test_owner_reference_to_another_tenant_deletes_nothing(world: World, api: Api) -> None:
    theirs = WORKLOADS.replace("shop", "other")
    uid = (await api.post(theirs, workload("theirs"))).json["metadata"]["uid"]
    body = workload("mine")
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "theirs", "uid": uid, "blockOwnerDeletion": True}
    ]
    tim = api.as_user("tim")
    assert (await tim.post(WORKLOADS, body)).code == 201  # as in Kubernetes, owners are looked up in the own namespace
    assert (await tim.delete(f"{theirs}/theirs")).code == 403
    assert "deletionTimestamp" not in (await api.get(f"{theirs}/theirs")).json["metadata"]


async def test_status_and_labels_give_no_rights(api: Api) -> None:
    tim = api.as_user("tim")
    await tim.post(WORKLOADS, workload("web"))
    current = (await tim.get(f"{WORKLOADS}/web")).json
    reply = await tim.put(f"{WORKLOADS}/web/status", {**current, "status": {"summary": {"bound": 99}}})
    assert reply.code == 403
    labels = {"holdfast.dev/built-in": "true", "rbac.authorization.kubernetes.io/aggregate-to-admin": "true"}
    assert (await tim.merge(f"{WORKLOADS}/web", {"metadata": {"labels": labels}})).code == 200
    aggregated = {"metadata": {"name": "wide", "labels": labels}, "rules": [rule("*", "*", "*")]}
    assert (await api.as_user("adm").post(ROLES, aggregated)).code == 403
    assert (await tim.get(f"{V1}/nodes")).code in (403, 404)


async def test_wrong_and_ended_credentials_are_refused_and_audited(world: World, api: Api) -> None:
    elsewhere = world.tokens.issue("elsewhere", "ann", ("holdfast:operators",), cells=("west",))
    expired = world.tokens.issue("expired", "ann", ("holdfast:operators",), expires_at_s=1.0)
    revoked = world.tokens.issue("revoked", "ann", ("holdfast:operators",))
    world.tokens.revoke("revoked")
    for token in (elsewhere, expired, revoked, "hf_" + "x" * 43, "ey.a.b", "x" * 20_000):
        reply = await Api(world.app, "", [("authorization", f"Bearer {token}")]).get(WORKLOADS)
        assert reply.code == 401 and token.encode() not in reply.body
    reasons = {r["reason"] for r in await audited(world) if r["verb"] == "authenticate"}
    assert {"TokenForOtherCell", "TokenExpired", "TokenUnknown"} <= reasons


async def test_commit_and_apply_give_no_more_than_the_verbs(world: World, api: Api) -> None:
    """A tenant's user may commit writes, but not of roles; who may only patch does not create by apply."""
    made = RoleBinding(
        metadata=ObjectMeta(name="own", namespace="shop"),
        role_ref=RoleRef(kind="ClusterRole", name="holdfast:tenant-user"),
        subjects=(RoleSubject(kind="User", name="ann"),),
    )
    user = from_identity("tim", ("holdfast:tenant:shop",), credential="t")
    with pytest.raises(Forbidden):
        await world.gate.commit(user, [Create(made)])
    admin = from_identity("adm", ("holdfast:tenant-admin:shop",), credential="t")
    await world.gate.commit(admin, [Create(made)])
    assert (await api.as_user("tim").delete(f"{BINDINGS}/own")).code == 403
    held = world.objects.get(BY_NAME["RoleBinding"], "shop", "own")
    assert held is not None
    with pytest.raises(Forbidden):
        await world.gate.commit(user, [Delete("RoleBinding", held.key, held.uid)])
    await api.delete(f"{BINDINGS}/own")
    await api.post(ROLES, role("patcher", rule("get patch", "workloads")))
    await api.post(BINDINGS, binding("ann", "patcher", "ann"))
    assert (await api.as_user("ann").apply(f"{WORKLOADS}/new", workload("new"))).code == 403
    await api.post(WORKLOADS, workload("there"))
    assert (await api.as_user("ann").apply(f"{WORKLOADS}/there", workload("there"), force=True)).code == 200
