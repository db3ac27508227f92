"""Sign-in of a browser at an OIDC issuer: the authorization code flow with PKCE, `state` and `nonce`.

A sign-in that was begun is bound to the browser by a secret of its own, so a code that was obtained for someone else
cannot be planted. Each one is finished once. The token is verified as any other token of the issuer, and is not kept:
the session ends when it expires.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from typing import Any
from urllib.parse import urlencode

import aiohttp
import jwt
import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.identity.oidc import (
    OIDC_DOCUMENT_BYTES_MAX,
    OIDC_FETCH_EVERY_S,
    OIDC_KEYS_REFRESH_S,
    OidcConfig,
    OidcVerifier,
    issuer_document,
    issuer_session,
)
from holdfast.identity.tokens import token_hash
from holdfast.model.errors import Unauthorized, Unavailable
from holdfast.model.principal import Principal

# Time to finish a sign-in at the issuer. After that, it begins anew.
OIDC_SIGN_IN_TTL_S = 600.0
# Sign-ins that were begun and not finished. A further one replaces the oldest.
OIDC_SIGN_INS_MAX = 256
# Length of a code of the issuer. A longer one is refused.
OIDC_CODE_CHARS_MAX = 4096

_log = structlog.get_logger()


class BegunSignIn(msgspec.Struct, frozen=True):
    """Where the browser goes, and the secret that it must show when it comes back."""

    location: str
    binding: str


class _Pending(msgspec.Struct, frozen=True):
    binding_sha256: str
    nonce: str
    verifier: str
    redirect: str
    expires_s: float


class OidcSignIn:
    def __init__(self, config: OidcConfig, verifier: OidcVerifier, ports: Ports) -> None:
        self._config, self._verifier, self._ports = config, verifier, ports
        self._pending: dict[str, _Pending] = {}
        self._about: dict[str, Any] = {}
        self._fetched_s = self._tried_s = float("-inf")
        self._fetching = asyncio.Lock()

    @property
    def issuer(self) -> str:
        return self._config.issuer_url

    async def begin(self, redirect: str) -> BegunSignIn:
        """Raises Unavailable if the issuer does not answer or offers no such sign-in."""
        about = await self._issuer()
        state, binding, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        while len(self._pending) >= OIDC_SIGN_INS_MAX:
            self._pending.pop(next(iter(self._pending)))
        expires_s = self._ports.clock.now() + OIDC_SIGN_IN_TTL_S
        self._pending[token_hash(state)] = _Pending(token_hash(binding), nonce, verifier, redirect, expires_s)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._config.client_id,
            "redirect_uri": redirect,
            "scope": self._config.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        where: str = about["authorization_endpoint"]
        return BegunSignIn(f"{where}{'&' if '?' in where else '?'}{urlencode(query)}", binding)

    async def finish(self, state: str, code: str, binding: str) -> Principal:
        """The user of a sign-in that this browser began. Raises Unauthorized; `why` is for the audit log only."""
        pending = self._pending.pop(token_hash(state), None)
        if pending is None:
            raise _refused("SignInUnknown")
        if not hmac.compare_digest(pending.binding_sha256, token_hash(binding)):
            raise _refused("SignInOfAnotherBrowser")
        if self._ports.clock.now() >= pending.expires_s:
            raise _refused("SignInExpired")
        if not code or len(code) > OIDC_CODE_CHARS_MAX:
            raise _refused("CodeInvalid")
        token = await self._exchange(pending, code)
        await self._verifier.prepare(token)
        who = self._verifier.verify(token)
        if jwt.decode(token, options={"verify_signature": False}).get("nonce") != pending.nonce:  # verified above
            raise _refused("NonceWrong")
        return who

    async def _exchange(self, pending: _Pending, code: str) -> str:
        about = await self._issuer()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect,
            "client_id": self._config.client_id,
            "code_verifier": pending.verifier,
        }
        secret_file = self._config.client_secret_file
        if secret_file is not None:
            form["client_secret"] = (await asyncio.to_thread(secret_file.read_text)).strip()
        try:
            async with (
                issuer_session(self._config) as session,
                session.post(about["token_endpoint"], data=form, allow_redirects=False) as answer,
            ):
                body = await answer.content.read(OIDC_DOCUMENT_BYTES_MAX)
                if answer.status != 200:
                    _log.warning("oidc_code_refused", issuer=self.issuer, status=answer.status)
                    raise _refused("CodeRefused")
            return str(msgspec.json.decode(body, type=dict[str, Any])["id_token"])
        except (msgspec.MsgspecError, KeyError):
            raise _refused("TokenMissing") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise Unavailable(f"issuer {self.issuer}: did not exchange the code ({problem})") from problem

    async def _issuer(self) -> dict[str, Any]:
        """The issuer's document, kept for a while: a sign-in begins without a credential and must not cost a fetch."""
        async with self._fetching:
            now_s = self._ports.clock.monotonic()
            if now_s - self._fetched_s >= OIDC_KEYS_REFRESH_S and now_s - self._tried_s >= OIDC_FETCH_EVERY_S:
                self._tried_s = now_s
                try:
                    async with issuer_session(self._config) as session:
                        about = await issuer_document(session, self._config)
                    for name in ("authorization_endpoint", "token_endpoint"):
                        if not str(about.get(name, "")).startswith("https://"):
                            raise ValueError(f"{name}: must begin with https://")
                    self._about, self._fetched_s = about, now_s
                except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as problem:
                    _log.warning("oidc_issuer_fetch_failed", issuer=self.issuer, reason=str(problem)[:200])
        if not self._about:
            raise Unavailable(f"issuer {self.issuer}: does not answer; next: sign in with a link or a token")
        return self._about


def _refused(why: str) -> Unauthorized:
    return Unauthorized(facts={"why": why})
