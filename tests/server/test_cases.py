"""API cases: every file of cases/ runs in order against a fresh server with a real store.

    request:   METHOD: path, body or raw text, type, headers, as (user). A relative path is in namespaces/shop of $v1.
    response:  status, json, text, names (of listed items), headers, warnings, save (its name in later cases)
    each:      values of $each; the case runs once for every value

A mapping in `json` lists the fields to compare, null is an absent field, and ~text is a regular expression. Lists are
compared in full. $name.path is a value of a saved response.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import V1, WORKLOADS, Api, Reply

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE")
TYPES = {
    "merge": "application/merge-patch+json",
    "json-patch": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
VARIABLE = re.compile(r"\$(\w+)((?:\.\w+)*)")


def resolve(value: Any, saved: dict[str, Any]) -> Any:
    """The value with variables replaced. A string that is one variable becomes the variable's value."""
    if isinstance(value, dict):
        return {key: resolve(inner, saved) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, saved) for inner in value]
    if not isinstance(value, str):
        return value
    whole = VARIABLE.fullmatch(value)
    return look_up(whole, saved) if whole else VARIABLE.sub(lambda match: str(look_up(match, saved)), value)


def look_up(match: re.Match[str], saved: dict[str, Any]) -> Any:
    if match[1] not in saved:
        return match[0]  # a name such as $retainKeys
    found = saved[match[1]]
    for part in filter(None, match[2].split(".")):
        found = found[int(part) if isinstance(found, list) else part]
    return found


def difference(expected: Any, found: Any, path: str = "") -> str:
    """Where the response lacks the expected part; empty if it has it."""
    if isinstance(expected, dict) and isinstance(found, dict):
        parts = (difference(inner, found.get(key), f"{path}.{key}") for key, inner in expected.items())
        return next(filter(None, parts), "")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(expected, found, strict=True)))
        return next(filter(None, parts), "")
    if isinstance(expected, str) and expected.startswith("~"):
        return "" if found is not None and re.search(expected[1:], str(found)) else f"{path}: {found!r} !~ {expected}"
    return "" if expected == found else f"{path}: expected {expected!r}, found {found!r}"


async def send(api: Api, request: dict[str, Any]) -> Reply:
    ((method, path),) = ((name, request[name]) for name in METHODS if name in request)
    path = path if path.startswith("/") else f"{WORKLOADS.removesuffix('/workloads')}/{path}"
    body = request["raw"].encode() if "raw" in request else request.get("body")
    type_ = request.get("type", "merge" if method == "PATCH" else "application/json")
    user = api.as_user(request["as"]) if "as" in request else api
    return await user.call(method, path, body, type=TYPES.get(type_, type_), **request.get("headers", {}))


def parts(reply: Reply, expected: dict[str, Any]) -> dict[str, Any]:
    """The parts of the response that a case may expect."""
    json: Any = reply.json if expected.keys() & {"json", "names", "save"} else None
    names = [item["metadata"]["name"] for item in json["items"]] if "names" in expected else []
    warnings = " ".join(reply.warnings)
    return {"json": json, "names": names, "text": reply.body.decode(), "headers": reply.headers, "warnings": warnings}


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
async def test_requests_of_case_file_get_the_expected_responses(api: Api, file: Path) -> None:
    saved: dict[str, Any] = {"v1": V1}
    for case in yaml.safe_load(file.read_text()):
        for each in case.get("each", [None]):
            saved["each"] = resolve(each, saved)
            reply = await send(api, resolve(case["request"], saved))
            expected = resolve(case["response"], saved)
            where = f"{file.name}: {case['name']}" + (f" ({each})" if each is not None else "")
            assert reply.code == expected["status"], f"{where}: status {reply.code}: {reply.body[:500]!r}"
            found = parts(reply, expected)
            for part in expected.keys() - {"status", "save"}:
                assert not (missing := difference(expected[part], found[part], part)), f"{where}: {missing}"
            saved[expected.get("save", "last")] = found["json"]
