"""Pull secrets: which entry is for the registry of an image, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast.model.image import parse_reference
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry_login import (
    BadDockerConfig,
    PullSecret,
    find_docker_login,
    find_registry_login,
    validate_pull_secrets,
)
from holdfast.model.secret import Secret

IMAGE = "registry.example.com:5000/team/web:1"


def config(**auths: Any) -> bytes:
    return json.dumps({"auths": auths}).encode()


def entry(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:p:w".encode()).decode()}


@pytest.mark.parametrize(
    ("name", "image", "found"),
    [
        ("registry.example.com:5000", IMAGE, True),
        ("https://registry.example.com:5000/v2/", IMAGE, True),
        ("REGISTRY.example.com:5000", IMAGE, True),
        ("registry.example.com:5000/team", IMAGE, True),
        ("registry.example.com:5000/te", IMAGE, False),
        ("registry.example.com:5000/other", IMAGE, False),
        ("registry.example.com", IMAGE, False),
        ("registry.example.com:5001", IMAGE, False),
        ("evil-registry.example.com:5000", IMAGE, False),
        ("registry.example.com:5000.evil.example", IMAGE, False),
        ("*.example.com:5000", IMAGE, False),
        ("https://index.docker.io/v1/", "library/nginx", True),
        ("https://index.docker.io/v1/", IMAGE, False),
        ("docker.io", "nginx:1", True),
        ("", IMAGE, False),
    ],
)
def test_entry_matches_its_own_registry_only(name: str, image: str, found: bool) -> None:
    login = find_docker_login(config(**{name: entry("u")}), parse_reference(image))
    assert login == (("u", "p:w") if found else None)


def test_entry_with_the_longest_path_wins() -> None:
    host = "registry.example.com:5000"
    given = {host: entry("all"), f"{host}/team/web": entry("web"), f"{host}/team": entry("team")}
    assert find_docker_login(config(**given), parse_reference(IMAGE)) == ("web", "p:w")


def test_user_and_password_are_accepted_as_kubectl_writes_them() -> None:
    given = config(**{"registry.example.com:5000": {"username": "u", "password": "p", **entry("x")}})
    assert find_docker_login(given, parse_reference(IMAGE)) == ("u", "p")


@pytest.mark.parametrize("text", [b"", b"[]", b'{"auths": []}', b'{"auths": {"a": 1}}', b"\xff"])
def test_other_documents_are_refused_without_their_content(text: bytes) -> None:
    with pytest.raises(BadDockerConfig, match=r"^not in the form of Docker's config\.json$"):
        find_docker_login(text, parse_reference(IMAGE))


def secret(name: str, data: bytes, type_: str = "kubernetes.io/dockerconfigjson") -> Secret:
    return Secret(metadata=ObjectMeta(name=name, namespace="t"), data={".dockerconfigjson": data}, type=type_)


def test_first_secret_with_an_entry_for_the_registry_is_used() -> None:
    host = "registry.example.com:5000"
    known = {
        "a": secret("a", config(**{"other.example": entry("a")})),
        "b": secret("b", config(**{host: entry("b")})),
        "c": secret("c", config(**{host: entry("c")})),
        "odd": secret("odd", b"{}", "Opaque"),
        "bad": secret("bad", b"["),
    }

    def login(*names: str) -> Any:
        return find_registry_login(IMAGE, [PullSecret(name) for name in names], known.get)

    assert (login("a", "b", "c").secret, login("a", "b", "c").user) == ("b", "b")
    assert login("a").user == "" and login("a").reason == ""
    assert login("none", "b").reason == "SecretMissing" and "Secret none" in login("none").message
    assert login("odd").reason == "ConfigUnusable" and "expected type" in login("odd").message
    assert login("bad").reason == "ConfigUnusable" and login("bad").message.startswith("Secret bad: not in the form")
    assert "p:w" not in repr(login("b"))


def test_pull_secrets_need_an_image_and_names() -> None:
    def fields(names: list[str], *, has_image: bool) -> list[str]:
        found = validate_pull_secrets("f", [PullSecret(name) for name in names], has_image=has_image)
        return [cause.field for cause in found]

    assert fields(["regcred"], has_image=True) == []
    assert fields(["regcred"], has_image=False) == ["f"]
    assert fields([""], has_image=True) == ["f[0].name"]
    assert fields(["a", "a"], has_image=True) != []
    assert fields([f"s{n}" for n in range(9)], has_image=True) == ["f"]
