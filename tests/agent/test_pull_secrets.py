"""Private images, pulled with the credentials of a tenant from a real registry: basic and token authentication."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.image_registry import Registry, file, layer, running_registry
from tests.agent.test_images import image_task, refusal
from tests.agent.token_server import running_token_server

from holdfast.agent.drivers.contract import StartFailed, Task
from holdfast.agent.drivers.images import ImageCache
from holdfast.model.image import PullPolicy
from holdfast.model.reasons import Reason
from holdfast.model.registry_login import PullSecret, RegistryLogin

LAYER = layer([file("greeting", b"private\n")])
GOOD = RegistryLogin(secret="regcred", user="tenant", password="secret")
WRONG = RegistryLogin(secret="regcred", user="tenant", password="guessed")


class Logins:
    """The region's answers, by tenant. None: the region cannot be reached."""

    def __init__(self, **known: RegistryLogin | None) -> None:
        self.known = known
        self.asked = 0

    async def __call__(self, task: Task) -> RegistryLogin:
        self.asked += 1
        found = self.known[task.namespace]
        if found is None:
            raise StartFailed(Reason.CONFIG_UNREACHABLE, "pull secrets: the region does not answer")
        return found


def private_task(name: str, image: str, digest: str, tenant: str = "acme", **more: Any) -> Task:
    wanted = image_task(name, image, digest, image_pull_secrets=(PullSecret("regcred"),), **more)
    return msgspec.structs.replace(wanted, namespace=tenant)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a registry that holds team/private:1, and its digest."""
    root = tmp_path_factory.mktemp("closed")
    with running_registry(root) as open_registry:
        return root, open_registry.push("team/private:1", [LAYER])


@pytest.fixture(scope="module")
def closed(pushed: tuple[Path, str]) -> Iterator[Registry]:
    with running_registry(pushed[0], login=True) as running:
        yield running


async def test_registry_with_basic_authentication_gives_the_image_for_a_pull_secret(
    closed: Registry, pushed: tuple[Path, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    image, digest = closed.reference("team/private:1"), pushed[1]
    cache = ImageCache(tmp_path, closed.allowed(), logins=Logins(acme=GOOD))
    wanted = private_task("a", image, digest)
    await cache.fetch(wanted)
    assert (cache.root_of(wanted)[0] / "greeting").read_text() == "private\n"
    held = [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert held == [] and "secret" not in caplog.text and "secret" not in repr(GOOD).replace("regcred", "")


async def test_wrong_password_names_the_secret_and_a_new_one_is_tried_at_once(
    closed: Registry, pushed: tuple[Path, str], tmp_path: Path
) -> None:
    image, digest = closed.reference("team/private:1"), pushed[1]
    logins = Logins(acme=WRONG)
    cache = ImageCache(tmp_path, closed.allowed(), logins=logins)
    denied = await refusal(cache, private_task("a", image, digest))
    assert denied.reason == "RegistryDenied" and "Secret regcred" in denied.message
    assert "guessed" not in denied.message
    assert (await refusal(cache, private_task("a", image, digest))).reason == "ImagePullBackOff"
    logins.known["acme"] = GOOD
    await cache.fetch(private_task("a", image, digest))


async def test_missing_pull_secret_is_named_and_does_not_back_off(closed: Registry, tmp_path: Path) -> None:
    gap = RegistryLogin(reason="SecretMissing", message="Secret regcred: does not exist in the tenant")
    cache = ImageCache(tmp_path, closed.allowed(), logins=Logins(acme=gap))
    for _ in range(2):
        failure = await refusal(cache, private_task("a", closed.reference("team/private:1"), "sha256:" + "0" * 64))
        assert (failure.reason, failure.message) == ("SecretMissing", gap.message)


async def test_private_image_is_given_to_another_tenant_only_if_the_registry_says_so(
    closed: Registry, pushed: tuple[Path, str], tmp_path: Path
) -> None:
    image, digest = closed.reference("team/private:1"), pushed[1]
    logins = Logins(acme=GOOD, rival=WRONG, partner=GOOD)
    cache = ImageCache(tmp_path, closed.allowed(), logins=logins)
    await cache.fetch(private_task("a", image, digest))
    denied = await refusal(cache, private_task("b", image, digest, "rival"))
    assert denied.reason == "RegistryDenied"
    without = msgspec.structs.replace(image_task("c", image, digest), namespace="rival")
    assert (await refusal(cache, without)).reason in ("RegistryDenied", "ImagePullBackOff")
    never = private_task("d", image, digest, "rival", image_pull_policy=PullPolicy.NEVER)
    assert (await refusal(cache, never)).reason == "ImageNeverPulled"
    elsewhere = private_task("e", closed.reference("team/other:1"), digest, "partner")
    assert (await refusal(cache, elsewhere)).reason == "ImageNotFound", "a repository that does not have the digest"
    await cache.fetch(private_task("f", image, digest, "partner"))


async def test_tenant_that_was_given_the_image_needs_neither_region_nor_registry(
    pushed: tuple[Path, str], tmp_path: Path
) -> None:
    logins = Logins(acme=GOOD, rival=GOOD)
    with running_registry(pushed[0], login=True) as running:
        image, digest, allowed = running.reference("team/private:1"), pushed[1], running.allowed()
        cache = ImageCache(tmp_path, allowed, logins=logins)
        await cache.fetch(private_task("a", image, digest))
    logins.known = {"acme": None, "rival": GOOD}
    restarted = ImageCache(tmp_path, allowed, logins=logins)
    await restarted.fetch(private_task("b", image, digest))
    await restarted.fetch(private_task("c", image, digest, image_pull_policy=PullPolicy.ALWAYS))
    other = await refusal(restarted, private_task("d", image, digest, "rival"))
    assert other.reason == "ImagePullFailed", "the registry cannot confirm it to another tenant"


async def test_registry_with_token_authentication_gets_a_token_for_the_pull_secret(
    pushed: tuple[Path, str], tmp_path: Path
) -> None:
    with (
        running_token_server(tmp_path, {"tenant": "secret"}) as tokens,
        running_registry(pushed[0], token=tokens.settings()) as running,
    ):
        hosts = {"hosts": (tokens.address,), "insecure": (running.address, tokens.address)}
        image, digest = running.reference("team/private:1"), pushed[1]
        denied = ImageCache(tmp_path / "a", running.allowed(**hosts), logins=Logins(acme=WRONG))
        assert (await refusal(denied, private_task("a", image, digest))).reason == "RegistryDenied"
        cache = ImageCache(tmp_path / "b", running.allowed(**hosts), logins=Logins(acme=GOOD))
        await cache.fetch(private_task("b", image, digest))
        assert set(tokens.asked) == {("tenant", "repository:team/private:pull")}
        unnamed = ImageCache(tmp_path / "c", running.allowed(), logins=Logins(acme=GOOD))
        before = len(tokens.asked)
        assert (await refusal(unnamed, private_task("c", image, digest))).reason == "RegistryDenied"
        assert len(tokens.asked) == before, "a token server that the node does not name gets nothing"
