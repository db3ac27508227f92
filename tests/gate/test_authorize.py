"""The authorization matrix: principals, resources, verbs and scopes, compared with a table written by hand.

The table is independent of the code: it lists what is allowed, and everything else must be refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from holdfast.gate.authorize import CALL_ROLES, access_refusal, call_refusal, path_refusal, rules_for
from holdfast.model.kinds import ALL
from holdfast.model.ownership import DELETERS, OWNERS
from holdfast.model.principal import Principal, controller, from_identity

PRINCIPALS: dict[str, Principal] = {
    "operator": from_identity("ann", ("holdfast:operators",), credential="t"),
    "viewer": from_identity("vic", ("holdfast:viewers",), credential="t"),
    "shop user": from_identity("bob", ("holdfast:tenant:shop",), credential="t"),
    "two tenants": from_identity("tom", ("holdfast:tenant:shop", "holdfast:tenant:bank"), credential="t"),
    "nobody": from_identity("nil", (), credential="t"),
    "false groups": from_identity(
        "eve", ("operators", "holdfast:operator", "tenant:shop", "holdfast:nodes"), credential="t"
    ),
    "node n1": from_identity("holdfast:node:north:n1", ("holdfast:nodes",), credential="c"),
    "node of south": from_identity("holdfast:node:south:n1", ("holdfast:nodes",), credential="c"),
    "region north": from_identity("holdfast:region:north", ("holdfast:regions",), credential="c"),
    "scheduler": controller("scheduler", cell="north"),
    "replicate": controller("replicate", cell="north"),
}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
READS = "get list watch"
PLURALS = (*(k.plural for k in ALL), "namespaces")
NAMESPACED = {
    "quotas",
    "grants",
    "workloads",
    "cronworkloads",
    "assignments",
    "grantcopies",
    "replicas",
    "schedulingrequests",
    "reservations",
    "bindings",
    "decisions",
    "endpoints",
    "events",
    "leases",
    "roles",
    "rolebindings",
    "volumeclaims",
    "volumes",
}
PLACES = ("", "shop", "bank")

# principal → (resources, verbs, namespaces) allowed without a name or selector; "" is the cluster scope.
_ALL_NAMESPACED = " ".join(sorted(NAMESPACED))
_NOT_SECRETS = " ".join(plural for plural in PLURALS if plural != "secrets")
ALLOWED: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "operator": [("*", " ".join(VERBS), PLACES)],
    "viewer": [(_NOT_SECRETS, READS, PLACES)],
    "shop user": [
        ("workloads cronworkloads events secrets configmaps volumeclaims", " ".join(VERBS), ("shop",)),
        (_ALL_NAMESPACED, READS, ("shop",)),
        ("replicas volumes", "delete", ("shop",)),
        ("regions priorityclasses", READS, PLACES),
    ],
    "two tenants": [
        ("workloads cronworkloads events secrets configmaps volumeclaims", " ".join(VERBS), ("shop", "bank")),
        (_ALL_NAMESPACED, READS, ("shop", "bank")),
        ("replicas volumes", "delete", ("shop", "bank")),
        ("regions priorityclasses", READS, PLACES),
    ],
    "nobody": [],
    "false groups": [],
    "node n1": [("events", "create update patch", PLACES)],
    "node of south": [],
    "region north": [],
    "scheduler": [
        (_NOT_SECRETS, READS, PLACES),
        ("events leases", " ".join(VERBS), PLACES),
        ("terms", "create update patch", PLACES),
    ],
    "replicate": [
        (_NOT_SECRETS, READS, PLACES),
        ("events leases", " ".join(VERBS), PLACES),
        ("terms", "create update patch", PLACES),
        ("replicas schedulingrequests", "create update patch delete", PLACES),
    ],
}


def cells() -> Iterator[tuple[str, str, str, str, bool]]:
    for (name, rows), plural, verb, place in itertools.product(ALLOWED.items(), PLURALS, VERBS, PLACES):
        allowed = any(
            (which == "*" or plural in which.split()) and verb in verbs.split() and place in places
            for which, verbs, places in rows
        )
        yield name, plural, verb, place, allowed


def test_authorization_matrix_in_region_matches_table() -> None:
    wrong = [
        (name, verb, plural, place, "should be allowed" if allowed else "should be refused")
        for name, plural, verb, place, allowed in cells()
        if (access_refusal(PRINCIPALS[name], verb, plural, "", place, cell="north") is None) != allowed
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("who", "verb", "resource", "sub", "ns", "name", "fields", "cell", "allowed"),
    [
        # Regions: the identity of the global cell, no other election record.
        ("region north", "get", "terms", "", "", "identity", {}, "global", True),
        ("region north", "watch", "terms", "", "", "", {"metadata.name": "identity"}, "global", True),
        ("region north", "get", "terms", "", "", "authority", {}, "global", False),
        ("region north", "list", "terms", "", "", "", {}, "global", False),
        ("region north", "update", "terms", "", "", "identity", {}, "global", False),
        # Tenants: their own by name, never a list of all.
        ("shop user", "get", "tenants", "", "", "shop", {}, "global", True),
        ("shop user", "get", "tenants", "", "", "bank", {}, "global", False),
        ("shop user", "get", "namespaces", "", "", "shop", {}, "global", True),
        ("shop user", "list", "tenants", "", "", "", {}, "global", False),
        ("shop user", "watch", "tenants", "", "", "", {"metadata.name": "shop"}, "global", True),
        ("shop user", "update", "workloads", "scale", "shop", "web", {}, "global", True),
        ("shop user", "get", "workloads", "status", "shop", "web", {}, "global", True),
        ("shop user", "update", "workloads", "status", "shop", "web", {}, "global", False),
        ("shop user", "get", "replicas", "", "shop", "r", {}, "north", True),
        ("shop user", "delete", "replicas", "", "bank", "r", {}, "north", False),
        ("shop user", "impersonate", "users", "", "", "ann", {}, "global", False),
        ("operator", "impersonate", "users", "", "", "bob", {}, "global", True),
        # Nodes: bindings and replicas only with a selector on their own node, their own node by name, their own cell.
        ("node n1", "watch", "bindings", "", "", "", {"node": "n1"}, "north", True),
        ("node n1", "watch", "bindings", "", "", "", {"spec.node": "n1"}, "north", True),
        ("node n1", "watch", "bindings", "", "", "", {"node": "n2"}, "north", False),
        ("node n1", "get", "bindings", "", "shop", "b", {}, "north", False),
        ("node n1", "get", "bindings", "", "shop", "b", {"node": "n1"}, "north", True),
        ("node n1", "get", "nodes", "", "", "n1", {}, "north", True),
        ("node n1", "patch", "nodes", "status", "", "n1", {}, "north", True),
        ("node n1", "patch", "nodes", "status", "", "n2", {}, "north", False),
        ("node n1", "list", "nodes", "", "", "", {}, "north", False),
        ("node n1", "get", "workloads", "", "shop", "web", {}, "north", False),
        ("node n1", "watch", "bindings", "", "", "", {"node": "n1"}, "south", False),
        ("node of south", "watch", "bindings", "", "", "", {"node": "n1"}, "north", False),
        # A region at the global cell.
        ("region north", "list", "tenants", "", "", "", {}, "global", True),
        ("region north", "watch", "policyrevisions", "", "", "", {}, "global", True),
        ("region north", "watch", "assignments", "", "", "", {"region": "north"}, "global", True),
        ("region north", "watch", "assignments", "", "", "", {"region": "south"}, "global", False),
        ("region north", "watch", "assignments", "", "", "", {}, "global", False),
        ("region north", "list", "grants", "", "", "", {"region": "north"}, "global", True),
        ("region north", "patch", "grants", "status", "shop", "g", {}, "global", True),
        ("region north", "patch", "grants", "", "shop", "g", {}, "global", False),
        ("region north", "patch", "regions", "status", "", "north", {}, "global", True),
        ("region north", "patch", "regions", "status", "", "south", {}, "global", False),
        ("region north", "create", "endpoints", "", "shop", "e", {}, "global", True),
        ("region north", "list", "workloads", "", "shop", "", {}, "global", False),
        ("region north", "list", "quotas", "", "shop", "", {}, "global", False),
        ("region north", "list", "tenants", "", "", "", {}, "south", False),
        # Controllers: as field ownership says.
        ("scheduler", "patch", "schedulingrequests", "status", "shop", "s", {}, "north", True),
        ("scheduler", "patch", "replicas", "status", "shop", "s", {}, "north", False),
        ("scheduler", "delete", "bindings", "", "shop", "s", {}, "north", False),
        # Every authenticated principal.
        ("nobody", "create", "selfsubjectaccessreviews", "", "", "", {}, "global", True),
        ("nobody", "create", "selfsubjectrulesreviews", "", "", "", {}, "global", True),
        ("nobody", "create", "subjectaccessreviews", "", "", "", {}, "global", False),
        ("nobody", "create", "tokenreviews", "", "", "", {}, "global", False),
    ],
)
def test_authorization_by_name_and_selector_matches_table(  # noqa: PLR0917 - the columns of the table above
    who: str, verb: str, resource: str, sub: str, ns: str, name: str, fields: dict[str, str], cell: str, allowed: bool
) -> None:
    answer = access_refusal(PRINCIPALS[who], verb, resource, sub, ns, name, fields=fields, cell=cell)
    assert (answer is None) == allowed


@pytest.mark.parametrize(
    ("who", "verb", "nodes", "allowed"),
    [
        ("scheduler", "reserve", (), True),
        ("scheduler", "bind", (), True),
        ("scheduler", "release", (), False),
        ("replicate", "reserve", (), False),
        ("operator", "reserve", (), False),
        ("operator", "renew", ("n1",), False),
        ("shop user", "bind", (), False),
        ("node n1", "renew", ("n1",), True),
        ("node n1", "renew", ("n1", "n2"), False),
        ("node n1", "reserve", (), False),
        ("node of south", "renew", ("n1",), False),
        ("node n1", "commit", (), True),
        ("shop user", "commit", (), True),
        ("viewer", "commit", (), False),
        ("nobody", "commit", (), False),
        ("operator", "nonsense", (), False),
    ],
)
def test_placement_call_is_allowed_for_its_role_only(
    who: str, verb: str, nodes: tuple[str, ...], allowed: bool
) -> None:
    assert (call_refusal(PRINCIPALS[who], verb, nodes=nodes, cell="north") is None) == allowed


def test_release_call_is_allowed_for_release_controller() -> None:
    assert call_refusal(controller("release", cell="north"), "release", cell="north") is None


def test_repair_writes_its_own_block_and_neither_places_nor_deletes() -> None:
    """It requests a release in `status.repair`; the release controller acts on it."""
    repair = controller("repair", cell="north")
    assert [verb for verb in CALL_ROLES if call_refusal(repair, verb, cell="north") is None] == []
    groups = {f"{kind}.{group}" for kind, rows in OWNERS.items() for group, roles in rows.items() if "repair" in roles}
    assert groups == {"Replica.status.repair"}
    assert [kind for kind, roles in DELETERS.items() if "repair" in roles] == []


def test_hollow_host_is_limited_to_its_prefix() -> None:
    host = from_identity("holdfast:hollow:north:hollow-", ("holdfast:hollow-nodes",), credential="c")
    assert call_refusal(host, "renew", nodes=["hollow-1", "hollow-2"], cell="north") is None
    assert call_refusal(host, "renew", nodes=["hollow-1", "n1"], cell="north") is not None
    assert access_refusal(host, "watch", "bindings", fields={"node": "hollow-7"}, cell="north") is None
    assert access_refusal(host, "watch", "bindings", fields={"node": "n7"}, cell="north") is not None
    assert access_refusal(host, "watch", "bindings", cell="north") is not None


def test_access_refusal_has_kubernetes_message() -> None:
    answer = access_refusal(PRINCIPALS["shop user"], "list", "workloads.holdfast.dev", "", "bank")
    assert answer is not None
    assert answer.message == (
        'workloads.holdfast.dev is forbidden: User "bob" cannot list resource "workloads" in API group "holdfast.dev" '
        'in the namespace "bank"'
    )
    answer = access_refusal(PRINCIPALS["nobody"], "get", "nodes", "status", name="n1")
    assert answer is not None
    assert answer.message.startswith(
        'nodes.holdfast.dev "n1" is forbidden: User "nil" cannot get resource "nodes/status"'
    )
    assert answer.message.endswith("at the cluster scope")
    assert answer.facts == {"name": "n1", "group": "holdfast.dev", "kind": "nodes"}


def test_path_access_depends_on_role() -> None:
    for path in ("/api", "/apis/holdfast.dev/v1", "/openapi/v3", "/version/", "/healthz"):
        assert path_refusal(PRINCIPALS["nobody"], path) is None
    assert path_refusal(PRINCIPALS["nobody"], "/metrics") is not None
    assert path_refusal(from_identity("prom", ("holdfast:monitors",), credential="t"), "/metrics") is None
    assert path_refusal(from_identity("prom", ("holdfast:monitors",), credential="t"), "/metrics", "post") is not None
    assert path_refusal(from_identity("prom", ("holdfast:monitors",), credential="t"), "/endpoints/shop") is not None
    assert path_refusal(PRINCIPALS["viewer"], "/metrics") is None
    assert path_refusal(PRINCIPALS["viewer"], "/debug", "post") is not None


def test_rules_review_matches_authorization() -> None:
    rules = rules_for(PRINCIPALS["shop user"], "shop", cell="global")["resourceRules"]
    writable = [rule for rule in rules if "workloads" in rule["resources"] and rule["apiGroups"] == ["holdfast.dev"]]
    assert [rule["verbs"] for rule in writable] == [sorted(VERBS)]
    assert any(rule.get("resourceNames") == ["shop"] for rule in rules)
    elsewhere = rules_for(PRINCIPALS["shop user"], "bank", cell="global")["resourceRules"]
    assert not any("workloads" in rule["resources"] for rule in elsewhere)
    assert {"verbs": ["*"], "nonResourceURLs": ["*"]} in rules_for(PRINCIPALS["operator"])["nonResourceRules"]


def test_notices_are_for_components_and_operators() -> None:
    allowed = {
        cell: {name for name, who in PRINCIPALS.items() if call_refusal(who, "notify", cell=cell) is None}
        for cell in ("global", "north")
    }
    assert allowed["global"] == {"operator", "region north", "scheduler", "replicate"}
    assert allowed["north"] == {"operator", "node n1", "scheduler", "replicate"}
