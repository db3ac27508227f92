"""Bearer tokens: a file of hashes. A token itself is shown once, when it is issued, and kept nowhere.

Owns `tokens.json`. A token is compared by its SHA-256 in constant time; 256 random bits need no slow hash. The file is
read again when it changes, so that a revoked token stops working at once and without a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

import msgspec
import structlog

from holdfast.model.times import parse_time, seconds_text

FILE = "tokens.json"
_PREFIX = "hf_"
_log = structlog.get_logger()


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """One credential. `cells` limits it to those cells; none named means every cell. `expires` "" means never."""

    name: str
    user: str
    sha256: str
    groups: tuple[str, ...] = ()
    expires: str = ""
    cells: tuple[str, ...] = ()

    def expired(self, now_s: float) -> bool:
        """An end that cannot be read has passed: a slip of the hand must not make a token last for ever."""
        try:
            return bool(self.expires) and now_s >= parse_time(self.expires)
        except ValueError:
            return True


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """The tokens of one cell or platform."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._tokens: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """The tokens as of now; looks at the file's stamp each time and reads it only when that moved."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._seen, self._tokens = (0, 0, 0), ()
            return ()
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._tokens = msgspec.json.decode(self._path.read_bytes(), type=tuple[Token, ...])
            except (msgspec.DecodeError, OSError) as wrong:
                # What was valid stays valid, so that an editor's half-written file locks nobody out.
                _log.error("token_file_unreadable", path=str(self._path), message=str(wrong), kept=len(self._tokens))
        return self._tokens

    def find(self, token: str) -> Token | None:
        """The credential this token is, expired or not. Goes through all of them whichever matches."""
        wanted = digest(token)
        match: Token | None = None
        for held in self.all():
            if hmac.compare_digest(held.sha256, wanted):
                match = held
        return match

    def _changeable(self) -> tuple[Token, ...]:
        """The tokens, to write them back with a change. Raises ValueError for a file that cannot be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=tuple[Token, ...])
        except FileNotFoundError:
            return ()
        except msgspec.DecodeError as wrong:
            raise ValueError(f"{self._path} is not a list of tokens ({wrong}); repair or remove it first") from None

    def issue(
        self,
        name: str,
        user: str,
        groups: tuple[str, ...] = (),
        *,
        expires_at_s: float | None = None,
        cells: tuple[str, ...] = (),
    ) -> str:
        """Makes a token and gives it back: the only time it can be seen. A name is used once."""
        held_now = self._changeable()
        if any(held.name == name for held in held_now):
            raise ValueError(f"a token named {name!r} exists; revoke it first, or choose another name")
        token = _PREFIX + secrets.token_urlsafe(32)
        expires = seconds_text(expires_at_s) if expires_at_s is not None else ""
        made = Token(name=name, user=user, sha256=digest(token), groups=groups, expires=expires, cells=cells)
        self._write((*held_now, made))
        return token

    def revoke(self, name: str) -> bool:
        """Whether there was one of that name."""
        held = self._changeable()
        left = tuple(token for token in held if token.name != name)
        if len(left) == len(held):
            return False
        self._write(left)
        return True

    def _write(self, tokens: tuple[Token, ...]) -> None:
        """Replaces the file in one step: readers see the old one or the new one, and only the owner can read it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(tokens), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._seen = (0, 0, 0)
