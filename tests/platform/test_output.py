"""Tables that fit the terminal, colour, and the formats of data."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from holdfast.platform import output

ROWS = [("n1", "Ready", "a message that is much longer than a narrow terminal can show in one line")]
HEADERS = ("NAME", "STATUS", "MESSAGE")


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    yield
    output.set_style()
    output.set_colour("auto")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")


def test_table_on_a_terminal_is_cut_to_its_width(terminal: None) -> None:
    lines = output.table(HEADERS, ROWS).splitlines()
    assert max(map(len, lines)) <= 50 and lines[1].endswith("…")


def test_wide_table_and_table_in_a_pipe_are_whole(terminal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    output.set_style(wide=True)
    assert ROWS[0][2] in output.table(HEADERS, ROWS)
    output.set_style()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert ROWS[0][2] in output.table(HEADERS, ROWS)


def test_table_that_cannot_fit_is_not_cut() -> None:
    widths = [20] * 10
    assert output.fitting_widths(widths, 60) == widths
    assert sum(output.fitting_widths(widths[:3], 50)) + 6 == 50
    assert output.fitting_widths([3, 4], 50) == [3, 4]


def test_colour_follows_the_option_the_environment_and_the_terminal(
    terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\033" not in output.table(HEADERS, ROWS), "NO_COLOR"
    output.set_colour("always")
    coloured = output.table(HEADERS, ROWS)
    assert "\033[32mReady\033[0m" in coloured
    assert output.coloured_error("error: x: y").startswith("\033[31merror:")
    output.set_colour("never")
    monkeypatch.delenv("NO_COLOR")
    assert "\033" not in output.table(HEADERS, ROWS)


def test_data_is_printed_as_yaml_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    output.set_style(data="yaml")
    output.print_json({"b": [1, "ä"], "a": None})
    assert capsys.readouterr().out == "b:\n- 1\n- ä\na: null\n"
