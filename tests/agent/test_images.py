"""Images pulled from a real registry: cache, back-off, policies, interruption, hostile layers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.agent_world import task
from tests.agent.image_registry import Registry, file, folder, layer, link, program, running_registry, shell_layer
from tests.e2e.test_full_disk import small_disk

from holdfast.agent import config
from holdfast.agent.drivers import image_layers, images
from holdfast.agent.drivers.archives import ArchiveRefused
from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.images import ImageCache
from holdfast.model.errors import Invalid
from holdfast.model.image import PullPolicy
from holdfast.model.template import DriverName
from holdfast.registry import manifests

SMALL = layer([folder("etc"), file("etc/greeting", b"hello\n")])


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def image_task(name: str, image: str, digest: str = "", **more: Any) -> Task:
    plain = task(name)
    template = msgspec.structs.replace(
        plain.template, **{"driver": DriverName.OCI, "command": (), "image": image, "image_digest": digest, **more}
    )
    return msgspec.structs.replace(plain, template=template)


async def refusal(cache: ImageCache, wanted: Task) -> StartFailed:
    with pytest.raises(StartFailed) as failure:
        await cache.fetch(wanted)
    return failure.value


def parts(cache_root: Path) -> list[str]:
    return [path.name for path in cache_root.iterdir() if path.name.startswith("part-")]


async def test_image_is_pulled_once_and_shared(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("team/web:1", [SMALL], Env=["A=1"], Cmd=["/bin/true"], indexed=True)
    cache = ImageCache(tmp_path, registry.allowed())
    wanted = [image_task(f"t{n}", registry.reference("team/web:1"), digest) for n in range(3)]
    await asyncio.gather(*(cache.fetch(each) for each in wanted))
    roots = {cache.root_of(each)[0] for each in wanted}
    assert len(roots) == 1 and (roots.pop() / "etc/greeting").read_text() == "hello\n"
    assert cache.root_of(wanted[0])[1].env == ("A=1",)
    (held,) = cache.images()
    assert held.names == (registry.reference(f"team/web@{digest}"), registry.reference("team/web:1"))
    assert held.size_bytes > 0 and not parts(tmp_path)


async def test_image_made_by_other_tools_is_pulled(registry: Registry, tmp_path: Path) -> None:
    pushed = f"docker://{registry.reference('tools/hello:v1')}"
    umoci, skopeo, made = program("umoci"), program("skopeo"), tmp_path / "made"
    (tmp_path / "hello").write_text("from umoci\n")
    for command in (
        (umoci, "init", "--layout", str(made)),
        (umoci, "new", "--image", f"{made}:v1"),
        (umoci, "insert", "--rootless", "--image", f"{made}:v1", str(tmp_path / "hello"), "/hello"),
        (umoci, "config", "--image", f"{made}:v1", "--config.cmd", "/hello"),
        (skopeo, "--insecure-policy", "copy", "--dest-tls-verify=false", f"oci:{made}:v1", pushed),
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    shown = subprocess.run(
        (skopeo, "inspect", "--tls-verify=false", pushed), check=True, capture_output=True, timeout=120
    )
    digest = json.loads(shown.stdout)["Digest"]
    cache = ImageCache(tmp_path / "cache", registry.allowed())
    wanted = image_task("a", registry.reference("tools/hello:v1"), digest)
    await cache.fetch(wanted)
    root, config = cache.root_of(wanted)
    assert (root / "hello").read_text() == "from umoci\n" and config.cmd == ("/hello",)


async def test_moved_tag_does_not_change_the_digest_that_runs(registry: Registry, tmp_path: Path) -> None:
    before = registry.push("team/moved:1", [layer([file("v", b"one")])])
    after = registry.push("team/moved:1", [layer([file("v", b"two")])])
    assert before != after
    cache = ImageCache(tmp_path, registry.allowed())
    for name, digest, content in (("a", before, "one"), ("b", after, "two"), ("c", before, "one")):
        wanted = image_task(name, registry.reference("team/moved:1"), digest)
        await cache.fetch(wanted)
        assert (cache.root_of(wanted)[0] / "v").read_text() == content


async def test_tag_without_a_digest_is_not_run(registry: Registry, tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, registry.allowed())
    failure = await refusal(cache, image_task("a", registry.reference("team/web:1")))
    assert failure.reason == "ImageUnresolved"


async def test_agent_refuses_reference_that_admission_let_pass(registry: Registry, tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, registry.allowed())
    for image in ("r.example/../../etc", "http://r.example/web", "Web", "a" * 1000):
        wanted = image_task("a", image, "sha256:" + "0" * 64)
        assert (await refusal(cache, wanted)).reason == "TemplateUnusable" and cache.progress(wanted) == ""


@pytest.mark.parametrize(
    ("change", "reason", "shown"),
    [
        ({"registries": ()}, "RegistryDenied", "images.registries"),
        ({"networks": ()}, "RegistryDenied", "images.networks"),
        ({"insecure": ()}, "ImagePullFailed", "cannot read"),
    ],
)
async def test_registry_that_is_not_allowed_is_not_contacted(
    registry: Registry, tmp_path: Path, change: dict[str, Any], reason: str, shown: str
) -> None:
    digest = registry.push("team/denied:1", [SMALL])
    cache = ImageCache(tmp_path, registry.allowed(**change))
    failure = await refusal(cache, image_task("a", registry.reference("team/denied:1"), digest))
    assert failure.reason == reason and shown in failure.message


async def test_missing_image_is_named_and_backs_off(registry: Registry, tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, registry.allowed())
    wanted = image_task("a", registry.reference("team/nothing:1"), "sha256:" + "0" * 64)
    assert (await refusal(cache, wanted)).reason == "ImageNotFound"
    again = await refusal(cache, wanted)
    assert again.reason == "ImagePullBackOff" and "1 pulls failed" in again.message


async def test_pull_policy_never_pulls_nothing(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("team/never:1", [SMALL])
    cache = ImageCache(tmp_path, registry.allowed())
    image = registry.reference("team/never:1")
    never = image_task("a", image, digest, image_pull_policy=PullPolicy.NEVER)
    assert (await refusal(cache, never)).reason == "ImageNeverPulled"
    await cache.fetch(image_task("b", image, digest))
    await cache.fetch(never)


async def test_wrong_content_under_a_digest_is_refused_and_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    bad = layer([file("v", os.urandom(100))])
    digest = registry.push("team/bad:1", [bad])
    cache = ImageCache(tmp_path, registry.allowed())
    wanted = image_task("a", registry.reference("team/bad:1"), digest)
    stored = registry.stored_blob("sha256:" + hashlib.sha256(bad).hexdigest())
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.write_bytes(bytes(data))
    failure = await refusal(cache, wanted)
    assert failure.reason == "ImageUnusable" and "wrong digest" in failure.message
    assert not list(tmp_path.iterdir()) and cache.images() == ()


async def test_registry_with_a_login_needs_the_credentials_of_the_node(tmp_path: Path) -> None:
    with running_registry(tmp_path / "open") as open_registry:
        digest = open_registry.push("team/private:1", [SMALL])
    with running_registry(tmp_path / "open", login=True) as closed:
        image = closed.reference("team/private:1")
        denied = await refusal(ImageCache(tmp_path / "a", closed.allowed()), image_task("a", image, digest))
        assert denied.reason == "RegistryDenied" and "auth_file" in denied.message
        auth = {"auths": {closed.address: {"auth": base64.b64encode(b"tenant:secret").decode()}}}
        (tmp_path / "auth.json").write_text(json.dumps(auth))
        allowed = closed.allowed(auth_file=str(tmp_path / "auth.json"))
        cache = ImageCache(tmp_path / "b", allowed)
        await cache.fetch(image_task("b", image, digest))
        (tmp_path / "auth.json").write_text("{")
        broken = await refusal(ImageCache(tmp_path / "c", allowed), image_task("c", image, digest))
        assert broken.reason == "RegistryDenied" and "config.json" in broken.message


async def test_cached_image_starts_while_the_registry_is_down(tmp_path: Path) -> None:
    with running_registry(tmp_path / "registry") as running:
        digest = running.push("team/down:latest", [SMALL])
        image, allowed = running.reference("team/down:latest"), running.allowed()
        cache = ImageCache(tmp_path / "cache", allowed)
        await cache.fetch(image_task("a", image, digest))
    await cache.fetch(image_task("b", image, digest))  # Always, because the tag is latest
    other = await refusal(cache, image_task("c", image, "sha256:" + "1" * 64))
    assert other.reason == "ImagePullFailed" and "cannot read from registry" in other.message


async def test_interrupted_pull_leaves_nothing_that_counts(registry: Registry, tmp_path: Path) -> None:
    """A cache directory as kill -9 leaves it: parts without a name, and an entry without its record."""
    digest = registry.push("team/cut:1", [SMALL])
    (tmp_path / "part-0011" / "rootfs").mkdir(parents=True)
    (tmp_path / digest.replace(":", "-") / "rootfs").mkdir(parents=True)
    cache = ImageCache(tmp_path, registry.allowed())
    assert not parts(tmp_path) and cache.images() == ()
    wanted = image_task("a", registry.reference("team/cut:1"), digest)
    await cache.fetch(wanted)
    assert (cache.root_of(wanted)[0] / "etc/greeting").exists()


async def test_nearly_full_disk_refuses_images(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = registry.push("team/full:1", [SMALL])
    monkeypatch.setattr(images, "IMAGE_DISK_FREE_FRACTION", 1.1)
    cache = ImageCache(tmp_path, registry.allowed())
    failure = await refusal(cache, image_task("a", registry.reference("team/full:1"), digest))
    assert failure.reason == "ImagePullFailed" and "free" in failure.message and not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [os.urandom(12_000_000), bytes(20_000_000)], ids=["download", "unpack"])
async def test_disk_that_fills_up_during_a_pull_is_named_and_keeps_nothing(
    registry: Registry, tmp_path: Path, content: bytes
) -> None:
    digest = registry.push("team/large:1", [layer([file("data", content)])])
    wanted = image_task("a", registry.reference("team/large:1"), digest)
    with small_disk(tmp_path / "disk", size="8m"):
        cache = ImageCache(tmp_path / "disk", registry.allowed())
        failure = await refusal(cache, wanted)
        assert failure.reason == "ImagePullFailed" and "cannot store it (" in failure.message
        assert not list((tmp_path / "disk").iterdir()) and cache.images() == ()
    roomy = ImageCache(tmp_path / "roomy", registry.allowed())
    await roomy.fetch(wanted)
    assert (roomy.root_of(wanted)[0] / "data").stat().st_size == len(content)


async def test_cache_removes_least_recently_used_images_and_none_in_use(registry: Registry, tmp_path: Path) -> None:
    def content(n: int) -> bytes:
        return layer([file("data", os.urandom(1_000_000) + bytes([n]))])

    digests = [registry.push(f"team/gc{n}:1", [content(n)]) for n in range(4)]
    cache = ImageCache(tmp_path, registry.allowed(), high_bytes=3_200_000)
    wanted = [image_task(f"t{n}", registry.reference(f"team/gc{n}:1"), digests[n]) for n in range(4)]
    for n in range(3):
        await cache.fetch(wanted[n])
        os.utime(tmp_path / digests[n].replace(":", "-"), (n, n))
    cache.release("t1")
    cache.release("t2")
    await cache.fetch(wanted[3])
    kept = {name for image in cache.images() for name in image.names if "@" in name}
    assert kept == {registry.reference(f"team/gc{n}@{digests[n]}") for n in (0, 3)}
    cache = ImageCache(tmp_path, registry.allowed(), high_bytes=1_500_000)
    cache.keep("t0", digests[0])
    full = await refusal(cache, wanted[1])
    assert full.reason == "ImagePullFailed" and "cache is full" in full.message


def test_node_offers_images_only_if_it_can_run_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler reads the drivers of the Node: a node without support is refused with DriverMissing."""
    runtime = tmp_path / "bin" / "runc"
    runtime.parent.mkdir()
    runtime.write_text("#!/bin/sh\n")
    runtime.chmod(0o755)
    place: dict[str, Any] = {"name": "n", "region": "r", "zone": "z", "state_dir": str(tmp_path / "state")}
    allowed = {"registries": ["registry.example.com"]}

    def offered(**settings: Any) -> tuple[str, ...]:
        return config.node_from_config(config.load(**place, **settings)).spec.drivers

    both = ("process", "oci")
    monkeypatch.setenv("PATH", str(runtime.parent))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert offered(drivers=both, images=allowed) == ("process", "oci", "oci-image")
    assert offered(drivers=both) == both
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert offered(drivers=both, images=allowed) == both
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert offered(drivers=both, images=allowed) == both
    with pytest.raises(Invalid, match="needs the driver oci"):
        offered(images=allowed)


# --- layers ----------------------------------------------------------------------------------------------------


def unpacked(tmp_path: Path, *layers: bytes, uid: int = 0, gid: int = 0) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tree = image_layers.RootTree(descriptor, sum(map(len, layers)), lambda: None)
        for number, packed in enumerate(layers):
            path = tmp_path / f"layer-{number}"
            path.write_bytes(packed)
            with path.open("rb") as opened:
                tree.apply(opened)
        tree.finish(uid, gid)
    finally:
        os.close(descriptor)
    return root


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_later_layers_replace_and_white_out_earlier_ones(tmp_path: Path) -> None:
    first = layer([folder("a"), file("a/old", b"1"), file("a/gone", b"1"), folder("b"), file("b/x"), file("c", b"1")])
    second = layer(
        [file("a/.wh.gone"), file("a/old", b"2"), file("b/kept"), file("b/.wh..wh..opq"), folder("c"), file("c/in")]
    )
    root = unpacked(tmp_path, first, second)
    assert tree(root) == {"a", "a/old", "b", "b/kept", "c", "c/in"} and (root / "a/old").read_text() == "2"


HOSTILE = {
    "up": [file("../escaped", b"x")],
    "inner up": [file("a/../../escaped", b"x")],
    "hard link to the node": [link("a", "../../../etc/passwd", tarfile.LNKTYPE)],
    "hard link to a missing file": [link("a", "/etc/passwd", tarfile.LNKTYPE)],
    "file as a directory": [file("a"), file("a/b")],
    "links in a circle": [link("a", "b"), link("b", "a"), file("a/c")],
    "deep": [folder("/".join("d" * 40))],
    "long name": [file("n" * 300)],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_layer_is_refused(tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with pytest.raises(ArchiveRefused):
        unpacked(tmp_path, layer(entries))
    assert not (tmp_path / "escaped").exists()


HARMLESS = {
    "absolute name": ([file("/abs", b"x")], {"abs"}),
    "whiteout above the root": ([file(".wh..."), file(".wh..")], set()),
    "write through a link to the node": (
        [link("out", "/etc"), file("out/holdfast-escaped", b"x")],
        {"out", "etc", "etc/holdfast-escaped"},
    ),
    "link up": ([link("up", "../../../.."), file("up/inside", b"x")], {"up", "inside"}),
    "devices": (
        [file("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), file("p", type=tarfile.FIFOTYPE)],
        {"dev"},
    ),
}


@pytest.mark.parametrize(("entries", "expected"), HARMLESS.values(), ids=HARMLESS.keys())
def test_layer_cannot_leave_the_root(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], expected: set[str]
) -> None:
    assert tree(unpacked(tmp_path, layer(entries))) == expected
    assert not Path("/etc/holdfast-escaped").exists()


def test_set_user_id_bits_are_dropped_and_modes_follow_the_images_user(tmp_path: Path) -> None:
    entries = [
        file("setuid", mode=0o6755),
        file("own", mode=0o600, uid=1000, gid=1000),
        file("others", mode=0o600, uid=7),
        file("group", mode=0o640, uid=7, gid=1000),
    ]
    root = unpacked(tmp_path, layer(entries), uid=1000, gid=1000)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}
    assert modes == {"setuid": 0o755, "own": 0o606, "others": 0o600, "group": 0o644}
    assert {path.stat().st_uid for path in root.iterdir()} == {os.geteuid()}


def test_layer_that_unpacks_to_far_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_layers, "ARCHIVE_RATIO_EXEMPT_BYTES", 1 << 20)
    with pytest.raises(image_layers.LayersTooLarge):
        unpacked(tmp_path, layer([file("bomb", bytes(8 << 20))]))


async def test_image_beyond_the_limits_is_too_large(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = registry.push("team/large:1", [SMALL])
    monkeypatch.setattr(manifests, "IMAGE_COMPRESSED_BYTES_MAX", 10)
    cache = ImageCache(tmp_path, registry.allowed())
    failure = await refusal(cache, image_task("a", registry.reference("team/large:1"), digest))
    assert failure.reason == "ImageTooLarge" and "at most 10" in failure.message


async def test_hostile_image_from_a_registry_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    digest = registry.push("team/hostile:1", [shell_layer(), layer(HOSTILE["up"])])
    cache = ImageCache(tmp_path, registry.allowed())
    failure = await refusal(cache, image_task("a", registry.reference("team/hostile:1"), digest))
    assert failure.reason == "ImageUnusable" and "../escaped" in failure.message and not list(tmp_path.iterdir())
