"""Signing keys, the signature, and the addresses that a webhook may have."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.foundation.webhooks import WebhookTarget, post, signature, signing_key


def test_signature_covers_id_time_and_body() -> None:
    key = b"0123456789abcdef"
    wanted = base64.b64encode(hmac.new(key, b"id-1.1700000000.{}", hashlib.sha256).digest()).decode()
    assert signature(key, "id-1", 1_700_000_000, b"{}") == f"v1,{wanted}"
    others = {signature(key, "id-2", 1_700_000_000, b"{}"), signature(key, "id-1", 1_700_000_001, b"{}")}
    assert len({*others, signature(key, "id-1", 1_700_000_000, b"{ }"), f"v1,{wanted}"}) == 4


def test_signing_key_is_read_as_bytes_or_with_the_prefix_of_standard_webhooks() -> None:
    raw = bytes(range(24))
    assert signing_key(b"whsec_" + base64.b64encode(raw) + b"\n") == raw
    assert signing_key(b"a key of sixteen\n") == b"a key of sixteen"


@pytest.mark.parametrize("stored", [b"short", b"whsec_****************", b"whsec_" + base64.b64encode(b"short"), b""])
def test_guessable_or_unreadable_signing_key_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"signing key|base64"):
        signing_key(stored)


@pytest.mark.parametrize(
    ("address", "loopback", "allowed"),
    [
        ("93.184.216.34", False, True),
        ("10.1.2.3", False, True),
        ("fd00::1", False, True),
        ("127.0.0.1", False, False),
        ("127.0.0.1", True, True),
        ("::1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("169.254.169.254", True, False),
        ("::ffff:169.254.169.254", True, False),
        ("64:ff9b::a9fe:a9fe", True, False),
        ("fe80::1", True, False),
        ("0.0.0.0", True, False),
        ("224.0.0.1", True, False),
        ("168.63.129.16", True, False),
    ],
)
def test_webhook_never_reaches_metadata_services(address: str, loopback: bool, allowed: bool) -> None:
    target = WebhookTarget("https://pager.example.com/", b"k" * 16, allow_loopback=loopback)
    assert (target.address_refusal(address) == "") is allowed


def test_name_that_resolves_to_this_machine_is_refused_before_anything_is_sent() -> None:
    target = WebhookTarget("https://localhost:1/", b"k" * 16)
    assert "allowLoopback" in post(target, "id", b"{}", 1.0)


def test_unreadable_ca_certificates_are_named() -> None:
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert "caCertificates" in post(WebhookTarget("https://localhost/", b"k" * 16, ca_certificates=broken), "i", b"", 1)


def test_key_is_not_in_representations() -> None:
    assert "secretkey" not in repr(WebhookTarget("https://a/secretkey", b"secretkey-secretkey"))


def test_verification_of_the_page_accepts_our_signature_and_nothing_else() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "notifications.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    is_genuine, secret = names["is_genuine"], "whsec_" + base64.b64encode(bytes(range(32))).decode()
    now = int(time.time())

    def headers(at_s: int, body: bytes) -> dict[str, str]:
        made = signature(signing_key(secret.encode()), "id-1", at_s, body)
        return {"webhook-id": "id-1", "webhook-timestamp": str(at_s), "webhook-signature": made}

    assert is_genuine(secret, headers(now, b"{}"), b"{}")
    assert not is_genuine(secret, headers(now, b"{}"), b"{ }")
    assert not is_genuine(secret, headers(now - 400, b"{}"), b"{}")
    assert not is_genuine(secret, {**headers(now, b"{}"), "webhook-id": "id-2"}, b"{}")
    assert not is_genuine("whsec_" + base64.b64encode(bytes(32)).decode(), headers(now, b"{}"), b"{}")
