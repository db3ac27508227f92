"""Access to a remote platform through a kubeconfig: URLs, credentials and errors of invalid files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import run
from holdfast.client.cell_access import access_of, contexts
from holdfast.foundation.exit_codes import CommandError, ExitCode
from holdfast.platform.layout import Layout


def kubeconfig(folder: Path, names: tuple[str, ...], *, current: str = "", **user: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [
            {"name": n, "cluster": {"server": f"https://{n}.example:7400", "certificate-authority": "ca.crt"}}
            for n in names
        ],
        "contexts": [{"name": n, "context": {"cluster": n, "user": "me"}} for n in names],
        "users": [{"name": "me", "user": user}],
    }
    path = folder / f"{'-'.join(names)}.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def test_cell_uses_its_context_or_its_region_endpoint(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, ("global", "eu-west"), token="secret")
    assert access_of(path, "eu-west", "https://other:1").url == "https://eu-west.example:7400"
    far = access_of(path, "us-east", "https://us-east.elsewhere:7401")
    assert (far.url, far.token, far.ca) == ("https://us-east.elsewhere:7401", "secret", tmp_path / "ca.crt")
    with pytest.raises(CommandError, match="no context us-east"):
        access_of(path, "us-east")
    assert Layout(path).remote and not Layout(tmp_path).remote


def test_embedded_keys_become_private_files(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    path = kubeconfig(tmp_path, ("global",), **{"client-certificate-data": data, "client-key-data": data})
    key = contexts(path)["global"].key
    assert key is not None and key.read_bytes() == b"PEM"
    assert key.stat().st_mode & 0o077 == 0 and key.parent.stat().st_mode & 0o077 == 0


def test_current_context_is_global_cell_without_named_one(tmp_path: Path) -> None:
    assert contexts(kubeconfig(tmp_path, ("mine",), current="mine"))["global"].url == "https://mine.example:7400"
    with pytest.raises(CommandError, match="no context for the global cell"):
        contexts(kubeconfig(tmp_path, ("a", "b")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("kind: Workload\n", "not a kubeconfig"), ("a: [b", "not readable"), ("\x00", "not readable")],
)
def test_invalid_kubeconfig_is_named(tmp_path: Path, capsys: Any, text: str, expected: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    assert run(["get", "nodes", "--state", str(path)]) == ExitCode.USAGE
    error_output = capsys.readouterr().err
    assert str(path) in error_output and expected in error_output


def test_process_commands_need_the_state_directory(tmp_path: Path, capsys: Any) -> None:
    path = kubeconfig(tmp_path, ("global",))
    for arguments in (["up"], ["down"], ["drill", "run", "zone-loss"], ["credentials", "list"]):
        assert run([*arguments, "--state", str(path)]) == ExitCode.USAGE, arguments
        assert "is a file" in capsys.readouterr().err
    assert run(["token", "list", "--state", str(path)]) == ExitCode.USAGE
    assert "found a kubeconfig" in capsys.readouterr().err, "only join tokens are made over the API"


def test_rotated_kubeconfig_is_read_again(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, ("global",), token="old")
    assert contexts(path)["global"].token == "old"
    kubeconfig(tmp_path, ("global",), token="new")
    assert contexts(path)["global"].token == "new"


def test_kubeconfig_of_the_environment_is_used_without_a_local_platform(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(tmp_path, ("global",))
    (tmp_path / "ca.crt").write_text("not a certificate")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STATE", raising=False)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{path}")
    run(["get", "nodes"])
    assert f"note: using {path} (KUBECONFIG)" in capsys.readouterr().err
    assert run(["get", "nodes", "--state", str(tmp_path / "chosen")]) == ExitCode.UNREACHABLE
    assert "KUBECONFIG" not in capsys.readouterr().err

    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "platform.json").write_text("{")
    run(["get", "nodes"])
    shown = capsys.readouterr().err
    assert "note: using the platform in .holdfast, not KUBECONFIG" in shown and "damaged" in shown
