"""The review kinds of Kubernetes: who am I, and what may I do. Nothing is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.gate.authorize import path_refusal, rules_for
from holdfast.model.errors import BadRequest, Refused, Unauthorized
from holdfast.model.principal import AUTHENTICATED, Principal, from_identity
from holdfast.server.request import Request, Response, json_response
from holdfast.server.request_bodies import decode_object_body

if TYPE_CHECKING:
    from holdfast.server.app import Application

AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io", "authentication.k8s.io"
REVIEWS: dict[tuple[str, str], str] = {
    (AUTHORIZATION, "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    (AUTHORIZATION, "selfsubjectrulesreviews"): "SelfSubjectRulesReview",
    (AUTHORIZATION, "subjectaccessreviews"): "SubjectAccessReview",
    (AUTHENTICATION, "selfsubjectreviews"): "SelfSubjectReview",
    (AUTHENTICATION, "tokenreviews"): "TokenReview",
}


async def review(app: Application, request: Request) -> Response:
    """`POST /apis/GROUP/v1/REVIEWS`"""
    _, group, _, plural = request.path.strip("/").split("/")
    kind = REVIEWS[group, plural]
    data = decode_object_body(request.content_type, await request.body())
    if data.get("kind") not in (None, "", kind):
        raise BadRequest(f"kind does not match the URL (expected {kind})")
    spec = data.get("spec") or {}
    if not isinstance(spec, dict):
        raise BadRequest("spec must be an object")
    result = _REVIEWERS[kind](app, request.principal, spec)
    meta = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    return json_response(
        {"kind": kind, "apiVersion": f"{group}/v1", "metadata": meta, "spec": spec, "status": result}, 201
    )


def _review_own_access(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    return _review_access(app, who, spec)


def _review_subject_access(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    user, groups = spec.get("user") or "", spec.get("groups") or []
    if not isinstance(user, str) or not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
        raise BadRequest("spec.user must be a string and spec.groups a list of strings")
    return _review_access(app, from_identity(user, tuple(groups), credential="review"), spec)


def _review_access(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    attributes = spec.get("resourceAttributes")
    path = spec.get("nonResourceAttributes")
    if isinstance(attributes, dict):
        text = {key: value for key, value in attributes.items() if isinstance(value, str)}
        refused = _resource_access(app, who, text)
    elif isinstance(path, dict):
        who = app.access.expand(who)
        named = (str(path.get("path", "")), str(path.get("verb", "get")))
        refused = path_refusal(who, *named, granted=app.access.rows(who))
    else:
        raise BadRequest("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be set")
    if refused is None:
        return {"allowed": True, "reason": "allowed by the role table of Holdfast"}
    return {"allowed": False, "reason": refused.message}


def _resource_access(app: Application, who: Principal, attributes: dict[str, str]) -> Refused | None:
    resource = attributes.get("resource", "")
    return app.access_refusal(
        app.access.expand(who),
        attributes.get("verb", ""),
        resource,
        attributes.get("subresource", ""),
        attributes.get("namespace", ""),
        attributes.get("name", ""),
    )


def _review_rules(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    namespace = spec.get("namespace") or ""
    if not isinstance(namespace, str) or not namespace:
        raise BadRequest("spec.namespace: required")
    return rules_for(who, namespace, cell=app.cell, granted=app.access.rows(who))


def _user_info(who: Principal) -> dict[str, Any]:
    info: dict[str, Any] = {"username": who.name, "groups": list(who.groups)}
    if who.uid:
        info["uid"] = who.uid
    if who.credential:
        info["extra"] = {"holdfast.dev/credential": [who.credential.partition(":")[0]]}
    return info


def _review_self(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    return {"userInfo": _user_info(who)}


def _review_token(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    token = spec.get("token")
    if not isinstance(token, str) or not token:
        raise BadRequest("spec.token: required")
    try:
        found = app.authenticator.from_token(token)
    except Unauthorized:
        return {"authenticated": False, "error": "the token is unknown or expired"}
    return {"authenticated": AUTHENTICATED in found.groups, "user": _user_info(found)}


_REVIEWERS = {
    "SelfSubjectAccessReview": _review_own_access,
    "SubjectAccessReview": _review_subject_access,
    "SelfSubjectRulesReview": _review_rules,
    "SelfSubjectReview": _review_self,
    "TokenReview": _review_token,
}
