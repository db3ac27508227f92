"""Configurations that cannot work are refused at once, with the next step, and nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Awaitable, Iterable, Iterator
from pathlib import Path

import pytest
from tests import etcd_cluster

from holdfast.identity.certificates import IssuedCertificate, issue, make_ca
from holdfast.model.errors import BadRequest, Conflict, Fault, StoreFailed, Unavailable
from holdfast.store.contract import Append, Compare, Put, Store, Txn
from holdfast.store.etcd.calls import OLDEST_VERSION
from holdfast.store.etcd.store import open_store
from holdfast.store.etcd.target import EtcdTarget


def put(key: str, value: bytes = b"x") -> Txn:
    return Txn(writes=(Put(key, value),))


async def refused(target: EtcdTarget, folder: Path | None = None, cell: str = "here") -> str:
    with pytest.raises(Fault) as found:
        await open_store(cell, target, folder)
    return found.value.message


async def test_unreachable_endpoint_is_reported() -> None:
    (port,) = etcd_cluster.free_ports(1)
    message = await refused(EtcdTarget(endpoints=(f"http://127.0.0.1:{port}",)))
    assert "connection refused, check --etcd-endpoints" in message


@pytest.mark.parametrize(
    ("endpoints", "ca", "message"),
    [
        ((), "", "--etcd-endpoints: missing"),
        (("ftp://a:1",), "", "invalid (expected http://HOST:PORT"),
        (("http://a",), "", "invalid (expected http://HOST:PORT"),
        (("http://a:1", "https://b:2"), "", "http and https are mixed"),
        (("http://a:1",), "ca.crt", "not usable with http:// endpoints"),
        (("https://a:1",), "/missing/ca.crt", "--etcd-ca /missing/ca.crt: cannot read it"),
    ],
)
async def test_invalid_endpoints_are_refused(endpoints: tuple[str, ...], ca: str, message: str) -> None:
    assert message in await refused(EtcdTarget(endpoints=endpoints, ca=ca))


async def test_endpoint_that_is_not_etcd_is_reported() -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert f"127.0.0.1:{port}" in await refused(EtcdTarget(endpoints=(f"http://127.0.0.1:{port}",)))


async def test_old_etcd_version_is_refused(
    shared_cluster: etcd_cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.etcd.calls.OLDEST_VERSION", (9, 0))
    assert OLDEST_VERSION == (3, 4)
    assert "version too old (expected 9.0 or newer" in await refused(EtcdTarget(endpoints=shared_cluster.endpoints))


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[etcd_cluster.Cluster, IssuedCertificate, IssuedCertificate]]:
    """A cluster that requires client certificates, with the files of a client."""
    now = time.time()
    make_ca(tmp_path / "pki", now_s=now)
    server = issue(tmp_path / "pki", "etcd", "etcd", now_s=now, server=True, client=True, ips=("127.0.0.1",))
    client = issue(tmp_path / "pki", "holdfast", "holdfast", now_s=now)
    options = (
        "--cert-file",
        str(server.certificate),
        "--key-file",
        str(server.key),
        "--trusted-ca-file",
        str(server.ca),
        "--client-cert-auth",
    )
    with etcd_cluster.running_cluster(tmp_path / "etcd", 1, scheme="https", options=options) as cluster:
        yield cluster, server, client


async def test_tls_with_wrong_certificates_is_refused(
    tls: tuple[etcd_cluster.Cluster, IssuedCertificate, IssuedCertificate], tmp_path: Path
) -> None:
    cluster, server, client = tls
    right = EtcdTarget(
        endpoints=cluster.endpoints, ca=str(server.ca), cert=str(client.certificate), key=str(client.key)
    )
    store = await open_store("here", right, tmp_path)
    assert (await store.commit(put("/k"))).revision == store.head
    await store.close()

    make_ca(tmp_path / "other", now_s=time.time())
    stranger = issue(tmp_path / "other", "holdfast", "holdfast", now_s=time.time())
    other_ca = EtcdTarget(endpoints=cluster.endpoints, ca=str(stranger.ca), cert=right.cert, key=right.key)
    assert "certificate is not signed by --etcd-ca" in await refused(other_ca)
    no_cert = EtcdTarget(endpoints=cluster.endpoints, ca=right.ca)
    assert cluster.endpoints[0] in await refused(no_cert)
    other_cert = EtcdTarget(
        endpoints=cluster.endpoints, ca=right.ca, cert=str(stranger.certificate), key=str(stranger.key)
    )
    assert cluster.endpoints[0] in await refused(other_cert)
    assert "expected both" in await refused(EtcdTarget(endpoints=cluster.endpoints, ca=right.ca, cert=right.cert))


async def test_wrong_user_or_password_is_refused(tmp_path: Path) -> None:
    with etcd_cluster.running_cluster(tmp_path / "etcd", 1) as cluster:
        for command in (
            ("user", "add", "root:secret"),
            ("user", "grant-role", "root", "root"),
            ("user", "add", "holdfast:word"),
            ("role", "add", "cells"),
            ("role", "grant-permission", "cells", "--prefix=true", "readwrite", "/holdfast/"),
            ("user", "grant-role", "holdfast", "cells"),
            ("user", "add", "other:word"),
            ("auth", "enable"),
        ):
            cluster.ctl(*command)
        (tmp_path / "word").write_text("word\n")
        (tmp_path / "wrong").write_text("wrong\n")
        target = EtcdTarget(endpoints=cluster.endpoints, user="holdfast", password_file=str(tmp_path / "word"))
        store = await open_store("here", target, tmp_path)
        await store.commit(put("/k"))
        # An expired etcd token is replaced, and the write happens once.
        store._calls._token = "gone.1"
        await store.commit(Txn(compares=(Compare("/l", 0),), writes=(Put("/l", b""),)))
        await store.close()
        wrong = EtcdTarget(endpoints=cluster.endpoints, user="holdfast", password_file=str(tmp_path / "wrong"))
        assert "wrong user or password" in await refused(wrong)
        assert "the password is missing" in await refused(EtcdTarget(endpoints=cluster.endpoints, user="holdfast"))
        assert "requires a user" in await refused(EtcdTarget(endpoints=cluster.endpoints))
        other = EtcdTarget(endpoints=cluster.endpoints, user="other", password_file=str(tmp_path / "word"))
        assert "grant it the prefix" in await refused(other)


async def test_endpoints_of_two_clusters_are_refused(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    with etcd_cluster.running_cluster(tmp_path / "other", 1) as other:
        both = EtcdTarget(endpoints=(*shared_cluster.endpoints, *other.endpoints))
        assert "--etcd-endpoints: several clusters" in await refused(both)


async def test_other_cluster_at_next_start_is_refused(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    store = await open_store("moved", EtcdTarget(endpoints=shared_cluster.endpoints), tmp_path)
    await store.commit(put("/k"))
    await store.close()
    with etcd_cluster.running_cluster(tmp_path / "other", 1) as other:
        assert "another cluster" in await refused(EtcdTarget(endpoints=other.endpoints), tmp_path, "moved")
        assert other.ctl("get", "--prefix", "/holdfast/") == ""


async def test_wiped_cell_at_next_start_is_refused(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    target = EtcdTarget(endpoints=shared_cluster.endpoints)
    store = await open_store("wiped", target, tmp_path)
    await store.commit(put("/k"))
    await store.close()
    shared_cluster.ctl("del", "--prefix", "/holdfast/wiped/")
    assert "was wiped or replaced" in await refused(target, tmp_path, "wiped")
    assert shared_cluster.ctl("get", "--prefix", "/holdfast/wiped/") == ""


async def fails(store: Store) -> str:
    """Waits until the store has stopped. Returns the message."""
    for _ in range(200):
        try:
            await store.get("/k")
        except StoreFailed as fault:
            return fault.message
        except Fault:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("the store continues")


async def test_deleted_data_stops_running_cell(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    store = await open_store("deleted", EtcdTarget(endpoints=shared_cluster.endpoints), tmp_path)
    await store.commit(put("/k"))
    shared_cluster.ctl("del", "--prefix", "/holdfast/deleted/")
    assert "data was deleted" in await fails(store)
    with pytest.raises(StoreFailed):
        await store.commit(put("/l"))
    await store.close()
    assert shared_cluster.ctl("get", "--prefix", "/holdfast/deleted/") == ""


async def test_foreign_write_under_prefix_stops_cell(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    store = await open_store("shared", EtcdTarget(endpoints=shared_cluster.endpoints), tmp_path)
    await store.commit(put("/k"))
    shared_cluster.ctl("put", "/holdfast/shared/data/k", "from a stranger")
    assert "written by another program" in await fails(store)
    await store.close()


async def test_wiped_cluster_stops_running_cell(tmp_path: Path) -> None:
    with etcd_cluster.running_cluster(tmp_path / "etcd", 1) as cluster:
        store = await open_store("here", EtcdTarget(endpoints=cluster.endpoints), tmp_path)
        for _ in range(20):
            await store.commit(put("/k"))
        (member,) = cluster.members
        member.kill()
        subprocess.run(["rm", "-rf", str(member.folder)], check=True)
        member.start()
        etcd_cluster.wait_for(member.answers, "etcd to listen")
        assert "wiped" in await fails(store)
        await store.close()
        assert cluster.ctl("get", "--prefix", "/holdfast/") == ""


async def test_cluster_out_of_space_refuses_writes_until_resolved(tmp_path: Path) -> None:
    with etcd_cluster.running_cluster(
        tmp_path / "etcd", 1, options=("--quota-backend-bytes", str(2 * 1024 * 1024))
    ) as cluster:
        store = await open_store("here", EtcdTarget(endpoints=cluster.endpoints), tmp_path)
        fill = (store.commit(put(f"/k/{n}", bytes(100_000))) for n in range(100))
        with pytest.raises(Unavailable, match="NOSPACE"):
            await _in_turn(fill)
        acknowledged = store.head
        with pytest.raises(Unavailable, match="NOSPACE"):
            await store.commit(put("/l"))
        assert (await store.range("")).revision == acknowledged
        cluster.ctl("del", "--prefix", "/nothing/")
        await asyncio.to_thread(_make_room, cluster)
        assert (await _accepted(store, put("/l"))) > acknowledged
        await store.close()


async def _accepted(store: Store, txn: Txn) -> int:
    """Retries until every member has cleared the alarm."""
    for _ in range(100):
        with contextlib.suppress(Unavailable):
            return (await store.commit(txn)).revision
        await asyncio.sleep(0.1)
    raise AssertionError("writes are still refused")


async def _in_turn(commits: Iterable[Awaitable[object]]) -> None:
    for commit in commits:
        await commit


def _make_room(cluster: etcd_cluster.Cluster) -> None:
    """What an operator does: compact, defragment and raise the quota."""
    revision = cluster.ctl("get", "/x", "-w", "fields").partition('"Revision" : ')[2].split("\n")[0]
    cluster.ctl("compact", revision)
    (member,) = cluster.members
    member.kill()
    member._argv[member._argv.index("--quota-backend-bytes") + 1] = str(64 * 1024 * 1024)
    member.start()
    etcd_cluster.wait_for(member.answers, "etcd to listen")
    etcd_cluster.wait_for(lambda: "m0" in cluster.ctl("member", "list"), "etcd to answer")
    cluster.ctl("alarm", "disarm")


async def test_commit_above_transaction_limit_is_refused(shared_cluster: etcd_cluster.Cluster, tmp_path: Path) -> None:
    store = await open_store("large", EtcdTarget(endpoints=shared_cluster.endpoints), tmp_path)
    with pytest.raises(BadRequest, match="split"):
        await store.commit(Txn(writes=tuple(Put(f"/k/{n}", b"") for n in range(store.max_writes + 1))))
    with pytest.raises(BadRequest, match="split"):
        await store.commit(Txn(appends=tuple(Append("log", b"") for _ in range(200))))
    with pytest.raises(BadRequest, match="exceeds --max-request-bytes"):
        await store.commit(put("/k", bytes(1_700_000)))
    with pytest.raises(Conflict):
        await store.commit(Txn(compares=(Compare("/k", 1),), writes=(Put("/k", b""),)))
    assert store.head == 0 and (await store.range("")).entries == ()
    whole = Txn(
        compares=tuple(Compare(f"/k/{n}", 0) for n in range(store.max_writes)),
        writes=tuple(Put(f"/k/{n}", b"") for n in range(store.max_writes)),
        appends=(Append("log", b""),),
    )
    assert len((await store.commit(whole)).revisions) == store.max_writes
    await store.close()
