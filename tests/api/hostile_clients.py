"""Hostile clients in a process of their own: `python -m tests.api.hostile_clients URL CA TOKEN SECONDS`.

Sends every hostile body to every route, as a tenant and without a credential, as fast as the server answers. Prints the
number of responses by status code as JSON.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import sys
import time

import aiohttp
from tests.hostile_bodies import HOSTILE, JSON, body_routes

from holdfast.client.resources import client_tls_context

TENANT_CLIENTS = 40
ANONYMOUS_CLIENTS = 16


async def main(url: str, ca: str, token: str, seconds: float) -> None:
    answers: collections.Counter[str] = collections.Counter()
    routes = [(method, path) for method, path, _ in body_routes()]
    everything = [(method, path, *HOSTILE[what]) for what in HOSTILE for method, path in routes]
    # The bodies that were the most expensive come most often.
    worst = [
        ("POST", "/api/v1/namespaces/shop/events", *HOSTILE[what])
        for what in (
            "a wide YAML list",
            "a YAML list below the size limit",
            "JSON with spaces",
            "protobuf of many fields",
        )
    ]
    join = [("POST", "/join/v1", JSON, b'{"token":"' + b"x" * 2_900_000), ("POST", "/join/v1", *HOSTILE["wide JSON"])]
    ends_s = time.monotonic() + seconds

    async def attack(session: aiohttp.ClientSession, number: int, headers: dict[str, str]) -> None:
        requests = itertools.cycle((everything[number::7], worst * 20, join)[number % 3 if headers else 2])
        while time.monotonic() < ends_s:
            method, path, content_type, body = next(requests)
            try:
                async with session.request(
                    method, url + path, data=body, headers={**headers, "Content-Type": content_type}
                ) as answer:
                    await answer.read()
                    answers[str(answer.status)] += 1
            except (aiohttp.ClientError, OSError, TimeoutError):
                answers["disconnected"] += 1  # the server answers and closes before it has the whole body

    tls = client_tls_context(ca, "", "")
    connector = aiohttp.TCPConnector(limit=0, ssl=tls)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tenant = {"Authorization": f"Bearer {token}"}
        clients = [attack(session, number, tenant) for number in range(TENANT_CLIENTS)]
        clients += [attack(session, number, {}) for number in range(ANONYMOUS_CLIENTS)]
        await asyncio.gather(*clients)
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
