"""`holdfast up --store etcd`: a platform on a local three-member cluster, and cells on different stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import etcd_cluster
from tests.platforms import holdfast, running_platform

pytestmark = [pytest.mark.e2e, pytest.mark.waits, pytest.mark.slow]


@pytest.mark.parametrize("store", ["etcd", "global=etcd"])
def test_platform_on_etcd_starts_serves_and_stops(store: str, tmp_path: Path) -> None:
    etcd_cluster.etcd_binary()
    state = tmp_path / "platform"
    with running_platform(state, "--store", store, "--regions", "us-east") as up:
        assert up.up_output["serving"] is True
        sqlite = sorted(path.parent.name for path in (state / "cells").glob("*/store.sqlite"))
        assert sqlite == ([] if store == "etcd" else ["us-east"])
        marked = sorted(path.parent.name for path in (state / "cells").glob("*/etcd.json"))
        assert marked == (["global", "us-east"] if store == "etcd" else ["global"])
        again = holdfast("up", "--store", "sqlite", "--state", str(state), "--detach", check=False)
        assert again.returncode != 0 and "--store" in again.stderr
        holdfast("down", "--state", str(state))


def test_unknown_store_option_is_refused(tmp_path: Path) -> None:
    for wrong in ("mysql", "nowhere=etcd", "global=mysql"):
        done = holdfast("up", "--store", wrong, "--state", str(tmp_path / "none"), check=False)
        assert done.returncode == 2, done.stderr
        assert "--store" in done.stderr
