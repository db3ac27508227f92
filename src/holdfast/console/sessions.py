"""Sign-in to the console: one-time links, and the sessions they are exchanged for.

A link works once and for a few minutes. A session needs two secrets: a cookie, and a key that the page sends in a
header. Cookies are shared by all ports of a host, so a cookie alone could leak to another program on this machine.
Secrets are stored as hashes. A session ends when the credential that it began with is revoked or expires.
"""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from holdfast.foundation.ports import Ports
from holdfast.identity.tokens import token_hash
from holdfast.model.principal import Principal, from_identity

# Lifetime of a sign-in link. After that, it is refused.
LINK_TTL_S = 600.0
# Sign-in links that wait to be used. A further one replaces the oldest.
LINKS_MAX = 64
# Lifetime of a session. After that, the user signs in again.
SESSION_TTL_S = 12 * 3600.0
# Sessions of one cell. A further one replaces the oldest.
SESSIONS_MAX = 256
# Links that were used or expired and are remembered, so that a second use can be told from a guess.
SPENT_LINKS_MAX = 256

SESSIONS_FILE = "console-sessions.json"

_log = structlog.get_logger()


class ConsoleSession(msgspec.Struct, frozen=True):
    """One signed-in browser. `credential` is the one that the sign-in link was made with."""

    cookie_sha256: str
    key_sha256: str
    user: str
    groups: tuple[str, ...]
    credential: str
    expires_s: float

    @property
    def principal(self) -> Principal:
        return from_identity(self.user, self.groups, credential=self.credential)


class IssuedSession(msgspec.Struct, frozen=True):
    """The secrets of a new session: the only time they are visible."""

    cookie: str
    key: str
    session: ConsoleSession


class _SignInLink(msgspec.Struct, frozen=True):
    user: str
    groups: tuple[str, ...]
    credential: str
    expires_s: float


class LinkRefused(Exception):
    """A sign-in link that is unknown, used or expired. `user` is whom it was made for, if that is known."""

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.user = user


class ConsoleSessions:
    """Links in memory; sessions in a file of the cell, so that they survive a restart."""

    def __init__(self, path: Path | None, ports: Ports, is_credential_valid: Callable[[Principal], bool]) -> None:
        self._path = path
        self._ports = ports
        self._is_credential_valid = is_credential_valid
        self._links: dict[str, _SignInLink] = {}
        self._spent: dict[str, str] = {}
        self._sessions: dict[str, ConsoleSession] = {}
        self._load()

    def make_link(self, who: Principal) -> tuple[str, float]:
        """A new one-time code and when it expires."""
        code = secrets.token_urlsafe(24)
        expires_s = self._ports.clock.now() + LINK_TTL_S
        while len(self._links) >= LINKS_MAX:
            self._links.pop(next(iter(self._links)))
        self._links[token_hash(code)] = _SignInLink(who.name, who.groups, who.credential, expires_s)
        return code, expires_s

    def exchange(self, code: str) -> IssuedSession:
        """The session of a link. Raises LinkRefused for a second use."""
        digest = token_hash(code)
        link = self._links.pop(digest, None)
        if link is None:
            user = self._spent.get(digest)
            raise LinkRefused("LinkUsed", user) if user is not None else LinkRefused("LinkUnknown")
        self._spent[digest] = link.user
        while len(self._spent) > SPENT_LINKS_MAX:
            self._spent.pop(next(iter(self._spent)))
        if self._ports.clock.now() >= link.expires_s:
            raise LinkRefused("LinkExpired", link.user)
        return self.begin(from_identity(link.user, link.groups, credential=link.credential))

    def begin(self, who: Principal) -> IssuedSession:
        """A new session of an authenticated caller."""
        cookie, key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        expires_s = self._ports.clock.now() + SESSION_TTL_S
        made = ConsoleSession(token_hash(cookie), token_hash(key), who.name, who.groups, who.credential, expires_s)
        self._drop_expired()
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        self._sessions[made.cookie_sha256] = made
        self._save()
        return IssuedSession(cookie, key, made)

    def find(self, cookie: str, key: str) -> ConsoleSession | None:
        """The live session of these two secrets."""
        session = self._sessions.get(token_hash(cookie))
        if session is None or not hmac.compare_digest(session.key_sha256, token_hash(key)):
            return None
        return session if self.is_live(session) else None

    def is_live(self, session: ConsoleSession) -> bool:
        """Whether the session has not ended and its credential is still valid."""
        known = session.cookie_sha256 in self._sessions
        return known and self._ports.clock.now() < session.expires_s and self._is_credential_valid(session.principal)

    def end(self, session: ConsoleSession) -> None:
        if self._sessions.pop(session.cookie_sha256, None) is not None:
            self._save()

    def _drop_expired(self) -> None:
        now_s = self._ports.clock.now()
        self._sessions = {digest: s for digest, s in self._sessions.items() if now_s < s.expires_s}

    def _load(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=tuple[ConsoleSession, ...])
        except (msgspec.DecodeError, OSError) as wrong:
            _log.warning("console_sessions_read_failed", path=str(self._path), message=str(wrong))
            return
        self._sessions = {session.cookie_sha256: session for session in held}
        self._drop_expired()

    def _save(self) -> None:
        """Replaces the file; only its owner can read it. A failure ends nobody's session before the next restart."""
        if self._path is None:
            return
        try:
            handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(tuple(self._sessions.values())))
            Path(temporary).replace(self._path)
        except OSError as wrong:
            _log.warning("console_sessions_write_failed", path=str(self._path), message=str(wrong))
