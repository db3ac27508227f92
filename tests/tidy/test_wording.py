"""The files contain no machine paths, registries or credentials."""

from __future__ import annotations

import re
from pathlib import Path

# Split strings, so that this file does not match itself.
MACHINE = [
    r"/ro" r"ot/",
    r"/ho" r"me/[a-z]",
    r"/wo" r"rk/",
    r"/op" r"t/pypi",
    r"/op" r"t/wheels",
    r"C:\\\\Users",
    r"py" r"pi\.org",
    r"pythonhos" r"ted\.org",
    r"index-u" r"rl\s*=",
    r"deb\.deb" r"ian\.org",
    r"npm" r"js\.org",
]
SECRETS = [r"BEGIN (RSA |EC |)PRIV" r"ATE KEY", r"AKIA[0-9A-Z]{16}", r"ghp_[A-Za-z0-9]{36}"]


def texts(files: list[Path]) -> list[tuple[Path, str]]:
    found = []
    for path in files:
        try:
            found.append((path, path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def test_files_name_no_machine_or_registry(root: Path, files: list[Path]) -> None:
    pattern = re.compile("|".join(MACHINE))
    found = []
    for path, text in texts(files):
        if path.name == "LICENSE":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    assert not found, found


def test_files_contain_no_secret(root: Path, files: list[Path]) -> None:
    pattern = re.compile("|".join(SECRETS))
    found = [str(path.relative_to(root)) for path, text in texts(files) if pattern.search(text)]
    assert not found, found


def test_line_endings_and_final_newlines_are_correct(root: Path, files: list[Path]) -> None:
    found = []
    for path, text in texts(files):
        if text and (not text.endswith("\n") or "\r\n" in text or re.search(r"[ \t]+$", text, re.MULTILINE)):
            found.append(str(path.relative_to(root)))
    assert not found, f"trailing spaces, CRLF or no final newline: {found}"


def test_lock_files_pin_everything_with_hashes(root: Path) -> None:
    for lock in sorted((root / "requirements").glob("*.txt")):
        text = lock.read_text()
        assert "://" not in re.sub(r"#.*", "", text), f"{lock.name} contains a URL"
        for block in re.split(r"\n(?=[a-z0-9])", text.strip()):
            name = block.split()[0]
            assert "==" in name, f"{lock.name}: {name} is not pinned"
            assert "--hash=sha256:" in block, f"{lock.name}: {name} has no hash"


def test_every_dependency_has_a_reason(root: Path) -> None:
    import tomllib

    reasons = (root / "docs" / "decisions" / "0002-dependencies.md").read_text().lower()
    project = tomllib.loads((root / "pyproject.toml").read_text())
    dependencies = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = [re.split(r"[<>=!~ \[]", item)[0].lower() for item in dependencies]
    unexplained = [name for name in names if f"`{name}`" not in reasons]
    assert not unexplained, f"docs/decisions/0002-dependencies.md does not say why: {unexplained}"
