"""A small OIDC issuer as a process of its own: `python -m tests.oidc_issuer FOLDER`, with the CA of the folder.

Its user is signed in already, so `/authorize` sends the browser back at once. `/token` checks the PKCE verifier, the
redirect and the client, and gives out each code once. Prints its URL when it listens.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from holdfast.identity.certificates import issue, make_ca

CLIENT = "holdfast"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    def __init__(self) -> None:
        self.url = ""
        self._codes: dict[str, dict[str, str]] = {}

    async def about(self, request: web.Request) -> web.Response:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return web.json_response({"issuer": self.url, **{name: f"{self.url}/{at}" for name, at in names.items()}})

    async def keys(self, request: web.Request) -> web.Response:
        return web.json_response({"keys": [{**json.loads(RSAAlgorithm.to_jwk(KEY.public_key())), "kid": "one"}]})

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        if asked.get("client_id") != CLIENT or asked.get("code_challenge_method") != "S256":
            raise web.HTTPBadRequest(text="client_id or code_challenge_method")
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self._codes.pop(str(form.get("code")), None)
        if asked is None or form.get("redirect_uri") != asked["redirect_uri"] or form.get("client_id") != CLIENT:
            return web.json_response({"error": "invalid_grant"}, status=400)
        digest = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "sub": "ann", "exp": now + 600, "iat": now, "nonce": asked["nonce"]}
        signed = jwt.encode({**claims, "groups": ["sre"]}, KEY, algorithm="RS256", headers={"kid": "one"})
        return web.json_response({"id_token": signed, "access_token": "unused", "token_type": "Bearer"})


def main(folder: Path) -> None:
    now_s = time.time()
    make_ca(folder, now_s=now_s)
    issue(folder, "issuer", "issuer", now_s=now_s, server=True, client=False, dns=("localhost",), ips=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "issuer.crt", folder / "issuer.key")
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.about)
    app.router.add_get("/keys", issuer.keys)
    app.router.add_get("/authorize", issuer.authorize)
    app.router.add_post("/token", issuer.token)

    async def started() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        issuer.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        sys.stdout.write(issuer.url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    asyncio.run(started())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
