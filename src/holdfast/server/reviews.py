"""Who am I, and what may I do: the review kinds of Kubernetes. Nothing of them is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.gate.authorize import authorize, authorize_path, rules_for
from holdfast.gate.principal import AUTHENTICATED, Principal, from_identity
from holdfast.model.errors import BadRequest, Refused, Unauthorized
from holdfast.server.bodies import decode_object_body
from holdfast.server.request import Request, Response, json_response

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
        raise BadRequest(f"the kind in the data does not match the expected one ({kind})")
    spec = data.get("spec") or {}
    if not isinstance(spec, dict):
        raise BadRequest("spec must be an object")
    answer = _ANSWERS[kind](app, request.principal, spec)
    meta = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    return json_response(
        {"kind": kind, "apiVersion": f"{group}/v1", "metadata": meta, "spec": spec, "status": answer}, 201
    )


def _self_access(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    return _access(app, who, spec)


def _subject_access(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    user, groups = spec.get("user") or "", spec.get("groups") or []
    if not isinstance(user, str) or not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
        raise BadRequest("spec.user is text and spec.groups a list of text")
    return _access(app, from_identity(user, tuple(groups), credential="review"), spec)


def _access(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    asked = spec.get("resourceAttributes")
    path = spec.get("nonResourceAttributes")
    if isinstance(asked, dict):
        text = {key: value for key, value in asked.items() if isinstance(value, str)}
        refused = _resource_access(app, who, text)
    elif isinstance(path, dict):
        refused = authorize_path(who, str(path.get("path", "")), str(path.get("verb", "get")))
    else:
        raise BadRequest("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be given")
    if refused is None:
        return {"allowed": True, "reason": "allowed by the role table of Holdfast"}
    return {"allowed": False, "reason": refused.message}


def _resource_access(app: Application, who: Principal, asked: dict[str, str]) -> Refused | None:
    resource = asked.get("resource", "")
    return authorize(
        who, asked.get("verb", ""), resource, asked.get("subresource", ""), asked.get("namespace", ""),
        asked.get("name", ""), cell=app.cell,
    )  # fmt: skip


def _rules(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    namespace = spec.get("namespace") or ""
    if not isinstance(namespace, str) or not namespace:
        raise BadRequest("no namespace on request: spec.namespace says where the rules are asked for")
    return rules_for(who, namespace, cell=app.cell)


def _user_info(who: Principal) -> dict[str, Any]:
    info: dict[str, Any] = {"username": who.name, "groups": list(who.groups)}
    if who.uid:
        info["uid"] = who.uid
    if who.credential:
        info["extra"] = {"holdfast.dev/credential": [who.credential.partition(":")[0]]}
    return info


def _self(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    return {"userInfo": _user_info(who)}


def _token(app: Application, who: Principal, spec: dict[str, Any]) -> dict[str, Any]:
    token = spec.get("token")
    if not isinstance(token, str) or not token:
        raise BadRequest("spec.token is missing")
    try:
        found = app.authenticator.from_token(token)
    except Unauthorized:
        return {"authenticated": False, "error": "the token is not known, or no longer valid"}
    return {"authenticated": AUTHENTICATED in found.groups, "user": _user_info(found)}


_ANSWERS = {
    "SelfSubjectAccessReview": _self_access,
    "SubjectAccessReview": _subject_access,
    "SelfSubjectRulesReview": _rules,
    "SelfSubjectReview": _self,
    "TokenReview": _token,
}
