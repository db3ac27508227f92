"""Roles, and attempts to get more rights, over TLS at the servers of a platform, with tokens and certificates.

The tables are those of tests/server, which sends them to the application in process. `pytest -s` prints the counts.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.platforms import V1, RunningPlatform, running_platform, wait_until
from tests.server.conftest import WORKLOADS
from tests.server.escalation_table import ATTEMPTS, MALFORMED_PATHS
from tests.server.role_table import (
    ALLOWED,
    OTHER,
    OWN,
    VERBS,
    is_allowed,
    is_refused_by_authorization,
    people,
    requests_of,
)

from holdfast.client.resources import resource_path
from holdfast.gate.audit import REFUSED
from holdfast.identity.certificates import issue, make_ca
from holdfast.model.kinds import kind_of
from holdfast.model.principal import MONITORS, NODES, OPERATORS, TENANT_PREFIX, VIEWERS
from holdfast.platform.credentials import Credentials, token_file
from holdfast.platform.layout import Layout
from holdfast.server.resources import RESOURCES

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow, pytest.mark.timeout(900)]
REGION = "west"
CELLS = ("global", REGION)
EVENTS = f"/api/v1/namespaces/{OWN}/events"
GROUPS = {
    **dict.fromkeys(ALLOWED, ()),
    "custom": ("on-call",),
    "ada": (OPERATORS,),
    "tim": (f"{TENANT_PREFIX}shop",),
    "vera": (VIEWERS,),
    "prometheus": (MONITORS,),
}
"""Users with a token, and the groups that the token grants."""


class Caller:
    """One connection to a cell, as a user with a token, with a certificate, or with neither."""

    def __init__(self, platform: RunningPlatform, cell: str, *, token: str = "", files: Any = None) -> None:
        layout = Layout(platform.state)
        host, _, port = dict(layout.load().cells)[cell].rpartition("//")[2].partition(":")
        context = ssl.create_default_context(cafile=str(platform.state / "pki" / "ca.crt"))
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        self._connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> tuple[int, bytes]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        sent = {**self._headers, **({"Content-Type": kind} if body is not None else {}), **headers}
        self._connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()


class Callers:
    """The users of the tables, with a token each."""

    def __init__(self, platform: RunningPlatform) -> None:
        self._platform = platform
        issued = token_file(str(platform.state))
        self._tokens = {user: issued.issue(user, user, groups) for user, groups in GROUPS.items()}

    def to(self, cell: str, user: str) -> Caller:
        return Caller(self._platform, cell, token=self._tokens.get(user, ""))


class AuditLog:
    """The refused requests that a cell has recorded since this object was made, by caller."""

    def __init__(self, callers: Callers, cell: str) -> None:
        self._callers = callers
        self._cell = cell
        self._after = 0
        self._start = self._read()[1]

    def assert_counts(self, expected: Counter[str]) -> None:
        found: Counter[str] = Counter()
        self._after = self._start

        def is_recorded() -> bool:
            records, self._after = self._read()
            for record in records:
                found[record["principal"]] += record["count"]
            return found.total() >= expected.total()

        wait_until(is_recorded, f"the audit log counts {expected.total()} refusals (found {found})")
        assert found == expected

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        operator = self._callers.to(self._cell, "ada")
        found: list[dict[str, Any]] = []
        after = self._after
        while True:
            page = json.loads(operator.call("GET", f"/audit/v1?after={after}")[1])
            found += [record for record in page["records"] if record["result"] == REFUSED]
            after = page["next"]
            if not page["more"]:
                operator.close()
                return found, after


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    state = tmp_path_factory.mktemp("matrix") / "state"
    with running_platform(state, "--regions", REGION, "--agents", "1", "--no-samples") as running:
        running.apply(
            *({"apiVersion": V1, "kind": "Tenant", "metadata": {"name": n}, "spec": {}} for n in (OWN, OTHER))
        )
        yield running


@pytest.fixture(scope="module")
def callers(platform: RunningPlatform) -> Callers:
    """Everybody has a token, and the roles of the table by bindings, in both cells."""
    made = Callers(platform)
    operator = made.to("global", "ada")
    for item in people():
        path = resource_path(kind_of(item), item.metadata.namespace)
        code, answer = operator.call("POST", path, msgspec.to_builtins(item))
        assert code == 201, answer
    for user in ("viewer", "tenant-user", "tenant-admin", "custom"):
        path = f"{WORKLOADS}/absent" if user != "viewer" else "/apis/holdfast.dev/v1/nodes"

        def has_role(user: str = user, path: str = path) -> bool:
            return made.to(REGION, user).call("GET", path)[0] in (200, 404)

        wait_until(has_role, f"the region has the binding of {user}")
    operator.close()
    return made


@pytest.mark.parametrize("cell", CELLS)
def test_servers_allow_what_the_table_says(
    platform: RunningPlatform, callers: Callers, cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(callers, cell)
    wrong: list[str] = []
    refused: Counter[str] = Counter()
    count, began_s = 0, time.monotonic()
    for role in ALLOWED:
        caller = callers.to(cell, role)
        for resource in RESOURCES:
            for verb in VERBS:
                for place in (OWN, OTHER) if resource.kind.namespaced else ("",):
                    for name, method, path, body in requests_of(resource, verb, place):
                        code, answer = caller.call(method, path, body)
                        refused[role] += code == 403
                        if code in (404, 405) and (b"not stored in" in answer or code == 405):
                            continue  # not served in this cell, whoever asks
                        count += 1
                        denied = is_refused_by_authorization(code, answer)
                        if denied == is_allowed(role, resource, verb, place, name) or code >= 500:
                            wrong.append(f"{role} {verb} {path} in {cell}: {code} {answer[:120]!r}")
        caller.close()
    with capsys.disabled():
        took_s = time.monotonic() - began_s
        print(f"\n{count} requests compared in {cell}, {refused.total()} refused, {took_s:.0f} s")
    assert wrong == []
    assert count >= 3_000 and refused.total() > 2_100
    log.assert_counts(+refused)


@pytest.mark.parametrize("cell", CELLS)
def test_attempts_to_get_more_rights_are_refused_and_recorded(
    platform: RunningPlatform, callers: Callers, cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(callers, cell)
    expected: Counter[str] = Counter()
    for name, attempt in ATTEMPTS.items():
        headers = {key.replace("_", "-"): value for key, value in attempt.headers.items()}
        caller = callers.to(cell, attempt.user)
        code, answer = caller.call(attempt.method, attempt.path, attempt.body, headers)
        caller.close()
        if code == 404 and b"not stored in" in answer:
            continue  # the kind is not served in this cell, whoever asks
        assert code in (401, 403), f"{name} in {cell}: {code} {answer[:200]!r}"
        expected[attempt.user or "system:anonymous at 127.0.0.1"] += 1
    for name, path in MALFORMED_PATHS.items():
        if path.startswith("/console"):
            continue  # needs a session of the console
        caller = callers.to(cell, "tim")
        code, answer = caller.call("GET", path.replace("\0", "%00"))
        caller.close()
        assert code == 400, f"{name} in {cell}: {code} {answer[:200]!r}"
        expected["tim"] += 1
    with capsys.disabled():
        print(f"\n{expected.total()} attempts refused in {cell}")
    assert expected.total() > (30 if cell == "global" else 15)
    log.assert_counts(expected)


@pytest.mark.parametrize("cell", CELLS)
def test_stale_certificates_are_refused_and_recorded(
    platform: RunningPlatform, callers: Callers, cell: str, tmp_path: Path
) -> None:
    """Expired, not valid yet, revoked, beyond the authority of a node CA, and of another platform's CA."""
    layout = Layout(platform.state)
    pki, now_s, day_s = platform.state / "pki", time.time(), 86_400.0
    log = AuditLog(callers, cell)
    expired = issue(pki, f"expired-{cell}", "expired", (OPERATORS,), now_s=now_s - 2 * day_s, days=1)
    early = issue(pki, f"early-{cell}", "early", (OPERATORS,), now_s=now_s + day_s, days=1)
    revoked = issue(pki, f"revoked-{cell}", "revoked", (OPERATORS,), now_s=now_s)
    Credentials(layout).revoke(revoked.serial)
    shown = [(expired, "has expired"), (early, "is not valid yet"), (revoked, "was revoked")]
    if cell == REGION:
        node_ca = pki / f"nodes-{REGION}"
        shown.append((issue(node_ca, "forged", "forged", (OPERATORS,), now_s=now_s), "is not accepted here"))
        shown.append((issue(node_ca, "other", "holdfast:node:east:n1", (NODES,), now_s=now_s), "is not accepted here"))
    time.sleep(1.0)  # a cell reads the revoked serials at most every half second
    for files, words in shown:
        caller = Caller(platform, cell, files=files)
        code, answer = caller.call("GET", EVENTS)
        caller.close()
        assert code == 401 and words in answer.decode(), f"{files.certificate.name}: {code} {answer[:300]!r}"
    make_ca(tmp_path, now_s=now_s)
    stranger = Caller(platform, cell, files=issue(tmp_path, "ada", "ada", (OPERATORS,), now_s=now_s))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        stranger.call("GET", EVENTS)
    names = ["expired", "early", "revoked", *(("forged", "holdfast:node:east:n1") if cell == REGION else ())]
    log.assert_counts(Counter(names))
