"""A table of attempts to get more rights than one has: each is refused, and recorded exactly once before the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.gate import audit_rows
from holdfast.gate.audit import AUDIT_LOG, REFUSED, AuditRecord, decode_record

from .conftest import V1, WORKLOADS, Api, World
from .escalation_table import ATTEMPTS, MALFORMED_PATHS

PATHS_WITHOUT_A_ROUTE = (f"{V1}/namespaces/shop/absent", "/apis/absent.example.com/v1", "/metrics/absent/x")


async def refusals(world: World) -> list[AuditRecord]:
    """Read from the store, without a flush."""
    records = [decode_record(record.value) for record in await world.store.read_log(AUDIT_LOG, limit=10_000)]
    return [record for record in records if record.result == REFUSED]


@pytest.mark.parametrize("name", ATTEMPTS)
async def test_attempt_is_refused_and_recorded_once(world: World, name: str) -> None:
    attempt = ATTEMPTS[name]
    kind = "application/merge-patch+json" if attempt.method == "PATCH" else "application/json"
    reply = await Api(world.app, attempt.user).call(
        attempt.method, attempt.path, attempt.body, type=kind, **attempt.headers
    )
    assert reply.code in (401, 403), reply.body
    (record,) = await refusals(world)
    assert record.count == 1
    assert record.principal.startswith(attempt.user or "system:anonymous")


@pytest.mark.parametrize(("not_after", "why"), [("Jan  1 00:00:00 2021 GMT", "CertificateExpired")])
async def test_stale_certificate_is_refused_and_recorded_once(world: World, not_after: str, why: str) -> None:
    class Stale(Api):
        def scope(self, method: str, path: str, headers: Any) -> dict[str, Any]:
            made = super().scope(method, path, headers)
            made["holdfast.peer_certificate"]["notAfter"] = not_after
            return made

    assert (await Stale(world.app, "ada").get(WORKLOADS)).code == 401
    (record,) = await refusals(world)
    assert (record.principal, record.reason, record.count) == ("ada", why, 1)


@pytest.mark.parametrize("name", MALFORMED_PATHS)
async def test_malformed_path_is_refused_and_recorded_once_for_whoever_sends_it(world: World, name: str) -> None:
    path = MALFORMED_PATHS[name]
    headers = {"x_holdfast_console": "x", "host": "localhost"} if path.startswith("/console") else {}
    for number, (user, code) in enumerate((("tim", 400), ("ada", 400), ("", 401)), 1):
        reply = await Api(world.app, user).call("GET", path, **headers)
        assert reply.code == code, reply.body
        found = await refusals(world)
        assert len(found) == number and found[-1].count == 1
        assert found[-1].principal.startswith(user or "system:anonymous")
        if user:
            assert (found[-1].reason, found[-1].resource, found[-1].verb) == ("MalformedPath", "paths", "get")
            assert found[-1].message.isprintable()


@pytest.mark.parametrize("path", PATHS_WITHOUT_A_ROUTE)
async def test_well_formed_path_without_a_route_is_not_found_and_leaves_no_record(world: World, path: str) -> None:
    """Such a path names nothing that the server has, for whoever asks, so nothing was denied."""
    for user in ("tim", "ada"):
        assert (await Api(world.app, user).get(path)).code == 404
    assert await refusals(world) == []


async def test_flood_of_malformed_paths_is_counted_in_few_records(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_rows, "AUDIT_PROMPT_BURST", 3)
    tim = Api(world.app, "tim")
    answers = await asyncio.gather(*(tim.get(f"{V1}/../{number}") for number in range(500)))
    assert {answer.code for answer in answers} == {400}
    found = await refusals(world)
    assert sum(record.count for record in found) == 500 and len(found) <= 4
