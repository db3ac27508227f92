"""Every built-in role and one custom role, for every kind, verb, tenant and cell, against the application in process.

Roles are given by bindings, as an operator would give them; in a region the link has copied them. `pytest -s` prints
how many requests were compared.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.gate.audit import AUDIT_LOG, REFUSED, decode_record
from holdfast.model.kinds import ALL
from holdfast.model.writes import Create
from holdfast.server.resources import RESOURCES

from . import conftest
from .conftest import Api, World, running
from .role_table import ALLOWED, OTHER, OWN, VERBS, is_allowed, is_refused_by_authorization, people, requests_of


@pytest.fixture(params=["global", "west"])
async def cell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    groups: dict[str, tuple[str, ...]] = {role: () for role in ALLOWED} | {"custom": ("on-call",)}
    monkeypatch.setattr(conftest, "GROUPS", conftest.GROUPS | groups)
    async for world in running(request.param, tmp_path):
        if world.cell == "global":
            operator = conftest._operator(world, Api(world.app))
            for item in people():
                await world.gate.commit(operator, [Create(item)])
        else:
            for item in people():
                await world.commit(Create(item), role="link")
        yield world


async def test_role_matrix_matches_table(cell: World, capsys: pytest.CaptureFixture[str]) -> None:
    wrong: list[str] = []
    count = refused = answered_403 = 0
    for role in ALLOWED:
        api = Api(cell.app, role)
        for resource in RESOURCES:
            for verb in VERBS:
                for place in (OWN, OTHER) if resource.kind.namespaced else ("",):
                    for name, method, path, body in requests_of(resource, verb, place):
                        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
                        reply = await api.call(method, path, body, type=kind)
                        answered_403 += reply.code == 403
                        if reply.code in (404, 405) and (b"not stored in" in reply.body or reply.code == 405):
                            continue  # not served in this cell, whoever asks
                        count += 1
                        denied = is_refused_by_authorization(reply.code, reply.body)
                        refused += denied
                        if denied == is_allowed(role, resource, verb, place, name):
                            wrong.append(f"{role} {verb} {path} in {cell.cell}: {reply.code} {reply.body[:120]!r}")
                        if reply.code == 500:
                            wrong.append(f"{role} {verb} {path}: 500")
    with capsys.disabled():
        print(f"\n{count} requests compared in {cell.cell}, {refused} refused")
    assert wrong == []
    page = (Path(__file__).parents[2] / "docs" / "access.md").read_text()
    stated = re.search(r"at least ([\d,]+) requests in each cell, of which more than ([\d,]+) are refused", page)
    assert stated is not None
    assert count >= int(stated[1].replace(",", ""))
    assert refused > int(stated[2].replace(",", ""))
    # Read from the store: each answer was sent after its record was durable.
    recorded = [decode_record(r.value) for r in await cell.store.read_log(AUDIT_LOG, limit=100_000)]
    assert sum(record.count for record in recorded if record.result == REFUSED) == answered_403


def test_table_names_only_known_kinds() -> None:
    later = {"configmaps", "cronworkloads", "secrets", "breakglasssessions"}
    known = {kind.plural for kind in ALL} | {"pods"} | later
    named = {k for rows in ALLOWED.values() for kinds, _, _ in rows for k in kinds.split()} - {"*", "NAMESPACED"}
    assert named <= known
