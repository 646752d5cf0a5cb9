"""Pictures: axes that hold their values, and plots that show what they can."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_wire.terminal.svg import Plot, Series, axis, draw

SVG = "{http://www.w3.org/2000/svg}"


def plotted(*series, **options):
    return ET.fromstring(draw(Plot("p", "t", "x", "y", series, **options)))


@given(st.floats(1e-12, 1e12), st.floats(1.0, 1e9), st.booleans())
def test_an_axis_holds_its_values_between_its_first_and_last_tick(low, factor, log):
    high = low * factor
    at, ticks = axis(low, high, 0.0, 100.0, log=log)
    assert 2 <= len(ticks) <= 17
    assert list(ticks) == sorted(ticks)
    assert at(ticks[0]) == pytest.approx(0.0, abs=1e-9)
    for value in (low, high):
        assert -1e-4 <= at(value) <= 100.0 + 1e-4


def test_a_plot_omits_what_its_axes_cannot_show():
    series = Series("<a & b>", (0.0, 0.01, 1.0, 2.0), (3.0, -2.0, 1.0, float("inf")), "line", (1.0, 0.5, 0.0, 0.0))
    root = plotted(series, Series("empty", (), ()), log_x=True)
    assert len(root.findall(f"{SVG}circle")) == 2
    assert "<a & b>" in [text.text for text in root.findall(f"{SVG}text")]
    assert len(plotted(log_y=True).findall(f"{SVG}circle")) == 0
