"""Secrets do not pass the redaction, and everything else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.identity.certificates import make_ca
from holdfast.model.join import token_text
from holdfast.support.redaction import REDACTED, Redaction

LABEL = "EC PRIVATE KEY-----"
KEY = f"-----BEGIN {LABEL}\nMHcCAQEEIPlanted0\nkJ8sPlanted1\n-----END {LABEL}"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("login with hf_AbCdEf0123456789AbCdEf0123456789 done", "AbCdEf0123456789"),
        (f"join {token_text('us-east', 'Zz9Zz9Zz9Zz9')} done", "Zz9Zz9Zz9Zz9"),
        ("Authorization: Digest username=bob-secret", "bob-secret"),
        ('{"authorization": "Bearer abc.def.ghijkl"}', "ghijkl"),
        ("sent bearer 0123456789abcdef", "0123456789abcdef"),
        (f"key {KEY} end", "Planted0"),
        (json.dumps({"key": KEY}), "Planted0"),
        (KEY[:60], "Planted0"),
        (KEY[40:], "Planted1"),
        ("postgres://bob:hunter22@db/x", "hunter22"),
        ("db_password=hunter22 next", "hunter22"),
        (json.dumps({"apiKey": "hunter22"}), "hunter22"),
        (json.dumps(json.dumps({"clientSecret": "hunter22"})), "hunter22"),
        ("client-key-data: LS0tLS1CRUdJTg==", "LS0tLS1CRUdJTg"),
    ],
)
def test_text_with_a_secret_loses_it(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in Redaction().text(text)


def test_text_without_a_secret_is_unchanged() -> None:
    line = '{"event": "lease_renewed", "node": "us-east-1", "epoch": 7, "tokens": 3, "url": "https://127.0.0.1:7400/x"}'
    redaction = Redaction()
    assert redaction.text(line) == line
    assert redaction.replaced == 0


def test_object_loses_values_and_keeps_names() -> None:
    item: dict[str, Any] = {
        "kind": "Workload",
        "metadata": {
            "name": "web",
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": '{"env":{"A":"hunter22"}}',
                "team": "a",
            },
        },
        "spec": {
            "template": {
                "env": {"DB": "hunter22"},
                "containers": [{"name": "c", "env": [{"name": "X", "value": "hunter22"}]}],
                "command": ["serve", "--password", "hunter22", "--port", "80"],
            }
        },
        "data": {"config": "hunter22"},
        "stringData": {"config": "hunter22"},
        "message": "started with hunter22",
    }
    redaction = Redaction()
    found = redaction.scrub(redaction.object(item))
    assert "hunter22" not in json.dumps(found)
    assert found["spec"]["template"]["env"] == {"DB": REDACTED}
    assert found["spec"]["template"]["containers"][0]["env"] == [{"name": "X", "value": REDACTED}]
    assert found["spec"]["template"]["command"] == ["serve", "--password", REDACTED, "--port", "80"]
    assert found["metadata"]["annotations"]["team"] == "a"
    assert found["message"] == f"started with {REDACTED}"


def test_value_of_an_environment_is_removed_from_a_later_text() -> None:
    redaction = Redaction()
    redaction.object({"env": {"A": 'quoted "value" here', "B": "80"}})
    assert (
        redaction.scrub('event {"said": "quoted \\"value\\" here"} port 80')
        == f'event {{"said": "{REDACTED}"}} port 80'
    )


def test_generated_key_is_recognised(tmp_path: Any) -> None:
    make_ca(tmp_path, now_s=1_700_000_000.0)
    keys = [path.read_text() for path in tmp_path.iterdir() if "PRIVATE KEY" in path.read_text()]
    assert keys
    for key in keys:
        assert Redaction().text(key).strip() == REDACTED
