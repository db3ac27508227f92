"""OIDC tokens, verified with the keys of a real HTTPS issuer on loopback."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from tests.server.conftest import Api, running

from holdfast.foundation.ports import SystemPorts
from holdfast.identity.authenticate import Authenticator
from holdfast.identity.certificates import issue, make_ca
from holdfast.identity.oidc import OidcConfig, OidcVerifier
from holdfast.model.errors import Unauthorized

pytestmark = pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SMALL = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    def __init__(self) -> None:
        self.url = ""
        self.calls = 0
        self.keys: list[dict[str, Any]] = [
            {**json.loads(RSAAlgorithm.to_jwk(RSA.public_key())), "kid": "rsa"},
            {**json.loads(ECAlgorithm.to_jwk(EC.public_key())), "kid": "ec"},
            {**json.loads(OKPAlgorithm.to_jwk(ED.public_key())), "kid": "ed"},
            {**json.loads(RSAAlgorithm.to_jwk(SMALL.public_key())), "kid": "small"},
        ]

    async def about(self, request: web.Request) -> web.Response:
        self.calls += 1
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})

    async def jwks(self, request: web.Request) -> web.Response:
        return web.json_response({"keys": self.keys})


@pytest.fixture
async def issuer(tmp_path: Path) -> AsyncIterator[Issuer]:
    made = Issuer()
    now_s = time.time()
    make_ca(tmp_path, now_s=now_s)
    issue(tmp_path, "issuer", "issuer", now_s=now_s, server=True, client=False, dns=("localhost",), ips=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "issuer.crt", tmp_path / "issuer.key")
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", made.about)
    app.router.add_get("/keys", made.jwks)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    server: Any = site._server
    made.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    await runner.cleanup()


def verifier(issuer: Issuer, folder: Path, **more: Any) -> OidcVerifier:
    settings: dict[str, Any] = {"groups_claim": "groups", "groups_prefix": "oidc:", **more}
    config = OidcConfig(issuer_url=issuer.url, client_id="holdfast", ca_file=folder / "ca.crt", **settings)
    return OidcVerifier(config, SystemPorts())


def claims(issuer: Issuer, **more: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"iss": issuer.url, "aud": "holdfast", "sub": "ann", "exp": now + 600, "iat": now, **more}
    return {name: value for name, value in made.items() if value is not None}


def token(issuer: Issuer, key: Any = RSA, alg: str = "RS256", kid: str = "rsa", **more: Any) -> str:
    return jwt.encode(claims(issuer, **more), key, algorithm=alg, headers={"kid": kid})


async def outcome(checked: OidcVerifier, text: str) -> str:
    """The user's name, or why the token is refused."""
    await checked.prepare(text)
    try:
        return checked.verify(text).name
    except Unauthorized as refusal:
        return str(refusal.facts["why"])


@pytest.mark.parametrize(("key", "alg", "kid"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")])
async def test_token_of_each_algorithm_gives_user_and_groups(
    issuer: Issuer, tmp_path: Path, key: Any, alg: str, kid: str
) -> None:
    checked = verifier(issuer, tmp_path)
    text = token(issuer, key, alg, kid, groups=["dev", "ops"])
    await checked.prepare(text)
    who = checked.verify(text)
    assert who.name == f"{issuer.url}#ann"
    assert who.groups == ("oidc:dev", "oidc:ops", "system:authenticated")
    assert checked.is_live(who.credential) and not checked.is_live("oidc:1")


async def test_wrong_tokens_are_refused(issuer: Issuer, tmp_path: Path) -> None:
    checked = verifier(issuer, tmp_path, username_prefix="-", required_claims=(("hd", "example.org"),))
    now, pem = int(time.time()), RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    hd = {"hd": "example.org"}
    unsigned = jwt.encode(claims(issuer, **hd), None, algorithm="none", headers={"kid": "rsa"})  # type: ignore[arg-type]
    secret = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    body = token(issuer, **hd).split(".")[1]
    head = jwt.utils.base64url_encode(b'{"alg":"HS256","kid":"rsa","typ":"JWT"}').decode()
    confused = f"{head}.{body}." + jwt.utils.base64url_encode(secret.sign(f"{head}.{body}".encode(), pem)).decode()
    cases = [
        (token(issuer, **hd), "ann"),
        (unsigned, "TokenAlgorithmRefused"),
        (confused, "TokenAlgorithmRefused"),
        (token(issuer, EC, "ES256", "rsa", **hd), "TokenAlgorithmRefused"),
        (token(issuer, OTHER, **hd), "TokenSignatureInvalid"),
        (token(issuer, **hd)[:-4] + "AAAA", "TokenSignatureInvalid"),
        (token(issuer, SMALL, "RS256", "small", **hd), "TokenKeyUnknown"),
        (token(issuer, kid="gone", **hd), "TokenKeyUnknown"),
        (token(issuer, aud="other", **hd), "TokenAudienceWrong"),
        (token(issuer, iss="https://evil.example", **hd), "TokenIssuerWrong"),
        (token(issuer, exp=now - 60, **hd), "TokenExpired"),
        (token(issuer, exp=now - 5, **hd), "ann"),  # within the tolerated difference of clocks
        (token(issuer, exp=None, **hd), "TokenSignatureInvalid"),
        (token(issuer, nbf=now + 300, **hd), "TokenNotYetValid"),
        (token(issuer), "TokenClaimMissing"),
        (token(issuer, sub="holdfast:controller:authority", **hd), "TokenUserInvalid"),
        (token(issuer, sub="system:masters", **hd), "TokenUserInvalid"),
        (token(issuer, sub="", **hd), "TokenUserInvalid"),
        (token(issuer, groups=["g"] * 300, **hd), "TokenGroupsInvalid"),
        ("ey.not.jwt", "TokenAlgorithmRefused"),
    ]
    for text, expected in cases:
        assert await outcome(checked, text) == expected, expected


async def test_groups_of_the_platform_cannot_come_from_an_issuer(issuer: Issuer, tmp_path: Path) -> None:
    checked = verifier(issuer, tmp_path, groups_prefix="")
    text = token(issuer, groups=["holdfast:operators", "holdfast:controllers", "system:masters", "dev"])
    await checked.prepare(text)
    assert checked.verify(text).groups == ("dev", "system:authenticated")


async def test_new_key_is_fetched_and_unknown_keys_do_not_flood_the_issuer(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = verifier(issuer, tmp_path)
    assert (await outcome(checked, token(issuer))).endswith("#ann")
    await asyncio.gather(*(outcome(checked, token(issuer, kid=f"k{n}")) for n in range(50)))
    assert issuer.calls == 1
    monkeypatch.setattr("holdfast.identity.oidc.OIDC_FETCH_EVERY_S", 0.0)
    issuer.keys.append({**json.loads(RSAAlgorithm.to_jwk(OTHER.public_key())), "kid": "new"})
    issuer.keys.pop(0)
    assert (await outcome(checked, token(issuer, OTHER, kid="new"))).endswith("#ann")
    assert await outcome(checked, token(issuer)) == "TokenKeyUnknown"  # rotated away


async def test_authenticator_takes_tokens_of_the_issuer_as_bearer(issuer: Issuer, tmp_path: Path) -> None:
    accepts = Authenticator("global", SystemPorts(), oidc=verifier(issuer, tmp_path, username_prefix="o:"))
    header = f"Bearer {token(issuer)}"
    with pytest.raises(Unauthorized):
        accepts.from_bearer(header)
    await accepts.prepare(header)
    who = accepts.from_bearer(header)
    assert who.name == "o:ann" and accepts.is_credential_valid(who)
    plain = Authenticator("global", SystemPorts())
    with pytest.raises(Unauthorized):
        plain.from_bearer(header)


async def test_unreachable_issuer_refuses_and_does_not_fail(tmp_path: Path, issuer: Issuer) -> None:
    gone = Issuer()
    gone.url, gone.keys = "https://127.0.0.1:1", []
    assert await outcome(verifier(gone, tmp_path), token(gone)) == "TokenKeyUnknown"


async def test_server_authorizes_groups_of_the_issuer_by_bindings(
    issuer: Issuer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cell = await anext(generated := running("global", tmp_path_factory.mktemp("cell")))
    verified = Authenticator("global", cell.ports, oidc=verifier(issuer, tmp_path))
    cell.app.authenticator = verified
    operator = Api(cell.app)
    bearer = Api(cell.app, "", [("authorization", f"Bearer {token(issuer, groups=['sre'])}")])
    assert (await bearer.get("/api/v1/namespaces")).code == 403
    binding = {
        "metadata": {"name": "sre"},
        "roleRef": {"kind": "ClusterRole", "name": "holdfast:operator"},
        "subjects": [{"kind": "Group", "name": "oidc:sre"}],
    }
    created = await operator.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    assert created.code == 201, created.body
    assert (await bearer.get("/api/v1/namespaces")).code == 200
    other = Api(cell.app, "", [("authorization", f"Bearer {token(issuer, groups=['holdfast:operators'])}")])
    assert (await other.get("/api/v1/namespaces")).code == 403
    await generated.aclose()
