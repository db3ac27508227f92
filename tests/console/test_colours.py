"""Colours of the console: readable on every ground, and states that differ for colour-blind eyes, in both themes."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.platforms import ROOT

THEMES = {"light": 0, "dark": 1}
TEXTS = ("text", "text-2", "text-3", "accent", "ok", "prog", "wait", "bad", "unk")
GROUNDS = ("bg", "surface", "sunken")
STATES = ("ok", "prog", "wait", "bad", "unk")
CONTRAST_MIN = 4.5
"""WCAG 2.1, level AA, for text."""
DIFFERENCE_MIN = 12.0
"""CIE76. Two colours of 12 are told apart at a glance; a glyph and a word stand beside each."""
# Linear RGB as it looks without one kind of cones (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = np.array([0.9505, 1.0, 1.089])

Colour = NDArray[np.float64]


def tokens(theme: int) -> dict[str, Colour]:
    """Linear RGB of each token of `app.css` that has one colour per theme."""
    css = (ROOT / "console" / "src" / "app.css").read_text()
    found = re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", css)
    return {name: linear(pair[theme]) for name, *pair in found}


def linear(text: str) -> Colour:
    value = np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: Colour) -> Colour:
    t = (np.array(TO_XYZ) @ np.clip(colour, 0, 1)) / WHITE
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def luminance(colour: Colour) -> float:
    return float(np.array(TO_XYZ[1]) @ colour)


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_contrast_on_every_ground(theme: str) -> None:
    colours = tokens(THEMES[theme])
    for text, ground in itertools.product(TEXTS, GROUNDS):
        light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        contrast = (light + 0.05) / (dark + 0.05)
        assert contrast >= CONTRAST_MIN, f"--{text} on --{ground}: {contrast:.2f}"
    for state in STATES:
        light, dark = sorted((luminance(colours[state]), luminance(colours[f"{state}-bg"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= CONTRAST_MIN, f"--{state} on its own ground"


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", THEMES)
def test_states_differ_for_colour_blind_eyes(theme: str, eyes: str) -> None:
    colours = tokens(THEMES[theme])
    for one, other in itertools.combinations(STATES, 2):
        seen = [lab(np.array(EYES[eyes]) @ colours[name]) for name in (one, other)]
        difference = float(np.linalg.norm(seen[0] - seen[1]))
        assert difference >= DIFFERENCE_MIN, f"--{one} and --{other}: {difference:.1f}"
