"""Figures of traces: their data against the tables, names as text, and what is missing."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import polars as pl
import pytest
import tracekit as tk
from tracekit.core import intervals
from tracekit.core.figures import timeline
from tracekit.pages.document import read_style
from tracekit.plan import figures as plan_figures
from tracekit.plots import FIGURES, bars, labels, lines, marks, peaks, svg, theme
from tracekit.registry.analyses import list_analyses
from tracekit.text import shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.plots.charts import Chart

FIXTURES = Path(__file__).parents[2] / "fixtures"
EVIL = '<script>alert(1)</script><a href="https://example.org">x</a> $\\alpha$ &lt; =HYPERLINK("a") \x1b[2J'


@pytest.fixture(scope="module")
def amp() -> Iterator[tk.Trace]:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        yield trace


NS = "{http://www.w3.org/2000/svg}"


def parse_drawing(text: str) -> ET.Element:
    """Parse the SVG of a figure, after checks that hold for all of them."""
    assert len(text.encode()) < 300_000
    assert not re.search(r"style=|\bnan\b|\binf\b|None|<script|on\w+=", re.sub("<(title|desc|text).*?</\\1>", "", text))
    root = ET.fromstring(text)
    assert (root.get("role"), bool(root.get("aria-label"))) == ("img", True)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert width > 0
    assert 20 <= height < 2500
    return root


def check_drawing(figure: Any) -> None:
    """Check that the SVG of a figure has a mark with a tooltip for each bar."""
    root = parse_drawing(str(svg.draw_svg(figure)))
    parse_drawing(str(svg.draw_svg(figure, width=360, height=200)))
    lengths = [v for t in figure.data if t.type == "bar" for v in (t.x if t.orientation == "h" else t.y)]
    if {t.type for t in figure.data} == {"bar"} and len(lengths) <= marks.MAX_MARKS:
        assert len(root.findall(f".//{NS}path[@class='mark']")) == sum(map(bool, lengths))
    tooltips = [t.text or "" for t in root.iter(f"{NS}title")]
    assert tooltips
    assert "<br>" not in "".join(tooltips)


def convert(chart: Chart) -> Any:
    """Convert a chart to a figure of plotly, which looks the same and has valid properties only."""
    figure = theme.convert_to_figure(chart)
    assert str(svg.draw_svg(figure)) == str(svg.draw_svg(chart))
    assert figure.layout.title.text == chart.title
    return figure


def hover(trace: Any) -> str:
    return "\n".join(trace.customdata)


@pytest.mark.core
@pytest.mark.slow
def test_every_figure_of_every_kind_of_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_figures, "convert_to_figure", convert)
    drawn: set[str] = set()
    for name in (
        "train_amp.sqlite",
        "um.sqlite",
        "gpu_metrics.sqlite",
        "cpu_only.sqlite",
        "ncu/ncu_roofline_raw.csv",
        "omp.sqlite",
        "ddp2.sqlite",
        "why/recommender.pt.trace.json.gz",
    ):
        with tk.load(FIXTURES / name) as trace:
            for figure in FIGURES:
                with contextlib.suppress(tk.errors.MissingTableError):
                    shown = getattr(trace.plot, figure)(dark=True)
                    drawn.add(figure)
                    assert shown.layout.title.text
                    assert shown.layout.template.layout.paper_bgcolor == theme.DARK.background
                    points = [len(t.customdata) for t in shown.data if t.customdata is not None]
                    assert 0 < sum(points) <= 8000
                    written = json.dumps([{**t, "customdata": None} for t in json.loads(shown.to_json())["data"]])
                    assert not [color for color in theme.DARK_COLORS if color in written], figure
                    check_drawing(shown)
    assert drawn == set(FIGURES)


@pytest.mark.core
def test_the_rows_of_every_figure_are_as_declared(amp: tk.Trace) -> None:
    for name, analysis in list_analyses("figure").items():
        with contextlib.suppress(tk.errors.MissingTableError):
            assert set(amp._view.figure_rows(name).columns) == set(analysis.results[0].names), name


@pytest.mark.core
def test_nothing_to_draw_says_what_to_record() -> None:
    with tk.load(FIXTURES / "empty.sqlite") as trace:
        for figure in FIGURES:
            with pytest.raises(tk.errors.MissingTableError, match=r"^.*empty\.sqlite: (the capture has )?no ") as e:
                getattr(trace.plot, figure)()
            assert (e.value.hint and "nsys profile" in e.value.hint) or "ncu" in str(e.value.hint)
    with (
        tk.load(FIXTURES / "ncu" / "ncu_raw.csv") as trace,
        pytest.raises(tk.errors.MissingTableError, match="no kernel with both floating-point operations and DRAM"),
    ):
        trace.plot.roofline()


@pytest.mark.core
def test_the_roofline_of_ops() -> None:
    with tk.load(FIXTURES / "why" / "recommender.pt.trace.json.gz") as trace:
        rows = trace.report("op_roofline").frame().drop_nulls("TFLOP/s")
        shown = trace.plot.op_roofline()
    roofs, points = ([trace for trace in shown.data if trace.mode == mode] for mode in ("lines", "markers"))
    peaks = dict(rows.select("Type", "Peak TFLOP/s").unique().drop_nulls().iter_rows())
    assert {roof.name: roof.y[2] for roof in roofs} == {f"Peak of {name}": peak for name, peak in peaks.items()}
    for roof in roofs:
        assert roof.y[0] == pytest.approx(roof.x[0] * rows["Peak GB/s"][0] / 1000)
    positive = rows.filter(pl.col("TFLOP/s") > 0, pl.col("FLOP/Byte") > 0)["FLOP/Byte"]
    assert sorted(x for trace in points for x in trace.x) == sorted(positive)
    assert "TFLOP/s at" in hover(points[0])


def test_colors_have_contrast_to_the_background() -> None:
    """The colors of figures and of drawings are the same. Marks need a contrast of 3, and texts one of 4.5."""
    drawings, page = (
        [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", rule)) for rule in re.findall(r":root[^{}]*{([^{}]*)}", text)]
        for text in (svg.load_style_sheet(), read_style())
    )
    light, *dark = drawings
    assert dark == [dark[0]] * 2
    colors = {f"c{n}": color for n, color in enumerate(theme.COLORS)} | {"longest": theme.LONGEST_COLOR}
    assert {name: light[name] for name in colors} == {name: color.lower() for name, color in colors.items()}
    assert {name: dark[0][name] for name in colors} == {n: theme.DARK_COLORS[c].lower() for n, c in colors.items()}
    assert {*theme.COLORS, *theme.PART_COLORS.values(), theme.GRAPH_COLOR} <= set(theme.DARK_COLORS)
    assert len(set(theme.DARK_COLORS.values())) == len(theme.DARK_COLORS)
    for shades, panel in ((light, page[0]["panel"]), (light | dark[0], page[1]["panel"])):
        contrast = {n: theme.compute_contrast_ratio(color, panel) for n, color in shades.items() if len(color) == 7}
        assert min(contrast[name] for name in (*colors, "outside", "axis")) >= 3
        assert min(contrast[name] for name in ("chart-text", "chart-dim")) >= 4.5
        texts = {n: {"#fff": "#ffffff", "#000": "#000000"}[shades[f"t{n}"]] for n in range(10)}
        assert min(theme.compute_contrast_ratio(text, shades[f"c{n}"]) for n, text in texts.items()) >= 4.5
    assert theme.compute_contrast_ratio("#000000", "#ffffff") == pytest.approx(21)
    every = [color for pair in theme.DARK_COLORS.items() for color in pair]
    assert min(theme.compute_contrast_ratio(theme.choose_text_color(c), c) for c in every) >= 4.5


@pytest.mark.slow
def test_utilization_reaches_from_0_to_100() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as trace:
        figure = trace.plot.gpu_utilization()
        iterations = trace.rollup(include_warm_up=False).frame("iterations").filter("is_aggregated").collect()
        kernels = trace.frame("kernels").select("device_id", "start_ns", "end_ns").collect()
    time = iterations.select((pl.col("window_end_ns") - pl.col("window_start_ns")).sum()).item()
    windows = iterations.select("window_start_ns", "window_end_ns").rows()
    expected = [
        100
        * sum(min(e, stop) - max(s, start) for s, e in union for start, stop in windows if s < stop and e > start)
        / time
        for union in (
            intervals.merge_intervals(kernels.filter(device_id=d).drop("device_id"), by=[]).rows() for d in (0, 1)
        )
    ]
    assert figure.data[0].x == pytest.approx(expected, abs=1e-6)
    assert figure.layout.xaxis.range == (0, 100)
    assert figure.data[0].y == ("GPU 0", "GPU 1")


def test_parts_have_one_color_in_all_figures(amp: tk.Trace) -> None:
    plot = amp.rollup(include_warm_up=True).plot
    breakdown, iterations = plot.time_breakdown(), plot.iterations()
    colors = [t.marker.color for t in breakdown.data]
    assert colors == [t.marker.color for t in iterations.data if t.type == "bar"] == list(theme.PART_COLORS.values())
    assert len(set(colors)) == 7
    assert sum(t.x[0] for t in breakdown.data) == pytest.approx(100)


def test_iterations_are_those_of_the_table(amp: tk.Trace) -> None:
    rolled = amp.rollup(iterations=(1, 2))
    table = rolled.frame("iterations").collect()
    *parts, warm_up, outside = (t for t in rolled.plot.iterations().data if t.type == "bar")
    assert [[round(ns * 1e6) for ns in t.y] for t in parts] == [
        table.filter("is_aggregated")[c].to_list() for c in table.columns if c.startswith("in_")
    ]
    assert [parts[0].x, warm_up.x, outside.x] == [(1, 2), (0,), (3,)]
    assert [warm_up.name, outside.name] == ["Warm-up, not aggregated", "Not aggregated"]
    assert warm_up.marker.color == outside.marker.color == theme.OUTSIDE_COLOR
    assert "457,772,691 ns (457.773 ms)" in hover(warm_up)
    assert "Warm-up, not aggregated: " in hover(warm_up)


def test_the_warm_up_is_named_unless_it_is_included(amp: tk.Trace) -> None:
    drawn = {included: amp.rollup(include_warm_up=included).plot.iterations().data for included in (None, False, True)}
    names = {
        included: [t.name for t in data if t.marker.color == theme.OUTSIDE_COLOR] for included, data in drawn.items()
    }
    assert names == {None: ["Warm-up, not aggregated"], False: ["Warm-up, not aggregated"], True: []}


def test_the_warm_up_does_not_set_the_scale(amp: tk.Trace) -> None:
    for included in (False, True):
        figure = amp.rollup(include_warm_up=included).plot.iterations()
        table = amp.rollup(include_warm_up=included).frame("iterations").collect()
        warm_up, *steady = (table["window_end_ns"] - table["window_start_ns"]).to_list()
        assert figure.layout.yaxis.range == (0, pytest.approx(1.12 * max(steady) / 1e6))
        assert [note.text for note in figure.layout.annotations] == ["warm-up: 457.8 ms", "Batch 1: 8.696 ms"]
        assert (round(figure.data[-1].x[0]), warm_up) == (0, 457_772_691)
        assert figure.data[-1].customdata[0].endswith("457,772,691 ns (457.773 ms)")


@pytest.mark.parametrize(
    ("usual", "outliers", "warm_up", "expected"),
    [
        ([10, 9], [], [], None),
        ([10], [80], [15], None),
        ([10], [81], [], 10),
        ([10], [80, 90], [16], 80),
        ([10], [], [15, 16], 15),
        ([], [50], [90], None),
        ([0], [50], [], None),
    ],
)
def test_what_sets_the_scale(usual: list[int], outliers: list[int], warm_up: list[int], expected: int | None) -> None:
    assert peaks.choose_highest_duration(usual, outliers, warm_up) == expected


def test_top_lists_have_exact_numbers(amp: tk.Trace) -> None:
    kernels, report = amp.plot.top_kernels(3), amp.stats("cuda_gpu_kern_sum").head(3)
    assert [round(x * 1e6) for x in kernels.data[0].x] == report["Total Time (ns)"].to_list()
    assert [f"{n:,} ns" in h for n, h in zip(report["Total Time (ns)"], kernels.data[0].customdata, strict=True)]
    assert kernels.layout.yaxis.ticktext[0] == "cudnn::bn_bw_1C11_kernel_new"
    ops = amp.plot.top_ops(4)
    table = amp.rollup(include_warm_up=False).frame("ops").sort("gpu_time_ns", descending=True).head(4).collect()
    assert [round(x * 1e6) for x in ops.data[0].x] == table["gpu_time_ns"].to_list()
    assert ops.layout.yaxis.ticktext[0] == f"{table['op_id'][0]} ({table['direction'][0]})"
    assert amp.plot.api(2).data[0].y == (0, 1)
    assert len(amp.plot.top_ops(0).data[0].y) == 1


def test_utilization_over_time_is_exact(amp: tk.Trace) -> None:
    low, high, line = amp.plot.utilization_over_time(bins=10).data
    assert all(a <= b <= c for a, b, c in zip(low.y[:10], line.y[:10], high.y[:10], strict=True))
    assert (high.fill, len(high.y)) == ("tonexty", 11)
    assert len(line.x) == 11
    assert line.line.shape == "hv"
    busy = [int(h.partition("busy for ")[2].partition(" ns")[0].replace(",", "")) for h in line.customdata[:10]]
    union = intervals.compute_union_durations(timeline.read_gpu_activities(amp.frame), by=[])
    assert sum(busy) == union["duration_ns"].item()
    with pytest.raises(tk.errors.MissingTableError, match="no activities on GPU 5"):
        amp.plot.utilization_over_time(device=5)


@pytest.mark.core
def test_groups_of_one_direction(amp: tk.Trace) -> None:
    icicle = amp.plot.groups("cpu_time_ns", "bprop").data[0]
    assert set(icicle.marker.colors) == {theme.DIRECTION_COLORS["bprop"], theme.DIRECTION_COLORS[None]}
    assert icicle.parents[0] == ""
    with pytest.raises(tk.errors.UnknownFormatError, match="'gpu_time' is not a valid value of the option 'metric'"):
        amp.plot.groups("gpu_time")
    with pytest.raises(tk.errors.UnknownFormatError, match="'up' is not a valid value of the option 'direction'"):
        amp.plot.groups(direction="up")  # type: ignore[arg-type]
    with pytest.raises(tk.errors.UnknownFormatError, match="unknown figure 'top'"):
        amp._view.figure_rows("top")


def test_icicles_are_as_high_as_they_have_levels(amp: tk.Trace) -> None:
    assert amp.plot.groups().layout.height == 380
    assert amp.plot.nvtx().layout.height == 460
    with tk.load(FIXTURES / "cpu_only.sqlite") as trace:
        figure = trace.plot.nvtx()
    assert (figure.layout.height, figure.layout.title.text) == (200, "NVTX ranges by duration")


@pytest.mark.core
def test_call_stacks_are_those_of_the_export(tmp_path: Path) -> None:
    """The widths of the chart and the weights of functions, against collapsed stacks."""
    with tk.load(FIXTURES / "osrt_libs.sqlite") as trace:
        assert trace.plot.stack_events() == ["cpu_samples", "osrt_calls"]
        thread = (
            trace.frame("osrt_calls").filter(pl.col("stack_id").is_not_null()).select("thread_id").collect().item(0, 0)
        )
        for events, weight, own in (
            ("cpu_samples", "samples", None),
            ("osrt_calls", "time", None),
            ("osrt_calls", "samples", thread),
        ):
            choice = {"events": events, "weight": weight} | ({} if own is None else {"thread": str(own)})
            path = trace.export(tmp_path / "stacks.collapsed", options=choice, overwrite=True)
            lines = [line.rpartition(" ") for line in path.read_text().splitlines()]
            stacks = [(stack.split(";"), int(number)) for stack, _, number in lines]
            functions = trace.plot.functions(events, weight, thread=own)
            assert functions["self"].sum() == sum(number for _, number in stacks) > 0
            for name, module, self_, total in functions.head(20).iter_rows():
                text = (name if module in (None, name) else f"{name} [{module}]").replace(";", ":")
                assert self_ == sum(n for stack, n in stacks if stack[-1] == text)
                assert total == sum(n for stack, n in stacks if text in stack)
            drawn = trace.plot.stacks(events, weight, thread=own).data[0]
            values = dict(zip(drawn.ids, drawn["values"], strict=True))
            assert sum(values.values()) == functions["self"].sum()
            assert [p for p in drawn.parents if p not in values] == [""]
        with pytest.raises(tk.errors.UnknownFormatError, match="'nope' is not a valid value of the option 'events'"):
            trace.plot.stacks("nope")
        with pytest.raises(tk.errors.MissingTableError, match="no call stacks of api_calls"):
            trace.plot.stacks("api_calls")
        with pytest.raises(tk.errors.MissingTableError, match="of the selected events"):
            trace.plot.stacks(thread=5)


@pytest.mark.core
def test_chosen_metrics() -> None:
    with tk.load(FIXTURES / "gpu_metrics.sqlite") as trace:
        assert len(trace.plot.metrics().data) == 8
        clock = trace.plot.metrics(["GPC Clock Frequency [MHz]"])
        assert len(clock.data[0].x) == 336
        assert clock.layout.yaxis.title.text == "Value (unit in brackets)"
        with pytest.raises(tk.errors.UnknownFormatError, match="there is no metric 'nope'"):
            trace.plot.metrics(["nope"])


def test_names_are_text() -> None:
    rows = pl.DataFrame({"name": [EVIL, EVIL, None], "time_ns": [5, 4, 3], "count": [1, 1, 1], "percent": [1.0] * 3})
    figure = convert(bars.draw_top_kernels(rows))
    for text in (
        *figure.data[0].customdata,
        *figure.layout.yaxis.ticktext,
        labels.format_short_label(EVIL),
        labels.format_hover_name(EVIL),
    ):
        plain = text.replace("<br>", "")
        assert not set(plain) & set("<>$\x1b"), plain
    assert figure.layout.yaxis.tickvals == (0, 1, 2)
    assert figure.layout.yaxis.ticktext[2] == "unknown"
    changes = pl.DataFrame({"timestamp_ns": [1], "device_id": [0], "memory_kind": [EVIL], "used_bytes": [5]})
    bounds = {"min_bytes": 5, "max_bytes": 5, "maximum_ns": 1, "sample_count": 1}
    changes = changes.with_columns(**{name: pl.lit(value) for name, value in bounds.items()})
    assert "<" not in convert(lines.draw_memory_usage(changes)).data[0].name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::(anonymous namespace)::k<int, (bool)1>(T1 *, int)", "at::native::k"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            "ncclDevKernel_AllReduce_Su",
        ),
        ("a<b", "a&lt;b"),
        ("operator>>(x)", "operator&gt;&gt;"),
        (None, "unknown"),
    ],
)
def test_kernel_labels(name: str | None, expected: str) -> None:
    assert labels.format_kernel_label(name).startswith(expected)


def test_units() -> None:
    assert [labels.choose_time_unit([t])[1] for t in (0, 1, 999, 1000, 10**6, 10**9, 120 * 10**9, 10**13, 10**15)] == [
        "ns", "ns", "ns", "µs", "ms", "s", "min", "h", "d",
    ]  # fmt: skip
    assert labels.format_nanoseconds(1_234_567) == "1,234,567 ns (1.235 ms)"
    assert labels.format_nanoseconds(999) == "999 ns"
    assert [labels.format_bytes(n) for n in (5, 3 << 20)] == ["5 bytes", "3,145,728 bytes (3.00 MiB)"]
    assert len(shorten_middle("x" * 99, 40)) == 40
    assert labels.format_hover_name("y" * 100) == "y" * 90 + "<br>" + "y" * 10


@pytest.mark.slow
def test_figures_are_not_imported_with_tracekit() -> None:
    code = "import sys, tracekit as tk; tk.load('fixtures/empty.sqlite').plot; print('plotly' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=FIXTURES.parent)
    assert run.stdout == "False\n"


def test_without_plotly_a_hint_says_what_to_install(amp: tk.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(tk.TracekitError, match=r"pip install ['\"]tracekit\[plots\]['\"]$"):
        amp.plot.top_kernels()


def test_figures_are_json(amp: tk.Trace) -> None:
    assert json.loads(amp.plot.copies().to_json())["layout"]["title"]["text"] == "Memory copies and sets"
