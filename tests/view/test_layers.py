"""Layers of CUDA graphs on the pages of the viewer: the switch in the scope, and what is not known."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.view.markup import TableMarkup
from tests.view.support import FIXTURES, frame_of, get, running, show
from tracekit.errors import TracekitError
from tracekit.view import timeline
from tracekit.view.state import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.view.server import Viewer

INSIDE = FIXTURES / "layers" / "layers_inside.nsys-rep"
LAYERS = [f"layer {number}" for number in range(6)]


@pytest.fixture
def viewer(serve: Callable[..., Viewer]) -> Viewer:
    return serve(INSIDE)


def open_page(viewer: Viewer, page: str, **parameters: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in {"scripts": "no", **parameters}.items())
    return get(viewer, f"/{page}?{query}").text


def test_pages_group_by_layer_if_the_scope_chooses_layers(viewer: Viewer) -> None:
    by_layer_ns = int(tk.load(INSIDE).stats("layer_gpu_sum")["Total Time (ns)"].sum())
    groups = frame_of(tk.load(INSIDE).with_layers(), "group_nodes").filter(path="step */capture/layer 0/")
    for layers in ({}, {"layers": "capture"}):
        html = open_page(viewer, "groups", **layers)
        rows = TableMarkup(html, "groups").rows()
        times = [int(r["gpu_time_ns"]) for r in rows if r["path"] == "step */capture/layer 0/"]
        assert times == (groups["gpu_time_ns"].to_list() if layers else [])
        assert ("528 of 528 activities of graphs have a layer" in html) == bool(layers)
        by_layer = TableMarkup(html, "layer_gpu_sum").rows()
        assert sum(int(row["total_time_ns"]) for row in by_layer) == by_layer_ns
        assert len(TableMarkup(html, "graph_alignment").rows()) == 1
        links = re.findall(r'<a href="([^"]*)"[^>]*>(Replay|Capture)</a>', html)
        assert [("layers=capture" in url, label) for url, label in links] == [(False, "Replay"), (True, "Capture")]
    ranges = TableMarkup(open_page(viewer, "nvtx", layers="capture"), "nvtx_gpu").rows()
    assert {*LAYERS, ":layer 0"} & {value for row in ranges for value in row.values()}


def test_the_timeline_shows_the_layers_inside_replays(viewer: Viewer) -> None:
    layered = viewer._captures.get_capture(0, "capture")
    assert layered is viewer._captures.get_capture(0, "capture")
    copied = layered.trace.frame("nvtx_ranges").filter(pl.col("captured_range_id").is_not_null()).collect()
    assert copied.height == 8 * (1 + 6 + 12)
    window = f"parts=cpu&width=4000&start={copied['start_ns'].min()}&end={copied['end_ns'].max()}"
    for layers in ("", "&layers=capture"):
        built = json.dumps(timeline.build_answer(viewer._captures, parse_url("timeline/data", window + layers, 1)))
        assert {layer in built for layer in LAYERS} == {bool(layers)}
    shown = get(viewer, f"/timeline/event?layers=capture&event=nvtx_ranges:{copied['range_id'][0]}").text
    assert copied["name"][0] in shown


def test_links_keep_the_layers(viewer: Viewer) -> None:
    html = open_page(viewer, "groups", layers="capture")
    navigation = html[html.index("<nav") : html.index("</nav>")]
    links = re.findall(r'href="(/[^"]*)"', navigation)
    assert links
    assert all("layers=capture" in link for link in links)


def test_graphs_that_were_recorded_as_wholes_are_said_to_be_so(serve: Callable[..., Viewer]) -> None:
    for page in ("/groups", "/nvtx"):
        shown = " ".join(show(serve(FIXTURES / "jax_mlp.sqlite"), page))
        assert "4 executions of 1 CUDA graph were recorded as wholes" in shown
        assert "--cuda-graph-trace=node" in shown
    assert "Layers" not in get(serve(FIXTURES / "jax_mlp.sqlite"), "/groups?scripts=no").text


def test_layers_of_the_command_line_apply_to_all_pages() -> None:
    with running(INSIDE, layers="capture") as viewer:
        html = open_page(viewer, "groups")
    assert "as chosen with --layers" in html
    assert any(row["path"] == "step */capture/layer 0/" for row in TableMarkup(html, "groups").rows())


def test_other_values_are_refused() -> None:
    with pytest.raises(TracekitError, match="'layers' contains 'x' instead of capture"):
        parse_url("groups", "layers=x", 1)
