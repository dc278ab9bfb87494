"""The timeline: what the server sends for a window equals the tables, on one clock, whatever the URL says."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from tests.builders.ranks import kernel
from tests.view.support import BASE, BIG, FIXTURES, NAMES, captures_of, hostile_tables, table
from tracekit.core.communication import convert_to_common_clock
from tracekit.errors import TracekitError
from tracekit.view import selection, timeline, tracks, windows
from tracekit.view.state import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.view.captures import ViewedCaptures
    from tracekit.view.server import Viewer

RANKS = sorted((FIXTURES / "ranks").glob("*.nsys-rep"))
TABLES = ("kernels", "memcpys", "memsets", "api_calls", "nvtx_ranges", "syncs", "osrt_calls")


@functools.cache
def amp_trace() -> tk.Trace:
    return tk.load(FIXTURES / "train_amp.sqlite")


@pytest.fixture
def amp(serve: Callable[..., Viewer]) -> Viewer:
    return serve(FIXTURES / "train_amp.sqlite")


def answer(captures: ViewedCaptures, query: str) -> dict[str, Any]:
    built = timeline.build_answer(captures, parse_url("timeline", query, len(captures)))
    return json.loads(json.dumps(built, allow_nan=False))


def marks(built: dict[str, Any]) -> pl.DataFrame:
    """Return what an answer draws, with times as in tables."""
    frames = []
    for each in built["tracks"]:
        if "lane" in each:
            columns = {name: each[name] for name in ("lane", "start", "end", "count", "busy", "kind", "name")}
            ids = [None if id_ is None else int(id_) for id_ in each["ids"]]
            frames.append(
                pl.DataFrame({**columns, "id": ids}, schema_overrides={"id": pl.Int64}).with_columns(
                    track=pl.lit(each["id"])
                )
            )
    kinds = {int(code): kind[0] for code, kind in built["kinds"].items()}
    return pl.concat(frames).with_columns(
        pl.col("start", "end") + int(built["start"]),
        name=pl.col("name").replace_strict(dict(enumerate(built["names"])), return_dtype=pl.String),
        table=pl.col("kind").replace_strict(kinds, return_dtype=pl.String),
    )


def rows_of(trace: tk.Trace, low: int, high: int) -> pl.DataFrame:
    """Return the events of a window: table, id, start and end."""
    frames = []
    for name in TABLES:
        key = trace.schema(name).names[0]
        columns = (pl.lit(name).alias("table"), pl.col(key).cast(pl.Int64).alias("id"), "start_ns", "end_ns")
        frames.append(trace.frame(name).select(columns).collect())
    inside = (pl.col("start_ns") < high) & (pl.max_horizontal("end_ns", pl.col("start_ns") + 1) > low)
    return pl.concat(frames).filter(inside)


@pytest.mark.many(1)
@pytest.mark.parametrize(("first", "share"), [(0.0, 1.0), (0.955, 0.02), (0.97, 0.001)])
def test_an_answer_has_each_event_of_its_window_once(first: float, share: float) -> None:
    trace = amp_trace()
    low, high = trace.span() or (0, 0)
    start = low + int((high - low) * first)
    end = start + int((high - low) * share) + 1
    drawn = marks(answer(captures_of(trace), f"start={start}&end={end}&width=800&parts=gpu,cpu,ranges"))
    drawn = drawn.filter(
        pl.col("table").is_in(TABLES), ~pl.col("track").str.contains("ranges") | (pl.col("table") == "syncs")
    )
    wanted = rows_of(trace, start, end)
    totals = drawn.group_by("table").agg(pl.col("count").sum(), pl.col("busy").sum()).sort("table")
    expected = (
        wanted.group_by("table").agg(count=pl.len(), busy=(pl.col("end_ns") - pl.col("start_ns")).sum()).sort("table")
    )
    assert sum(totals["count"]) == sum(expected["count"])
    assert sum(totals["busy"]) == sum(expected["busy"])
    single = drawn.filter(count=1)
    joined = single.join(wanted, on=["table", "id"], how="left")
    assert (joined["start"] == joined["start_ns"]).all()
    assert (joined["end"] == joined["end_ns"]).all()
    if share < 0.01:
        assert drawn["count"].max() == 1
    for name, column in (("kernels", "short_name"), ("nvtx_ranges", "name")):
        names = trace.frame(name, names="string").select(pl.nth(0).alias("id"), text=column).collect()
        checked = single.filter(table=name).join(names, on="id")
        assert (
            checked.filter(pl.col("name") != pl.col("text").str.head(windows.MAX_SPAN))
            .filter(pl.col("text").str.len_chars() < 300)
            .height
            == 0
        )


def test_integers_that_a_script_would_round_are_exact() -> None:
    tables = hostile_tables()
    rows = [{"kernel_id": BIG, "start_ns": 2**60 + 1, "end_ns": 2**60 + 4000, "short_name": "late", "name": "late"}]
    far = tk.Trace.from_tables({"kernels": table("kernels", rows)})
    (drawn,) = marks(answer(captures_of(far), f"start={2**60}&end={2**60 + 5000}")).select("id", "start", "end").rows()
    assert drawn == (BIG, 2**60 + 1, 2**60 + 4000)
    built = answer(captures_of(tk.Trace.from_tables(tables)), "parts=gpu,cpu&start=0&end=12000&width=5000")
    assert set(NAMES) <= set(built["names"])


def test_the_tracks_of_the_gpu_come_first_and_projections_are_apart() -> None:
    captures = captures_of(amp_trace())
    state = parse_url("timeline", "", 1)
    assert timeline.list_parts(captures, timeline.get_timelines(captures).list_members(state)) == [
        "steps",
        "causes",
        "gpu",
        "cpu",
        "ranges",
        "other",
    ]
    built = answer(captures, "parts=gpu")
    assert [(each["group"], each["label"]) for each in built["tracks"]] == [("GPU 0 NVIDIA H200 · pid 600", "stream 7")]
    assert {table for table, _ in built["kinds"].values()} == {"kernels", "memcpys"}
    assert all("NVTX and sync" in each["group"] for each in answer(captures, "parts=ranges")["tracks"])


def test_steps_causes_and_idle_times_are_tracks() -> None:
    captures = captures_of(amp_trace())
    drawn = marks(answer(captures, "parts=steps&width=10000"))
    steps = amp_trace().correlate().rollup().frame("iterations").collect()
    assert (
        drawn.sort("start").select("id", "start", "end").rows()
        == steps.select("iteration", "window_start_ns", "window_end_ns").rows()
    )
    assert drawn["name"].str.contains("warm-up").to_list() == [True, False, False, False]
    built = answer(captures, f"parts=causes&start={steps['window_start_ns'][1]}&width=10000")
    answered = amp_trace().why()
    causes = next(each for each in built["tracks"] if each["label"].startswith("Causes"))
    occurrences = tracks.list_occurrences(amp_trace(), answered.causes)
    assert sum(causes["count"]) == occurrences.height > 0
    assert {built["names"][index] for index in causes["name"]} == {
        cause.cause for cause in answered.causes if cause.rows
    }
    idle = next(each for each in built["tracks"] if each["label"].startswith("Idle times"))
    total = sum(part.total_ns for part in answered.ledger if part.group == "idle")
    assert sum(idle["busy"]) == total


def test_the_scope_selects_gpus_and_ranks(tmp_path: Path) -> None:
    captures = captures_of(tk.load(FIXTURES / "ddp2.sqlite"))
    both = answer(captures, "parts=gpu")["tracks"]
    one = answer(captures, "parts=gpu&devices=1")["tracks"]
    assert {each["group"].partition(" NVIDIA")[0] for each in both} == {"GPU 0", "GPU 1"}
    assert {each["group"].partition(" NVIDIA")[0] for each in one} == {"GPU 1"}


@pytest.mark.slow
def test_all_ranks_are_on_the_clock_of_the_capture_of_the_page(serve: Callable[..., Viewer]) -> None:
    job = tk.load_many(RANKS)
    clocks = job.communication().clocks
    captures = serve(FIXTURES / "ranks")._captures
    for shown in (0, 1):
        built = answer(captures, f"capture={shown}&parts=gpu&width=10000")
        assert [each["group"].partition(" · ")[0] for each in built["tracks"]] == sorted(
            each["group"].partition(" · ")[0] for each in built["tracks"]
        )
        drawn = marks(built).filter(count=1, table="kernels")
        for rank in (0, 1):
            own = drawn.filter(pl.col("track").str.starts_with(f"{rank}."))
            kernels = (
                captures.all[rank]
                .trace.frame("kernels")
                .select(id="kernel_id", start_ns="start_ns", end_ns="end_ns")
                .collect()
            )
            joined = own.join(kernels, on="id").with_columns(rank=pl.lit(rank))
            assert joined.height > 0
            if rank == shown:
                assert (joined["start"] == joined["start_ns"]).all()
            expected = convert_to_common_clock(joined, clocks, ["start_ns"])["start_ns"]
            again = convert_to_common_clock(joined.with_columns(rank=pl.lit(shown)), clocks, ["start"])["start"]
            assert (expected - again).abs().max() <= 1
    only = answer(captures, "parts=gpu&ranks=1")["tracks"]
    assert {each["capture"] for each in only} == {1}
    with pytest.raises(TracekitError, match="selects ranks 7, but the job has ranks 0, 1"):
        answer(captures, "ranks=7")


def details(captures: ViewedCaptures, event: str, query: str = "") -> selection.Selection:
    state = parse_url("timeline", f"event={event}&{query}", len(captures))
    return selection.find_event(captures, selection.parse_event(event, state, captures))


@pytest.mark.slow
def test_a_selected_event_has_its_call_its_ranges_and_its_work() -> None:
    captures = captures_of(amp_trace())
    trace = amp_trace().correlate().rollup()
    row = trace.frame("kernels").filter(pl.col("kernel_id") == 300).collect().row(0, named=True)
    found = details(captures, "kernels:300")
    assert (found.start, found.end, found.name) == (row["start_ns"], row["end_ns"], row["short_name"])
    assert [r.key.text for r in found.related if r.role == selection.CALL] == [f"api_calls:{row['api_call_id']}@0"]
    ranges = trace.frame("nvtx_ranges", names="string").collect()
    path = [r.name for r in found.related if r.role == selection.RANGE]
    assert len(path) == row["range_depth"]
    assert found.related[-1].key.id == row["range_id"]
    call = details(captures, f"api_calls:{row['api_call_id']}")
    assert [r.key.text for r in call.related if r.role == selection.WORK] == ["kernels:300@0"]
    assert [r.key for r in call.related if r.role == selection.RANGE] == [
        r.key for r in found.related if r.role == selection.RANGE
    ]
    for range_id, count in (
        ranges.sort("gpu_op_count", descending=True).select("range_id", "gpu_op_count")[::150].rows()
    ):
        assert details(captures, f"nvtx_ranges:{range_id}").counts.get(selection.WORK, 0) == count


def test_a_search_finds_the_next_event_and_begins_anew() -> None:
    captures = captures_of(amp_trace())
    kernels = amp_trace().frame("kernels", names="string").collect().sort("start_ns", "kernel_id")
    wanted = kernels.filter(pl.col("short_name").str.contains("elementwise"))
    after = wanted["start_ns"][3]

    def search(text: str, after: int | str, parts: str = "gpu") -> dict[str, Any]:
        state = parse_url("timeline", f"q={text}&after={after}&parts={parts}", 1)
        return selection.search_event(captures, state)

    assert search("ELEMENTWISE", after)["event"] == f"kernels:{wanted['kernel_id'][4]}@0"
    assert search("elementwise", kernels["start_ns"][-1])["event"] == f"kernels:{wanted['kernel_id'][0]}@0"
    assert search("elementwise", "")["event"] == f"kernels:{wanted['kernel_id'][0]}@0"
    assert search("no such name", "") == {}
    assert search("cudaLaunchKernel", "", "cpu")["event"].startswith("api_calls:")


def test_the_table_lists_the_first_events() -> None:
    captures = captures_of(amp_trace())
    low, high = amp_trace().span() or (0, 0)
    state = parse_url("timeline", "", 1)
    listed = selection.list_events(captures, state, windows.TimeWindow(low, high + 1), ["gpu", "cpu"])
    drawn = ("kernels", "memcpys", "memsets", "api_calls", "nvtx_ranges")
    rows = rows_of(amp_trace(), low, high + 1).filter(pl.col("table").is_in(drawn)).sort("start_ns")
    assert len(listed) == selection.MAX_ROWS
    own = [event for event in listed if event.key.partition(":")[0] in drawn]
    assert [event.start for event in own] == rows["start_ns"].head(len(own)).to_list()


def get(viewer: Viewer, path: str) -> Any:
    with viewer.flask.test_client() as client:
        return client.get(path, base_url=BASE)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("data?start=x", "must be an integer number of ns"),
        ("data?width=0", "must be between 50 and 10,000 pixels"),
        ("data?width=99999999999", "must be between"),
        ("data?parts=gpu,<b>", "the timeline has no part '<b>'"),
        ("data?start=-5&end=-1", "no events between"),
        (f"data?start=-{10**17}&end={10**17}", "may have at most"),
        ("event", "not a table of events and an id"),
        ("event?event=kernels:x", "not a table of events and an id"),
        ("event?event=devices:1", "not a table of events and an id"),
        ("event?event=gpu_metrics:1", "not a table of events and an id"),
        ("event?event=kernels:1@9", "there are 1 captures"),
        ("event?event=kernels:99999999", "which the capture does not have"),
        ("event?event=kernels:9999999999999999999", "which the capture does not have"),
        ("search?q=", "between 1 and 1,000 characters"),
        ("search?q=" + "x" * 1001, "between 1 and 1,000 characters"),
        ("search?q=x&after=1.5", "must be an integer number of ns"),
        ("events?start=x", "must be an integer number of ns"),
    ],
)
def test_hostile_parameters_are_errors(amp: Viewer, path: str, problem: str) -> None:
    reply = get(amp, f"/timeline/{path}")
    assert (reply.status_code, reply.mimetype) == (400, "text/plain")
    assert problem in reply.text


def test_answers_of_the_server(amp: Viewer) -> None:
    reply = get(amp, "/timeline/data?parts=gpu,cpu&width=1200")
    assert reply.mimetype == "application/json"
    assert reply.json["tracks"]
    assert "Step 3" in get(amp, "/timeline/op?event=kernels:300").text
    panel = get(amp, "/timeline/event?event=kernels:300").text
    assert 'data-event="kernels:300@0"' in panel
    assert "API call" in panel
    assert "/tables?table=kernels" in panel
    assert get(amp, "/timeline/events").text.count("<tr>") == selection.MAX_ROWS + 1


def test_names_never_become_markup(tmp_path: Path) -> None:
    captures = captures_of(tk.Trace.from_tables(hostile_tables()))
    state = parse_url("timeline", "", 1)
    for id_ in range(1, len(NAMES) + 1):
        found = details(captures, f"kernels:{id_}")
        member = timeline.get_timelines(captures).list_members(state)[0]
        assert "<script" not in str(selection.build_details(state, found, member))
        assert "<img" not in str(selection.build_details(state, found, member))


@pytest.mark.slow
def test_a_file_for_perfetto_has_a_limited_number_of_events(amp: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = amp_trace().span() or (0, 0)
    whole = get(amp, "/trace.pftrace").data
    assert get(amp, f"/trace.pftrace?start={low}&end={high + 1}").data == whole
    part = get(amp, f"/trace.pftrace?start={high - 1_000_000}&end={high + 1}").data
    assert len(part) < len(whole) / 4
    monkeypatch.setattr(windows, "MAX_EXPORTED", 50)
    reply = get(amp, f"/trace.pftrace?start={low}&end={high}")
    assert reply.status_code == 400
    assert "at most 50 can be downloaded" in reply.text
    count = tracks.count_events(amp_trace(), windows.TimeWindow(low - 10**10, high + 10**10))
    drawn = [
        name for name in amp_trace().tables if name in {kind.table for kind in tracks.iterate_kinds(("gpu", "cpu"))}
    ]
    assert count == sum(amp_trace().count(name) for name in drawn)


def test_captures_without_events_say_why() -> None:
    with pytest.raises(TracekitError, match=r"the timeline has no events: no kernels, memcpys, .* were recorded"):
        answer(captures_of(tk.Trace.from_tables({})), "")


def test_answers_have_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = captures_of(amp_trace())
    whole = marks(answer(captures, "parts=gpu,cpu"))
    for limit in (300, 1):
        monkeypatch.setattr(windows, "MAX_MARKS", limit)
        part = marks(answer(captures, "parts=gpu,cpu"))
        lanes = part.select("track", "lane").n_unique()
        assert part.height <= max(limit, 2 * lanes) < whole.height
        assert part["count"].sum() == whole["count"].sum()


def test_many_tracks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "MAX_TRACKS", 2)
    rows = [kernel(100 * n, 100 * n + 50) | {"kernel_id": n, "stream_id": n} for n in range(5)]
    captures = captures_of(tk.Trace.from_tables({"kernels": table("kernels", rows)}))
    built = answer(captures, "")
    assert len(built["tracks"]) == 2
    assert built["notes"] == ["3 more tracks of gpu are not drawn. Choose ranks or devices."]


def test_counters_are_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tk.load(FIXTURES / "gpu_metrics.sqlite")
    rows = trace.frame("gpu_metrics", names="string").collect()
    first, last = rows["timestamp_ns"].min(), rows["timestamp_ns"].max()
    built = answer(captures_of(trace), f"parts=counters&width=50&start={first}&end={last + 1}")
    for each in built["tracks"]:
        own = rows.filter(metric=each["label"])
        assert sum(each["count"]) == own.height
        assert (min(each["low"]), max(each["high"])) == (own["value"].min(), own["value"].max())
    assert len(built["tracks"]) == rows["metric"].n_unique() == 30
    monkeypatch.setattr(tracks, "MAX_TRACKS", 4)
    built = answer(captures_of(trace), "parts=counters")
    assert (len(built["tracks"]), built["notes"]) == (
        4,
        ["26 more tracks of counters are not drawn. Choose ranks or devices."],
    )
