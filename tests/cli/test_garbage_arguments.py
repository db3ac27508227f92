"""Every command with drawn garbage in its arguments ends with an exit code of the table and words for people.

Each command is read from its own parameters, so a new one is tested without being named here.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.cli.app import COMMANDS, holdfast, run
from holdfast.foundation.exit_codes import ExitCode

DRAWS = 2
NOT_RUN = {
    "up": "starts a platform",
    "serve": "runs until it is stopped",
    "agent": "runs until it is stopped",
    "hollow": "runs until it is stopped",
    "dns": "runs until it is stopped",
    "proxy": "runs until it is stopped",
    "init": "installs on this machine",
    "leave": "removes from this machine",
    "node": "joins this machine",
    "doctor": "measures this machine",
}
TEXTS = (
    "", "x", "a/b", "a/b/c", "/", "..", "-", "\u00fcn\u00ef", "\udcff", "x" * 300, "0", "-1", "{}", "[1, 2]", "a=b",
    "%s{}", "127.0.0.1:99999", "::", "http://", "https://[::1", "/dev/null", "missing.yaml", "folder", "binary.bin",
    "broken.yaml", "list.json", "deep.yaml", "loop", "nan", "inf", "1e400", "9" * 40, "\n", "a\nb", "us-east", "nodes",
    "payments/risk-api", "-5m", "2026-13-40", "a:b:c", ",", "*", "\x1b[31m",
)  # fmt: skip
KEPT = ("state", "watch", "follow")
"""Options that are not drawn: where the platform is, and those that run until they are stopped."""
NUMBERS = ("0", "1", "-1", "99999", "1e9", "9" * 30, "nan", "inf", "0.5", "x", "")


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))
    else:
        yield path, command


def drawn_value(parameter: click.Parameter, rng: random.Random) -> str:
    if isinstance(parameter.type, click.Choice) and rng.random() < 0.8:
        return str(rng.choice(list(parameter.type.choices)))
    is_number = isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType)
    return rng.choice(NUMBERS if is_number and rng.random() < 0.6 else TEXTS)


def drawn_arguments(command: click.Command, rng: random.Random) -> tuple[str, ...]:
    """Every required parameter, and a quarter of the others. `--state` stays what it is."""
    words, last = [], []
    for parameter in command.params:
        count = parameter.nargs if parameter.nargs > 0 else rng.randint(1, 3)
        if isinstance(parameter, click.Argument):
            if parameter.required or rng.random() < 0.6:
                last += [drawn_value(parameter, rng) for _ in range(count)]
        elif parameter.name not in KEPT and (parameter.required or rng.random() < 0.25):
            words.append(rng.choice(parameter.opts))
            if not getattr(parameter, "is_flag", False):
                words += [drawn_value(parameter, rng) for _ in range(count)]
    return (*words, *last)


def make_files(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "binary.bin").write_bytes(random.Random(3).randbytes(300))
    (folder / "broken.yaml").write_text("a: [b\n c: {")
    (folder / "list.json").write_text('[{"a": [1, null]}]')
    (folder / "deep.yaml").write_text("{a: " * 2000)
    (folder / "loop").symlink_to("loop")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NOT_RUN])
def test_command_with_garbage_ends_with_words_for_people(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    group = holdfast.get_command(click.Context(holdfast), name)
    assert group is not None
    for path, command in leaves(group, (name,)):
        rng = random.Random(" ".join(path))
        for _ in range(DRAWS):
            arguments = (*path, *drawn_arguments(command, rng))
            monkeypatch.setattr("sys.stdin", io.StringIO(""))
            capsys.readouterr()
            code = run(arguments)
            printed = capsys.readouterr()
            what = f"{arguments}: {code}\n{printed.out}{printed.err}"
            assert code in set(ExitCode) and printed.out + printed.err, what
            for word in ("Traceback", "unexpected failure", "object at 0x", "[Errno"):
                assert word not in printed.err, what
            if "error:" in printed.err and code != ExitCode.USAGE:
                assert "next:" in printed.err, what


def test_commands_that_are_not_run_exist() -> None:
    assert NOT_RUN.keys() <= COMMANDS.keys()


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("words", [("plan", "-f"), ("plan", "--policy"), ("policy", "shadow", "-f")])
@pytest.mark.parametrize("file", ["list.json", "deep.yaml", "broken.yaml", "binary.bin", "loop"])
def test_file_that_is_no_manifest_is_named(
    words: tuple[str, ...],
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run((*words, file)) != ExitCode.OK
    printed = capsys.readouterr().err
    assert file in printed and "unexpected failure" not in printed, printed
