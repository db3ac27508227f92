"""Programs of `make tools` that readers of the documentation copy."""

from __future__ import annotations

from pathlib import Path

from tests.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]


def test_program_that_images_copy_is_the_program_itself() -> None:
    """A wrapper script with the name of its own interpreter could not start in an image."""
    busybox = ROOT / ".tools" / "bin" / "busybox"
    if not busybox.exists():
        skip_or_fail("busybox is missing; next: make tools")
    assert busybox.read_bytes()[:4] == b"\x7fELF", f"{busybox} is no program; next: make tools"
