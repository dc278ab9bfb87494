"""Drawings as SVG: every figure of every kind of capture, hostile values and names, sizes, and colors."""

from __future__ import annotations

import contextlib
import re
from xml.etree import ElementTree as ET

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.plots import FIGURES, marks, svg

NS = "{http://www.w3.org/2000/svg}"
MAX_BYTES = 300_000


def parse(text: str) -> ET.Element:
    """Parse a drawing after checks that hold for all of them."""
    assert len(text.encode()) < MAX_BYTES
    assert not re.search(r"style=|\bnan\b|\binf\b|None|<script|on\w+=", re.sub("<(title|desc|text).*?</\\1>", "", text))
    root = ET.fromstring(text)
    assert (root.get("role"), bool(root.get("aria-label"))) == ("img", True)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert width > 0
    assert 40 <= height < 2500
    return root


@pytest.mark.core
@pytest.mark.slow
def test_every_figure_of_every_kind_of_capture_is_drawn() -> None:
    for name in ("train_amp.sqlite", "um.sqlite", "gpu_metrics.sqlite", "ncu/ncu_roofline_raw.csv", "omp.sqlite"):
        with tk.load(FIXTURES / name) as trace:
            for figure in FIGURES:
                with contextlib.suppress(tk.errors.MissingTableError):
                    shown = getattr(trace.plot, figure)()
                    root = parse(str(svg.draw_svg(shown)))
                    parse(str(svg.draw_svg(shown, width=360, height=200)))
                    drawn = len(root.findall(f".//{NS}path[@class='mark']"))
                    kinds = {t.type for t in shown.data}
                    nonzero = sum(
                        bool(v) for t in shown.data if t.type == "bar" for v in (t.x if t.orientation == "h" else t.y)
                    )
                    if kinds == {"bar"} and nonzero <= marks.MAX_MARKS:
                        assert drawn == nonzero, (name, figure)
                    assert root.findall(f".//{NS}title"), (name, figure)
                    tips = "\n".join(t.text or "" for t in root.iter(f"{NS}title"))
                    assert "<br>" not in tips
