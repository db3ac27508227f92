"""etcd clusters for tests: one shared by many tests, and one that a test may break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import etcd_cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_cluster.Cluster]:
    with etcd_cluster.running_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster


@pytest.fixture
def other_cluster(tmp_path: Path) -> Iterator[etcd_cluster.Cluster]:
    """A second cluster of one member, used by this test alone."""
    with etcd_cluster.running_cluster(tmp_path / "other-etcd", 1) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[etcd_cluster.Cluster]:
    """Three members used by this test alone."""
    with etcd_cluster.running_cluster(tmp_path / "etcd", 3) as cluster:
        yield cluster
