"""Bearer tokens: a file of hashes. The token itself is shown once, when it is issued, and stored nowhere.

Owns `tokens.json`. Tokens are compared by SHA-256 in constant time; 256 random bits need no slow hash. The file is read
again when it changes, so a revoked token stops working at once, without a restart.
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

TOKENS_FILE = "tokens.json"
_PREFIX = "hf_"
_log = structlog.get_logger()


class BearerToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """One credential. `cells` limits it to these cells; empty means every cell. `expires` "" means never."""

    name: str
    user: str
    sha256: str
    groups: tuple[str, ...] = ()
    expires: str = ""
    cells: tuple[str, ...] = ()

    def is_expired(self, now_s: float) -> bool:
        """An unreadable expiry counts as expired: a typo must not make a token last forever."""
        try:
            return bool(self.expires) and now_s >= parse_time(self.expires)
        except ValueError:
            return True


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """The tokens of one cell or platform."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._tokens: tuple[BearerToken, ...] = ()

    def all(self) -> tuple[BearerToken, ...]:
        """The current tokens. Checks the file's stat each time and reads it only if that changed."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._seen, self._tokens = (0, 0, 0), ()
            return ()
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._tokens = msgspec.json.decode(self._path.read_bytes(), type=tuple[BearerToken, ...])
            except (msgspec.DecodeError, OSError) as wrong:
                # The previous tokens stay valid, so that a half-written file locks nobody out.
                _log.error("token_file_read_failed", path=str(self._path), message=str(wrong), kept=len(self._tokens))
        return self._tokens

    def find(self, token: str) -> BearerToken | None:
        """The credential of this token, expired or not. Compares all of them, whichever matches."""
        wanted = token_hash(token)
        match: BearerToken | None = None
        for held in self.all():
            if hmac.compare_digest(held.sha256, wanted):
                match = held
        return match

    def _read_for_change(self) -> tuple[BearerToken, ...]:
        """The tokens, to be written back with a change. Raises ValueError if the file cannot be decoded."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=tuple[BearerToken, ...])
        except FileNotFoundError:
            return ()
        except msgspec.DecodeError as wrong:
            message = f"token file {self._path}: not a list of tokens ({wrong}); next: repair or delete the file"
            raise ValueError(message) from None

    def issue(
        self,
        name: str,
        user: str,
        groups: tuple[str, ...] = (),
        *,
        expires_at_s: float | None = None,
        cells: tuple[str, ...] = (),
    ) -> str:
        """Creates a token and returns it: the only time it is visible. Names are unique."""
        held_now = self._read_for_change()
        if any(held.name == name for held in held_now):
            raise ValueError(f"token {name}: already exists; next: revoke it first, or choose another name")
        token = _PREFIX + secrets.token_urlsafe(32)
        expires = seconds_text(expires_at_s) if expires_at_s is not None else ""
        made = BearerToken(name=name, user=user, sha256=token_hash(token), groups=groups, expires=expires, cells=cells)
        self._write((*held_now, made))
        return token

    def revoke(self, name: str) -> bool:
        """Returns whether a token of that name existed."""
        held = self._read_for_change()
        left = tuple(token for token in held if token.name != name)
        if len(left) == len(held):
            return False
        self._write(left)
        return True

    def _write(self, tokens: tuple[BearerToken, ...]) -> None:
        """Replaces the file atomically; only the owner can read it."""
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
