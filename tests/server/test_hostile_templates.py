"""Random templates through the API: each is stored, or refused with a clear message. None fails inside the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.hostile_templates import FUZZ, templates

from .conftest import WORKLOADS, Api, World, running, workload


async def started(cell: AsyncGenerator[World]) -> World:
    return await anext(cell)


def test_random_template_is_accepted_or_refused_with_the_field(tmp_path: Path) -> None:
    codes: dict[int, int] = {}
    with asyncio.Runner() as runner:
        cell = running("global", tmp_path)
        world = runner.run(started(cell))
        tenant = Api(world.app, "tim")

        @FUZZ
        @given(templates())
        def send(template: dict[str, Any]) -> None:
            body = json.dumps(workload("fuzz", template=template)).encode()
            reply = runner.run(tenant.post(f"{WORKLOADS}?dryRun=All", body))
            codes[reply.code] = codes.get(reply.code, 0) + 1
            assert reply.code in (201, 400, 422), reply.body
            if reply.code != 201:
                assert reply.json["kind"] == "Status" and len(reply.json["message"]) > 20
                assert "Traceback" not in reply.json["message"] and "object at 0x" not in reply.json["message"]
            if reply.code == 422:
                causes = reply.json["details"]["causes"]
                assert causes and all(cause["field"].startswith("spec") and cause["message"] for cause in causes)

        send()
        runner.run(cell.aclose())
    assert codes.get(201, 0) >= 10 and codes.get(422, 0) >= 10, f"both outcomes must occur: {codes}"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"artifacts": [{"name": "/var/lib", "source": "https://a/b"}]}, "spec.template.artifacts[0].name"),
        ({"artifacts": [{"name": "../x", "source": "https://a/b"}]}, "spec.template.artifacts[0].name"),
        ({"artifacts": [{"name": "..", "source": "https://a/b"}]}, "spec.template.artifacts[0].name"),
        ({"artifacts": [{"name": "a/b", "source": "https://a/b"}]}, "spec.template.artifacts[0].name"),
        ({"artifacts": [{"name": "x", "source": "ftp://a/b"}]}, "spec.template.artifacts[0].source"),
        ({"artifacts": [{"name": "x", "source": "file:///a/../b"}]}, "spec.template.artifacts[0].source"),
        ({"artifacts": [{"name": "x", "source": "https://u:p@a/b"}]}, "spec.template.artifacts[0].source"),
        (
            {"artifacts": [{"name": "x", "source": "https://a/b", "digest": "sha256:/../../x"}]},
            "spec.template.artifacts[0].digest",
        ),
        ({"artifacts": [{"name": "x", "source": "/a"}, {"name": "x", "source": "/b"}]}, "spec.template.artifacts[1]"),
        ({"artifacts": [{"name": f"a{i}", "source": "/a"} for i in range(33)]}, "spec.template.artifacts"),
        ({"workingDir": "/x\0user=\0uid=0"}, "spec.template.workingDir"),
        ({"workingDir": "../../etc"}, "spec.template.workingDir"),
        ({"user": "a\0b"}, "spec.template.user"),
        ({"driver": "oci", "bundle": "/a/../b"}, "spec.template.bundle"),
        ({"env": {"A": "x" * 140_000}}, "spec.template.env"),
        ({"args": ["x" * 100_000] * 12}, "spec.template.command"),
        (
            {"ports": [{"name": "a"}], "probes": {"readiness": {"http": {"path": "/ HTTP/1.1\r\nHost: b"}}}},
            "spec.template.probes.readiness.http.path",
        ),
    ],
)
async def test_hostile_field_is_refused_by_name(api: Api, fields: dict[str, Any], field: str) -> None:
    reply = await api.as_user("tim").post(WORKLOADS, workload(template={"command": ["serve"], **fields}))
    assert reply.code == 422
    assert field in [cause["field"] for cause in reply.json["details"]["causes"]]
