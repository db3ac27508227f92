"""Facts about the machine that the agent reports of its node."""

from __future__ import annotations

import platform
from pathlib import Path

from holdfast.agent.system_facts import FACT_CHARS_MAX, detect_system


def test_facts_are_read_from_the_files_of_the_machine(tmp_path: Path) -> None:
    for name, text in {
        "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "etc/machine-id": "0123456789abcdef\n",
        "proc/sys/kernel/random/boot_id": "6f1c\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = detect_system(tmp_path)
    assert found.os_image == "Debian GNU/Linux 12 (bookworm)"
    assert (found.machine_id, found.boot_id, found.system_uuid) == ("0123456789abcdef", "6f1c", "")
    assert found.kernel_version == platform.release()
    assert found.architecture in ("amd64", "arm64", platform.machine())


def test_facts_of_a_machine_without_files_are_empty_and_long_ones_are_cut(tmp_path: Path) -> None:
    assert detect_system(tmp_path).os_image == ""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("x" * 5000)
    assert len(detect_system(tmp_path).machine_id) == FACT_CHARS_MAX
