"""Platforms of tests whose nodes run images from a registry of the test."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.image_registry import Registry, program
from tests.platforms import RunningPlatform, running_platform
from tests.requirements import skip_or_fail


@contextlib.contextmanager
def platform_with_images(
    folder: Path, registry: Registry, *up: str, programs: tuple[str, ...] = ("runc",)
) -> Iterator[RunningPlatform]:
    """A platform that allows the registry."""
    if os.geteuid() != 0:
        skip_or_fail("images need an agent that is root")
    (folder / "bin").mkdir()
    for name in programs:
        (folder / "bin" / name).symlink_to(program(name))
    state = folder / "platform"
    state.mkdir(mode=0o700)
    named = f'registries = ["{registry.address}"]\ninsecure = ["{registry.address}"]\nnetworks = ["127.0.0.0/8"]\n'
    (state / "node.toml").write_text(f'drivers = ["process", "oci"]\n[images]\n{named}')
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        with running_platform(state, *up) as running:
            yield running
