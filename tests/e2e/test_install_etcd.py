"""`holdfast init global --etcd`: an etcd cluster that requires TLS, client certificates, and a user with a password."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.etcd_cluster import Cluster, free_ports, running_cluster, wait_for

from holdfast.identity.certificates import issue, make_ca
from holdfast.install.places import Places
from holdfast.install.removal import remove_role

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.timeout(300)]
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("etcd-pki")
    make_ca(folder, now_s=time.time(), common_name="etcd")
    issue(folder, "server", "etcd-server", now_s=time.time(), server=True, ips=("127.0.0.1",), dns=("localhost",))
    # The name is no user of etcd, so the password decides; etcd prefers the name of a certificate if it is one.
    issue(folder, "client", "holdfast-client", now_s=time.time())
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, pki: Path) -> Iterator[Cluster]:
    """One member is enough: TLS and users are the same for three."""
    options: tuple[str, ...] = ("--cert-file", f"{pki}/server.crt", "--key-file", f"{pki}/server.key")
    options += ("--client-cert-auth", "--trusted-ca-file", f"{pki}/ca.crt", "--auth-token", "simple")
    with running_cluster(tmp_path_factory.mktemp("etcd"), 1, scheme="https", options=options) as running:
        tls = ("--cacert", f"{pki}/ca.crt", "--cert", f"{pki}/client.crt", "--key", f"{pki}/client.key")
        wait_for(lambda: "true" in running.ctl(*tls, "endpoint", "health", "-w", "json"), "etcd to be healthy")
        running.ctl(*tls, "user", "add", f"root:{PASSWORD}-root")
        running.ctl(*tls, "user", "grant-role", "root", "root")
        running.ctl(*tls, "user", "add", f"holdfast:{PASSWORD}")
        running.ctl(*tls, "role", "add", "cells")
        running.ctl(*tls, "role", "grant-permission", "cells", "--prefix=true", "readwrite", "")
        running.ctl(*tls, "user", "grant-role", "holdfast", "cells")
        running.ctl(*tls, "auth", "enable")
        yield running


def init_global(state: Path, port: int, cluster: Cluster, pki: Path, password: str) -> str:
    (state.parent / "password").write_text(password + "\n")
    options = ["--etcd", ",".join(cluster.endpoints), "--etcd-ca", f"{pki}/ca.crt", "--etcd-user", "holdfast"]
    options += ["--etcd-password-file", str(state.parent / "password")]
    options += ["--etcd-cert", f"{pki}/client.crt", "--etcd-key", f"{pki}/client.key"]
    command = [sys.executable, "-m", "holdfast.cli", "init", "global", "--advertise", f"127.0.0.1:{port}"]
    done = subprocess.run(
        [*command, "--state", str(state), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "CI": "true"},
        timeout=200,
        check=False,
    )
    return f"exit {done.returncode}\n{done.stderr}"


def test_cell_on_etcd_with_tls_client_certificate_and_user_serves(tmp_path: Path, cluster: Cluster, pki: Path) -> None:
    state, port = tmp_path / "state", free_ports(1)[0]
    try:
        answer = init_global(state, port, cluster, pki, PASSWORD)
        assert answer.startswith("exit 0"), answer
        assert "7 created" in answer
        again = init_global(state, port, cluster, pki, PASSWORD)
        assert "already runs" in again and "0 created" in again
    finally:
        remove_role(Places(state), "global", keep_state=False)


def test_cell_with_wrong_password_for_etcd_says_so(tmp_path: Path, cluster: Cluster, pki: Path) -> None:
    state, port = tmp_path / "state", free_ports(1)[0]
    try:
        answer = init_global(state, port, cluster, pki, "wrong")
        assert answer.startswith("exit 1"), answer
        assert "wrong user or password" in answer
        assert "next:" in answer
    finally:
        remove_role(Places(state), "global", keep_state=False)
