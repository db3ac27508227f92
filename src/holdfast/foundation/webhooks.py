"""Signed HTTP POST to a webhook, in the form of Standard Webhooks: one attempt, with deadlines and bounds.

- The signature covers id, time and body, so that none can be changed and an old request cannot be sent again later.
- No redirect is followed, and nothing of the response is read except its status line and headers.
- Link-local, multicast and unspecified addresses are never used: the metadata service of a cloud is one of them. This
  machine is used only if that is allowed. The address that was checked is the one that is connected to.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ssl
import time

import msgspec

from holdfast.foundation.checked_http import SourceRefused, TransferLimits, exchange, failures_named, judged_address
from holdfast.model.notification import url_problem

# Time for one attempt, from the connection to the status line.
WEBHOOK_ATTEMPT_S = 10.0
# Time without data in one attempt.
WEBHOOK_SILENCE_S = 5.0
# Shortest signing key. A shorter one could be guessed.
SIGNING_KEY_BYTES_MIN = 16
# Prefix of a signing key in base64, as in Standard Webhooks.
SECRET_PREFIX = "whsec_"

_LIMITS = TransferLimits(size_max=0, timeout_s=WEBHOOK_SILENCE_S, transfer_s=WEBHOOK_ATTEMPT_S, redirects_max=0)


class WebhookTarget(msgspec.Struct, frozen=True):
    url: str
    key: bytes
    allow_loopback: bool = False
    ca_certificates: str = ""

    def __repr__(self) -> str:
        """Without the key and the URL: representations end up in logs and tracebacks."""
        return "WebhookTarget()"

    def url_refusal(self, url: str) -> str:
        return url_problem(url, allow_loopback=self.allow_loopback)

    def address_refusal(self, text: str) -> str:
        address, public = judged_address(text, ())
        if address.is_loopback:
            return "" if self.allow_loopback else f"{text} is this machine; next: set spec.allowLoopback"
        private = address.is_private and not (address.is_link_local or address.is_unspecified or address.is_reserved)
        return "" if public or private else f"{text} is not an address of a receiver"


def signing_key(stored: bytes) -> bytes:
    """The key in a Secret's value: `whsec_` and base64, or the bytes themselves. Raises ValueError."""
    text = stored.strip()
    try:
        key = base64.b64decode(text[len(SECRET_PREFIX) :], validate=True) if text.startswith(b"whsec_") else text
    except binascii.Error:
        raise ValueError(f"what follows {SECRET_PREFIX} is not base64") from None
    if len(key) < SIGNING_KEY_BYTES_MIN:
        raise ValueError(f"the signing key has {len(key)} bytes (expected at least {SIGNING_KEY_BYTES_MIN})")
    return key


def signature(key: bytes, message_id: str, at_s: int, body: bytes) -> str:
    signed = f"{message_id}.{at_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def post(target: WebhookTarget, message_id: str, body: bytes, now_s: float) -> str:
    """Sends the body once. Returns why it was not accepted; empty if it was. Blocks for at most about the time of one
    attempt and of the name's resolution, so call it in a thread."""
    at_s = int(now_s)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "holdfast-notify",
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": signature(target.key, message_id, at_s, body),
    }
    deadline = time.monotonic() + _LIMITS.transfer_s
    try:
        trust = ssl.create_default_context(cadata=target.ca_certificates) if target.ca_certificates else None
        with (
            failures_named(deadline, _LIMITS),
            exchange(target, target.url, deadline, _LIMITS, headers, method="POST", content=body, trust=trust) as reply,
        ):
            if time.monotonic() >= deadline:  # cut off in the headers, which look complete then
                return f"not complete after {_LIMITS.transfer_s:g} s"
            if 200 <= reply.status < 300:
                return ""
            moved = "; redirects are not followed" if 300 <= reply.status < 400 else ""
            return f"HTTP status {reply.status}{moved}"
    except SourceRefused as refused:
        return str(refused)[:200]
    except ssl.SSLError as error:
        return f"spec.caCertificates cannot be read ({error.reason})"
