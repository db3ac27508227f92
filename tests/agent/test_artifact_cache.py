"""The artifact cache of a node: entries by tenant and digest, nothing partial, no way from one tenant to another."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.agent_world import World, config, eventually, task, template
from tests.agent.hostile_archives import MIB, corpus, member, symlink, tar, zipped
from tests.requirements import skip_or_fail

from holdfast.agent import logs
from holdfast.agent.drivers import artifacts
from holdfast.agent.drivers.artifact_sources import ArtifactSources
from holdfast.agent.drivers.artifacts import ArtifactCache
from holdfast.agent.drivers.contract import StartFailed
from holdfast.agent.drivers.process import ProcessDriver
from holdfast.agent.main import run_agent
from holdfast.agent.task_users import TaskUsers
from holdfast.foundation.ports import SystemClock, SystemPorts
from holdfast.model.artifact import Artifact


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    made.mkdir()
    return made


@pytest.fixture
def cache(tmp_path: Path, shared: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache", ArtifactSources(directories=(str(shared),)))


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def stored(tmp_path: Path) -> list[str]:
    """Everything in the cache, by tenant."""
    return sorted(str(path.relative_to(tmp_path / "cache")) for path in (tmp_path / "cache").glob("*/*"))


async def put(cache: ArtifactCache, tenant: str, task_id: str, work: Path, *wanted: Artifact) -> None:
    await cache.fetch(tenant, task_id, wanted)
    await asyncio.to_thread(cache.install, task_id, work)


@pytest.mark.parametrize(
    "wrong",
    [
        Artifact(name="/etc", source="/s/f"),
        Artifact(name="..", source="/s/f"),
        Artifact(name="../x", source="/s/f"),
        Artifact(name="a/b", source="/s/f"),
        Artifact(name=".", source="/s/f"),
        Artifact(name="", source="/s/f"),
        Artifact(name="a\0b", source="/s/f"),
        Artifact(name="n" * 200, source="/s/f"),
        Artifact(name="x", source="/s/f", digest="sha256:/../../../outside"),
        Artifact(name="x", source="/s/f", digest="sha256:" + "0" * 63),
        Artifact(name="x", source="../f"),
        Artifact(name="x", source="https://[:::]/f.tar"),
    ],
)
async def test_agent_refuses_unsafe_artifact_that_admission_let_pass(
    wrong: Artifact, cache: ArtifactCache, tmp_path: Path
) -> None:
    with pytest.raises(StartFailed) as failure:
        await put(cache, "shop", "t", tmp_path / "work", wrong)
    assert failure.value.reason == "ArtifactMissing"
    assert stored(tmp_path) == [] and not (tmp_path / "work").exists()


@pytest.mark.parametrize("tenant", ["..", "a/b", "", "/etc", "A"])
async def test_agent_refuses_unsafe_tenant(tenant: str, cache: ArtifactCache, shared: Path, tmp_path: Path) -> None:
    (shared / "f").write_text("x")
    with pytest.raises(StartFailed):
        await put(cache, tenant, "t", tmp_path / "work", Artifact(name="x", source=str(shared / "f")))
    assert sorted(os.listdir(tmp_path)) == ["cache", "shared"]


async def test_task_gets_read_only_files_and_needs_no_access_to_the_cache(
    cache: ArtifactCache, shared: Path, tmp_path: Path
) -> None:
    (shared / "app.tar").write_bytes(tar((member("bin/run", mode=0o755), b"x"), symlink("run", "bin/run")))
    (shared / "plain").write_text("content")
    work = tmp_path / "work"
    wanted = (Artifact(name="app", source=str(shared / "app.tar")), Artifact(name="p", source=str(shared / "plain")))
    await put(cache, "shop", "t", work, *wanted)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert (work / "app" / "run").read_bytes() == b"x" and (work / "p").read_text() == "content"
    for path in (work / "app" / "bin" / "run", work / "p"):
        assert not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o555
    for path in work.rglob("*"):
        assert path.resolve().is_relative_to(work), "no link leads out of the working directory"


def linked_inside(folder: Path, target: Path) -> None:
    folder.mkdir()
    (folder / "y").symlink_to(target)


async def test_next_run_replaces_whatever_the_task_left_under_the_name(
    cache: ArtifactCache, shared: Path, tmp_path: Path
) -> None:
    (shared / "f").write_text("content")
    work, outside = tmp_path / "work", tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    wanted = Artifact(name="x", source=str(shared / "f"))
    leftovers: tuple[Callable[[], None], ...] = (
        lambda: (work / "x").symlink_to(outside),
        lambda: linked_inside(work / "x", outside),
        lambda: os.mkfifo(work / "x"),
    )
    for left in leftovers:
        await put(cache, "shop", "t", work, wanted)
        (work / "x").unlink()
        left()
        await put(cache, "shop", "t", work, wanted)
        assert (work / "x").read_text() == "content" and not (work / "x").is_symlink()
        assert (outside / "kept").is_dir()


async def test_working_directory_that_is_a_link_is_refused(cache: ArtifactCache, shared: Path, tmp_path: Path) -> None:
    (shared / "f").write_text("content")
    (tmp_path / "outside").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        await put(cache, "shop", "t", tmp_path / "work", Artifact(name="x", source=str(shared / "f")))
    assert os.listdir(tmp_path / "outside") == []


@pytest.mark.parametrize("attack", ["zip: bomb", "link to itself, then up", "cut gzip", "file under a file"])
async def test_refused_archive_leaves_nothing(attack: str, cache: ArtifactCache, shared: Path, tmp_path: Path) -> None:
    name, build = corpus(tmp_path)[attack]
    (shared / name).write_bytes(build())
    (shared / "good").write_text("good")
    good, bad = Artifact(name="g", source=str(shared / "good")), Artifact(name="b", source=str(shared / name))
    with pytest.raises(StartFailed) as failure:
        await put(cache, "shop", "t", tmp_path / "work", good, bad)
    assert failure.value.reason == "ArtifactMismatch" and "cannot unpack" in failure.value.message
    assert not (tmp_path / "work").exists()
    assert stored(tmp_path) == [f"shop/file-{digest(shared / 'good').removeprefix('sha256:')}"]


async def test_leftovers_of_a_killed_agent_are_removed(cache: ArtifactCache, shared: Path, tmp_path: Path) -> None:
    (shared / "f").write_text("x")
    await put(cache, "shop", "t", tmp_path / "work", Artifact(name="x", source=str(shared / "f")))
    kept = stored(tmp_path)
    (tmp_path / "cache" / "shop" / "part-1" / "content").mkdir(parents=True)
    (tmp_path / "cache" / "stray").write_text("")
    ArtifactCache(tmp_path / "cache", ArtifactSources())
    assert stored(tmp_path) == kept and not (tmp_path / "cache" / "stray").exists()


# --- tenants ---------------------------------------------------------------------------------------------------------


async def test_digest_of_another_tenant_gives_no_access(cache: ArtifactCache, shared: Path, tmp_path: Path) -> None:
    (shared / "private").write_text("weights")
    known = digest(shared / "private")
    await put(cache, "shop", "a", tmp_path / "a", Artifact(name="x", source=str(shared / "private"), digest=known))
    with pytest.raises(StartFailed) as failure:
        await put(cache, "evil", "b", tmp_path / "b", Artifact(name="x", source="/nowhere/f", digest=known))
    assert failure.value.reason == "ArtifactMissing"
    (shared / "private").unlink()
    await put(cache, "shop", "c", tmp_path / "c", Artifact(name="x", source=str(shared / "private"), digest=known))
    assert (tmp_path / "c" / "x").read_text() == "weights"


async def test_same_bytes_as_file_and_as_archive_are_two_entries(
    cache: ArtifactCache, shared: Path, tmp_path: Path
) -> None:
    """The first fetch decided for everybody with that digest whether it was unpacked."""
    for name in ("app.bin", "app.zip"):
        (shared / name).write_bytes(zipped(("run", 0o755, b"x")))
    known = digest(shared / "app.zip")
    await put(cache, "shop", "a", tmp_path / "a", Artifact(name="x", source=str(shared / "app.bin"), digest=known))
    await put(cache, "shop", "b", tmp_path / "b", Artifact(name="x", source=str(shared / "app.zip"), digest=known))
    assert (tmp_path / "a" / "x").is_file() and (tmp_path / "b" / "x" / "run").read_bytes() == b"x"
    assert cache.cached_digests() == (known,)


async def test_tenant_cannot_evict_entries_of_a_tenant_that_stores_less(
    cache: ArtifactCache, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACT_CACHE_BYTES_MAX", 10 * 4096)

    async def store(tenant: str, name: str, *, blocks: int, release: bool) -> None:
        (shared / name).write_bytes(name.encode() * (blocks * 4096 // len(name)))
        await put(cache, tenant, name, tmp_path / name, Artifact(name="x", source=str(shared / name)))
        if release:
            cache.release(name)

    await store("shop", "small", blocks=2, release=True)
    small = stored(tmp_path)
    for index in range(8):
        await store("evil", f"flood{index}", blocks=3, release=True)
        assert set(small) <= set(stored(tmp_path)), "the flood evicted only its own tenant's entries"
    await store("evil", "held0", blocks=3, release=False)
    await store("evil", "held1", blocks=3, release=False)
    with pytest.raises(StartFailed) as failure:
        await store("evil", "held2", blocks=3, release=False)
    assert "cache is full" in failure.value.message
    assert set(small) <= set(stored(tmp_path))
    await store("shop", "more", blocks=2, release=True)
    assert set(small) <= set(stored(tmp_path)), "a tenant that stores less gets its room"


async def test_entries_in_use_are_not_evicted_and_least_recently_used_go_first(
    cache: ArtifactCache, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACT_CACHE_BYTES_MAX", 3 * 4096)
    known = []
    for index in range(5):
        source = shared / f"{index}.bin"
        source.write_bytes(bytes([index]) * 1000)
        await put(cache, "shop", f"t{index}", tmp_path / f"work{index}", Artifact(name="x", source=str(source)))
        if index:
            cache.release(f"t{index}")
        known.append(digest(source))
        await asyncio.sleep(0.02)
    assert set(cache.cached_digests()) == {known[0], known[3], known[4]}
    assert (tmp_path / "work1" / "x").read_bytes() == bytes([1]) * 1000, "an evicted file stays with its task"


async def test_nearly_full_disk_refuses_artifacts_and_keeps_the_rest_free(small_disk: Path, shared: Path) -> None:
    cache = ArtifactCache(small_disk / "cache", ArtifactSources(directories=(str(shared),)))
    (shared / "large").write_bytes(os.urandom(2 * MIB))
    (shared / "large.zip").write_bytes(zipped(("zeros", 0o644, bytes(2 * MIB))))
    for name in ("large", "large.zip"):
        with pytest.raises((StartFailed, OSError)):
            await put(cache, "shop", "t", small_disk / "work", Artifact(name="x", source=str(shared / name)))
        assert list((small_disk / "cache").glob("*/*")) == []
    disk = os.statvfs(small_disk)
    assert disk.f_bavail > disk.f_blocks * 0.9


# --- slow sources ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tarpit() -> Iterator[str]:
    """Accepts connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()


async def test_slow_sources_of_one_tenant_delay_no_other(shared: Path, tmp_path: Path) -> None:
    (shared / "f").write_text("content")
    with tarpit() as slow:
        sources = ArtifactSources(
            schemes=("http",), hosts=(slow,), networks=("127.0.0.0/8",), directories=(str(shared),)
        )
        cache = ArtifactCache(tmp_path / "cache", sources)
        stuck = [
            asyncio.create_task(cache.fetch("evil", f"t{index}", (Artifact("x", f"http://{slow}/{index}"),)))
            for index in range(40)
        ]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        async with asyncio.timeout(10):
            await put(cache, "shop", "t", tmp_path / "work", Artifact(name="x", source=str(shared / "f")))
        assert time.monotonic() - began < 2
        parts = list((tmp_path / "cache" / "evil").glob("part-*"))
        assert len(parts) == artifacts.ARTIFACT_FETCHES_PER_TENANT_MAX
        for fetching in stuck:
            fetching.cancel()
        await asyncio.wait(stuck)
        again = asyncio.create_task(cache.fetch("evil", "again", (Artifact("x", f"http://{slow}/again"),)))
        await asyncio.sleep(0.2)
        found = list((tmp_path / "cache" / "evil").glob("part-*"))
        assert len(found) == artifacts.ARTIFACT_FETCHES_PER_TENANT_MAX, "a cancelled fetch counts until it ends"
        again.cancel()


async def test_stop_does_not_wait_for_a_slow_source_and_other_starts_go_on(tmp_path: Path) -> None:
    world = await World(SystemPorts()).start()
    with tarpit() as slow:
        sources = ArtifactSources(schemes=("http",), hosts=(slow,), networks=("127.0.0.0/8",))
        settings = config(state_dir=str(tmp_path), artifacts=sources, isolation="none")
        running = asyncio.create_task(run_agent(settings, world.agent(), world.ports))
        try:
            await eventually(lambda: (node := world.node()) is not None and node.status.execution.reconciled)
            for index in range(10):  # more than the agent starts at a time
                waiting = template("sleep", "600", artifacts=(Artifact("x", f"http://{slow}/{index}"),))
                await world.bind(f"slow{index}", waiting)
            await world.bind("well", template("sleep", "600"))
            await eventually(lambda: world.ready("well"), within_s=10)
            await world.request_stop("slow0")
            await eventually(lambda: world.binding("slow0").status.acknowledged_at, within_s=10)
            await world.request_stop("well")
            await eventually(lambda: world.binding("well").status.acknowledged_at, within_s=10)
        finally:
            running.cancel()
            await asyncio.wait((running,))
            await world.close()


async def test_task_of_another_user_reads_its_artifacts_and_cannot_change_or_list_the_cache(
    shared: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        skip_or_fail("only root can give tasks users of their own; next: run as root")
    state = tmp_path / "state"
    program = (member("bin/run", mode=0o755), b"#!/bin/sh\necho ran\n")
    (shared / "app.tar").write_bytes(tar(program, symlink("run", "bin/run")))
    users = TaskUsers(state, registry=tmp_path / "registry")
    cache = ArtifactCache(state / "artifacts", ArtifactSources(directories=(str(shared),)))
    driver = ProcessDriver(state / "tasks", SystemClock(), artifacts=cache, users=users)
    script = f"""
    id -u; app/run
    for change in 'chmod 777 app/bin/run' 'cp /bin/true app/bin/run' 'touch app/new' 'ls {state}/artifacts'; do
        $change 2>/dev/null && echo "$change succeeded"
    done
    mv app old$$; mkdir app; ln -s / app/root; echo end
    """
    source = Artifact(name="app", source=str(shared / "app.tar"))
    for run in (1, 2):
        await driver.start(task("a", "sh", "-c", script, run=run, artifacts=(source,)))
        assert (await driver.next_exit()).exit.code == 0
        entry = next(iter(stored_files(state)))
        known = entry.stat()
        assert (known.st_uid, stat.S_IMODE(known.st_mode)) == (0, 0o555) and b"ran" in entry.read_bytes()
    log = driver.logs("a")
    assert log is not None
    lines = [line.text for line in logs.tail(log, 100)]
    assert lines[1:3] == ["ran", "end"] and lines[0] != "0", "the task could change nothing"
    assert lines[4:] == ["ran", "end"], "the next run got its artifact again"
    await driver.forget("a")
    await driver.close()


def stored_files(state: Path) -> list[Path]:
    return list((state / "artifacts").glob("*/tree-*/content/bin/run"))


async def test_driver_reports_refused_source_as_failed_start(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", ArtifactSources())
    driver = ProcessDriver(tmp_path / "tasks", SystemClock(), artifacts=cache)
    (tmp_path / "key").write_text("CA key")
    for source in (f"file://{tmp_path}/key", "http://127.0.0.1:9/", "http://169.254.169.254/latest/"):
        with pytest.raises(StartFailed) as failure:
            await driver.start(task("a", "true", artifacts=(Artifact(name="x", source=source),)))
        assert failure.value.reason == "ArtifactMissing" and "next: add" in failure.value.message
    assert not (tmp_path / "tasks" / "a").exists(), "nothing was prepared"
    await driver.close()
