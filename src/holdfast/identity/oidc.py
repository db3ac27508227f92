"""OIDC tokens: a JWT of one issuer to a principal. Owns the issuer's keys, fetched when needed and cached.

Only asymmetric algorithms are accepted, and a key is used only with the algorithm of its type, so neither `none` nor an
HMAC with a public key as secret can pass. Names and groups of the platform (`holdfast:`, `system:`) cannot come from
an issuer: an operator binds roles to the issuer's own groups.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.model.errors import Unauthorized
from holdfast.model.principal import Principal, from_identity
from holdfast.model.validation import has_control_characters

# Keys of the issuer are fetched again after this time, when a token arrives.
OIDC_KEYS_REFRESH_S = 600.0
# Keys older than this are not used: an issuer that cannot be reached cannot revoke a key either.
OIDC_KEYS_MAX_AGE_S = 86_400.0
# Interval between fetches, however many tokens name unknown keys.
OIDC_FETCH_EVERY_S = 10.0
# Time for a request to the issuer. After that, tokens are checked with the keys that are known.
OIDC_FETCH_TIMEOUT_S = 5.0
# Size of the issuer's documents. A larger one is refused.
OIDC_DOCUMENT_BYTES_MAX = 256 * 1024
# Keys of one issuer. Further ones are ignored.
OIDC_KEYS_MAX = 64
# Difference of clocks that is tolerated in `exp`, `nbf` and `iat`.
OIDC_CLOCK_SKEW_S = 30.0
# Groups taken from one token. A token with more is refused, because a missing group could be one that matters.
OIDC_GROUPS_MAX = 256
# Length of a user name or group of a token. A longer one is refused.
OIDC_NAME_CHARS_MAX = 253
# Size of an RSA key. Smaller ones are ignored.
OIDC_RSA_BITS_MIN = 2048

_KEY_TYPES = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
_RESERVED = ("holdfast:", "system:")
_log = structlog.get_logger()


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Named as the flags of kube-apiserver."""

    issuer_url: str
    client_id: str
    username_claim: str = "sub"
    username_prefix: str = ""
    """Empty: the issuer and `#`, unless the claim is `email`. `-`: none."""
    groups_claim: str = ""
    groups_prefix: str = ""
    required_claims: tuple[tuple[str, str], ...] = ()
    ca_file: Path | None = None
    client_secret_file: Path | None = None
    """Secret of the console at the issuer, if the issuer gave it one; PKCE is used with and without it."""
    scopes: str = "openid email profile"
    """What the console asks for at the issuer."""

    @property
    def prefix(self) -> str:
        if self.username_prefix == "-" or (not self.username_prefix and self.username_claim == "email"):
            return ""
        return self.username_prefix or f"{self.issuer_url}#"


def is_jwt(token: str) -> bool:
    return token.count(".") == 2 and token.startswith("ey")


class OidcVerifier:
    def __init__(self, config: OidcConfig, ports: Ports) -> None:
        if not config.issuer_url.startswith("https://"):
            raise ValueError(f"--oidc-issuer-url {config.issuer_url}: must begin with https://")
        if not config.client_id:
            raise ValueError("--oidc-client-id is missing (the audience of the tokens)")
        self._config = config
        self._ports = ports
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_s = self._tried_s = float("-inf")
        self._fetching = asyncio.Lock()

    async def prepare(self, token: str) -> None:
        """Fetches the issuer's keys if the token names an unknown one or the known ones are old. Never raises."""
        now_s = self._ports.clock.monotonic()
        known = _header(token).get("kid", "") in self._keys
        if known and now_s - self._fetched_s < OIDC_KEYS_REFRESH_S:
            return
        async with self._fetching:
            if self._ports.clock.monotonic() - self._tried_s < OIDC_FETCH_EVERY_S:
                return
            self._tried_s = self._ports.clock.monotonic()
            try:
                self._keys = await self._fetch()
                self._fetched_s = self._ports.clock.monotonic()
            except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as problem:
                _log.warning("oidc_keys_fetch_failed", issuer=self._config.issuer_url, reason=str(problem)[:200])

    def verify(self, token: str) -> Principal:
        """The principal of a token. Raises Unauthorized; `why` is for the audit log only."""
        header = _header(token)
        algorithm = str(header.get("alg", ""))
        key = self._keys.get(str(header.get("kid", "")))
        if algorithm not in _KEY_TYPES:
            raise _refused("TokenAlgorithmRefused")
        if key is None or self._ports.clock.monotonic() - self._fetched_s > OIDC_KEYS_MAX_AGE_S:
            raise _refused("TokenKeyUnknown")
        if key.key_type != _KEY_TYPES[algorithm]:
            raise _refused("TokenAlgorithmRefused")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._config.client_id,
                issuer=self._config.issuer_url,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidAudienceError:
            raise _refused("TokenAudienceWrong") from None
        except jwt.InvalidIssuerError:
            raise _refused("TokenIssuerWrong") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise _refused("TokenSignatureInvalid") from None
        self._check_times(claims)
        return self._principal(claims)

    def is_live(self, credential: str) -> bool:
        """Whether the token behind a credential (`oidc:EXPIRY`) has not expired."""
        text = credential.partition(":")[2]
        return text.isdigit() and self._ports.clock.now() < int(text)

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        """On the cell's own clock port, so that tests and drills can move it."""
        now_s = self._ports.clock.now()
        expires, starts = claims.get("exp", ""), claims.get("nbf", 0)
        if not _is_number(expires) or not _is_number(starts) or not _is_number(claims.get("iat", 0)):
            raise _refused("TokenSignatureInvalid")
        if now_s >= float(expires) + OIDC_CLOCK_SKEW_S:
            raise _refused("TokenExpired")
        if now_s < max(float(starts), float(claims.get("iat", 0))) - OIDC_CLOCK_SKEW_S:
            raise _refused("TokenNotYetValid")

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        config = self._config
        for name, value in config.required_claims:
            if claims.get(name) != value:
                raise _refused("TokenClaimMissing")
        user = claims.get(config.username_claim)
        if config.username_claim == "email" and claims.get("email_verified", True) is not True:
            raise _refused("TokenUserInvalid")
        if not isinstance(user, str) or not _is_name(config.prefix + user):
            raise _refused("TokenUserInvalid")
        found = claims.get(config.groups_claim, []) if config.groups_claim else []
        given = [found] if isinstance(found, str) else found
        if not isinstance(given, list) or len(given) > OIDC_GROUPS_MAX:
            raise _refused("TokenGroupsInvalid")
        groups = tuple(dict.fromkeys(config.groups_prefix + g for g in given if isinstance(g, str) and g))
        accepted = tuple(group for group in groups if _is_name(group))
        return from_identity(config.prefix + user, accepted, credential=f"oidc:{int(claims['exp'])}")

    async def _fetch(self) -> dict[str, jwt.PyJWK]:
        async with issuer_session(self._config) as session:
            about = await issuer_document(session, self._config)
            where = about.get("jwks_uri")
            if not isinstance(where, str) or not where.startswith("https://"):
                raise ValueError("jwks_uri: must begin with https://")
            listed = (await _document(session, where)).get("keys")
        if not isinstance(listed, list):
            raise ValueError("jwks_uri: no list of keys")
        return dict(_usable_keys(listed[:OIDC_KEYS_MAX]))


def issuer_session(config: OidcConfig) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=str(config.ca_file) if config.ca_file is not None else None)
    timeout = aiohttp.ClientTimeout(total=OIDC_FETCH_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=context))


async def issuer_document(session: aiohttp.ClientSession, config: OidcConfig) -> dict[str, Any]:
    """What the issuer says about itself. Raises ValueError if it is another issuer."""
    about = await _document(session, config.issuer_url.rstrip("/") + "/.well-known/openid-configuration")
    if about.get("issuer") != config.issuer_url:
        raise ValueError(f"the issuer calls itself {str(about.get('issuer'))[:100]}")
    return about


def _usable_keys(listed: list[Any]) -> list[tuple[str, jwt.PyJWK]]:
    """Keys for signatures, of an accepted type and size."""
    found: list[tuple[str, jwt.PyJWK]] = []
    for item in listed:
        if not isinstance(item, dict) or item.get("use", "sig") != "sig" or item.get("kty") not in _KEY_TYPES.values():
            continue
        try:
            key = jwt.PyJWK.from_dict(item)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        small = item["kty"] == "RSA" and getattr(key.key, "key_size", 0) < OIDC_RSA_BITS_MIN
        curve = item["kty"] == "EC" and item.get("crv") != "P-256"
        if not small and not curve and isinstance(item.get("kid"), str):
            found.append((item["kid"], key))
    return found


async def _document(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"{url}: status {answer.status}")
        body = await answer.content.read(OIDC_DOCUMENT_BYTES_MAX + 1)
        while len(body) <= OIDC_DOCUMENT_BYTES_MAX and (more := await answer.content.read(OIDC_DOCUMENT_BYTES_MAX)):
            body += more
    if len(body) > OIDC_DOCUMENT_BYTES_MAX:
        raise ValueError(f"{url}: larger than {OIDC_DOCUMENT_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as wrong:
        raise ValueError(f"{url}: {wrong}") from None


def _header(token: str) -> Mapping[str, Any]:
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        return {}


def _is_name(text: str) -> bool:
    fits = 0 < len(text) <= OIDC_NAME_CHARS_MAX and not has_control_characters(text)
    return fits and not text.startswith(_RESERVED)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _refused(why: str) -> Unauthorized:
    return Unauthorized(facts={"why": why})
