"""Exported call stacks, read back, are those of a loop over the rows of the tables."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tracekit as tk
from tests.exporters.test_chrome_trace import call, push, trace
from tracekit import schemas
from tracekit.errors import MissingTableError, TracekitError, UnknownFormatError
from tracekit.exporters.stacks import profile
from tracekit.exporters.stacks.profile import EVENTS, OPTIONS

Stacks = Counter[tuple[str | None, tuple[str, ...]]]
"""Weights by group and frames, outermost first."""
OSRT = Path(__file__).parents[2] / "fixtures" / "osrt_libs.nsys-rep"
GROUPS = {"none": [], "thread": ["process_id", "thread_id"], "process": ["process_id"]}


def read_collapsed(path: Path, *, grouped: bool) -> Stacks:
    found: Stacks = Counter()
    for line in path.read_text("utf-8").splitlines():
        text, weight = line.rsplit(" ", 1)
        frames = text.split(";")
        key = (frames[0], tuple(frames[1:])) if grouped else (None, tuple(frames))
        assert key not in found
        found[key] = int(weight)
    return found


def read_speedscope(path: Path, *, grouped: bool) -> Stacks:
    whole = json.loads(path.read_text("utf-8"))
    assert set(whole) == {"$schema", "exporter", "name", "shared", "profiles"}
    names = [frame["name"] for frame in whole["shared"]["frames"]]
    found: Stacks = Counter()
    for one in whole["profiles"]:
        assert set(one) == {"type", "name", "unit", "startValue", "endValue", "weights", "samples"}
        assert (one["type"], one["startValue"], one["endValue"]) == ("sampled", 0, sum(one["weights"]))
        assert one["unit"] in ("none", "nanoseconds")
        for stack, weight in zip(one["samples"], one["weights"], strict=True):
            found[one["name"] if grouped else None, tuple(names[n] for n in stack)] += weight
    return found


def read_pprof(path: Path, *, grouped: bool) -> Stacks:
    made = schemas.load_message_class("pprof", "Profile").FromString(gzip.decompress(path.read_bytes()))
    strings = list(made.string_table)
    assert strings[0] == ""
    assert len(set(strings)) == len(strings)
    modules = {m.id: strings[m.filename] for m in made.mapping}
    functions = {f.id: f for f in made.function}
    names = {}
    for location in made.location:
        function = functions[location.line[0].function_id]
        symbol, module = strings[function.name], modules.get(location.mapping_id, "")
        assert strings[function.filename] == module
        names[location.id] = f"{symbol} [{module}]" if module not in ("", symbol) else symbol
    (kind,) = made.sample_type
    assert (strings[kind.type], strings[kind.unit]) in (("samples", "count"), ("time", "nanoseconds"))
    found: Stacks = Counter()
    for sample in made.sample:
        labels = [strings[label.str] for label in sample.label]
        assert len(labels) == grouped
        found[labels[0] if labels else None, tuple(names[n] for n in reversed(sample.location_id))] += sample.value[0]
    return found


READERS: dict[str, Callable[..., Stacks]] = {
    "collapsed": read_collapsed,
    "speedscope": read_speedscope,
    "pprof": read_pprof,
}


def expected(of: tk.Trace, events: str, by: str = "none", *, modules: bool = True) -> Stacks:
    """The number of events by group and stack, in a loop over the rows."""
    frames: dict[object, tuple[str, ...]] = {None: ()}
    for row in of["stacks"].to_pylist():
        symbol, module = row["symbol"] or "[unknown]", row["module"] if modules else None
        text = symbol if module in (None, symbol) else f"{symbol} [{module}]"
        frames[row["stack_id"]] = (*frames[row["parent_id"]], text)
    kind = "threads" if by == "thread" else "processes"
    names = {tuple(row[c] for c in GROUPS[by]): row["name"] for row in of[kind].to_pylist()} if by != "none" else {}
    found: Stacks = Counter()
    for row in of[events].to_pylist():
        key = tuple(row[c] for c in GROUPS[by])
        group = f"{names.get(key) or by} ({key[-1]})" if by != "none" else None
        if row["stack_id"] is not None:
            found[group, frames[row["stack_id"]]] += 1
    return found


def exported(of: tk.Trace, folder: Path, format: str, **options: str) -> Stacks:
    path = of.export(folder / f"out.{format}", format=format, options=options, overwrite=True)
    return READERS[format](path, grouped=options.get("by", "none") != "none")


@pytest.mark.slow
@pytest.mark.many(3)
@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize("by", GROUPS)
def test_stacks_of_a_capture(format: str, by: str, tmp_path: Path) -> None:
    with tk.load(OSRT) as of:
        for events in ("cpu_samples", "osrt_calls"):
            known = expected(of, events, by)
            assert known
            assert exported(of, tmp_path, format, events=events, by=by) == known


def small(**tables: list[dict[str, object]]) -> tk.Trace:
    """Two functions of a module, of which one calls the other at two addresses, and a frame without names."""
    app = {"module": "app"}
    stacks = [
        {"depth": 1, "symbol": "main", **app, "original_ip": 1},
        {"depth": 2, "parent_id": 1, "symbol": "work;\nhard", **app, "original_ip": 2},
        {"depth": 2, "parent_id": 1, "symbol": "work;\nhard", **app, "original_ip": 3},
        {"depth": 1},
        {"depth": 2, "parent_id": 4, "symbol": "[vdso]", "module": "[vdso]"},
    ]
    return trace(stacks=stacks, **tables)


def sample(time: int, stack: int | None, thread: int = 8, process: int = 7) -> dict[str, object]:
    return {"timestamp_ns": time, "process_id": process, "thread_id": thread, "stack_id": stack}


SAMPLES = [sample(0, 2), sample(10, 3), sample(30, 1), sample(40, None), sample(41, 5, thread=9), sample(44, 5, 9, 6)]
MAIN, WORK, VDSO = ("main [app]",), ("main [app]", "work: hard [app]"), ("[unknown]", "[vdso]")


def test_frames_with_the_same_text_are_one(tmp_path: Path) -> None:
    found = exported(small(cpu_samples=SAMPLES), tmp_path, "collapsed")
    assert found == {(None, MAIN): 1, (None, WORK): 2, (None, VDSO): 2}
    plain = exported(small(cpu_samples=SAMPLES), tmp_path, "speedscope", modules="no")
    assert plain == {(None, ("main",)): 1, (None, ("main", "work;\nhard")): 2, (None, VDSO): 2}


@pytest.mark.parametrize("format", ["speedscope", "pprof"])
def test_events_are_selected(format: str, tmp_path: Path) -> None:
    of = small(cpu_samples=SAMPLES, threads=[{"process_id": 7, "thread_id": 9, "name": "loader"}])
    assert exported(of, tmp_path, format, thread="9").total() == 2
    assert exported(of, tmp_path, format, thread="9", process="6").total() == 1
    assert exported(of.select(time=(10, 41)), tmp_path, format).total() == 2
    groups = {group for group, _ in exported(of, tmp_path, format, by="thread")}
    assert groups == {"thread (8)", "loader (9)", "thread (9)"}
    assert {g for g, _ in exported(of, tmp_path, format, by="process")} == {"process (6)", "process (7)"}


def test_events_have_titles() -> None:
    assert tuple(EVENTS) == OPTIONS[0].choices


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": "77"}, "thread 77 has no call stacks of cpu_samples\nHint: choose one of these threads: 8, 9"),
        ({"process": "5"}, "process 5 has no call stacks of cpu_samples\nHint: choose one of these processes: 6, 7"),
        (
            {"process": "6", "thread": "8"},
            "thread 8 has no call stacks of cpu_samples in process 6\nHint: choose one of these threads: 9",
        ),
        (
            {"range": "forwrad"},
            "'forwrad'\nHint: did you mean 'forward'? choose one of these ranges: 'forward', 'late'",
        ),
        ({"range": "other"}, "there is no NVTX push/pop range 'other'"),
        (
            {"range": "late", "thread": "9"},
            "there are no call stacks of cpu_samples in thread 9 inside the range 'late'\nHint: choose another range",
        ),
    ],
)
def test_options_that_select_nothing(format: str, options: dict[str, str], message: str, tmp_path: Path) -> None:
    ranges = [push(0, 100, "forward"), push(900, 950, "late"), push(0, 100, "other", kind="start_end")]
    of = small(cpu_samples=SAMPLES, nvtx_ranges=ranges)
    with pytest.raises(TracekitError) as raised:
        exported(of, tmp_path, format, **options)
    assert message in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_hints_list_some_of_many_ranges(tmp_path: Path) -> None:
    of = small(cpu_samples=SAMPLES, nvtx_ranges=[push(n, n + 1, f"step {n}") for n in range(30)])
    with pytest.raises(TracekitError, match=r"'step 8', 'step 9', … \(30 in all\)$"):
        exported(of, tmp_path, "collapsed", range="x")


def test_events_inside_ranges_of_their_thread(tmp_path: Path) -> None:
    ranges = [push(10, 30), push(12, 20), push(43, None), push(44, 44), push(0, 100, "other")]
    ranges += [push(30, 50, thread_id=9), push(40, None, thread_id=9, process_id=6)]
    ranges.append(push(0, 100, kind="start_end"))
    of = small(cpu_samples=[*SAMPLES, sample(43, 1), sample(99, 1)], nvtx_ranges=ranges)
    found = exported(of, tmp_path, "speedscope", range="r", modules="no")
    assert found == {(None, ("main", "work;\nhard")): 1, (None, VDSO): 2, (None, ("main",)): 2}


def test_weights_are_times(tmp_path: Path) -> None:
    of = small(
        cpu_samples=[*SAMPLES, sample(50, 1)],
        api_calls=[call(3, 10, stack_id=1), call(20, 24), call(30, 35, stack_id=1)],
    )
    calls = exported(of, tmp_path, "pprof", events="api_calls", weight="time")
    assert calls == {(None, MAIN): 12}
    samples = exported(of, tmp_path, "collapsed", weight="time")
    assert samples[None, MAIN] == 2 * 10
    one = small(cpu_samples=[sample(5, 1)])
    assert exported(one, tmp_path, "speedscope", weight="time") == {(None, MAIN): 0}


def test_the_first_table_with_stacks_is_written(tmp_path: Path) -> None:
    of = small(cpu_samples=[sample(0, None)], api_calls=[call(3, 10, stack_id=1)])
    assert exported(of, tmp_path, "collapsed") == {(None, MAIN): 1}
    with pytest.raises(
        MissingTableError, match="has no call stacks of cpu_samples\nHint: record them with nsys profile"
    ):
        exported(of, tmp_path, "collapsed", events="cpu_samples")
    with pytest.raises(MissingTableError, match="has no call stacks of samples or calls\nHint: record"):
        exported(small(), tmp_path, "pprof")
    snapshot = Path(__file__).parents[2] / "fixtures" / "memory_snapshot" / "ring.pickle"
    with tk.load(snapshot) as trace, pytest.raises(MissingTableError, match="print those of allocations"):
        trace.export(tmp_path / "a.txt", format="collapsed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "cpu"}, "'cpu' is not a valid value of the option 'by'\nHint: set by to one of none, thread, process"),
        (
            {"thread": "x"},
            "'x' is not a valid value of the option 'thread'\nHint: set thread to an integer of at least 0",
        ),
        ({"process": "9" * 19}, "is not a valid value of the option 'process'"),
        ({"weight": "x"}, "set weight to one of samples, time"),
        ({"frames": "1"}, "has no option 'frames'"),
    ],
)
def test_invalid_options(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match=message):
        exported(small(cpu_samples=SAMPLES), tmp_path, "collapsed", **options)


@pytest.mark.parametrize("format", READERS)
def test_deep_stacks_and_small_batches(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MAX_DEPTH", 5)
    monkeypatch.setattr(profile, "BATCH_FRAMES", 3)
    rows = [{"depth": n, "parent_id": n - 1 or None, "symbol": f"f{n}"} for n in range(1, 40)]
    of = trace(stacks=rows, cpu_samples=[sample(n, n) for n in range(1, 40)])
    names = tuple(f"f{n}" for n in range(1, 6))
    assert exported(of, tmp_path, format) == {(None, names[:n]): 1 if n < 5 else 35 for n in range(1, 6)}


def test_long_texts_are_cut(tmp_path: Path) -> None:
    of = trace(stacks=[{"depth": 1, "symbol": "x" * 20_000}], cpu_samples=[sample(0, 1)])
    assert exported(of, tmp_path, "collapsed") == {(None, ("x" * profile.MAX_TEXT,)): 1}


def python(time: int, stack: int | None, kind: str = "periodic", thread: int = 8) -> dict[str, object]:
    return {**sample(time, stack, thread), "kind": kind}


CALLS = [(20, 25, 8), (20, 29, 9), (30, 37, 8)]
"""Start, end and thread."""


@pytest.mark.parametrize("format", READERS)
def test_python_stacks(format: str, tmp_path: Path) -> None:
    calls = [call(start, end, process_id=7, thread_id=thread) for start, end, thread in CALLS]
    made = [python(0, 2), python(20, 3, "cuda"), python(10, 1), python(30, 2, "cuda"), python(99, 2, "cuda")]
    of = small(python_samples=[*made, python(20, None), python(20, 1, "cuda", 9)], api_calls=calls)
    samples, calls_of = {"events": "python_samples"}, {"events": "python_calls"}
    work = next(frames for _, frames in exported(of, tmp_path, format) if frames != MAIN)
    assert work[:1] == MAIN
    assert exported(of, tmp_path, format) == {(None, work): 1, (None, MAIN): 1}
    assert exported(of, tmp_path, format, **samples, weight="time") == {(None, work): 10, (None, MAIN): 10}
    assert exported(of, tmp_path, format, **calls_of) == {(None, work): 3, (None, MAIN): 1}
    assert exported(of, tmp_path, format, **calls_of, weight="time") == {(None, work): 12, (None, MAIN): 9}


def test_missing_python_stacks(tmp_path: Path) -> None:
    for of, hint in (
        (small(cpu_samples=SAMPLES), "record them with nsys profile --python-sampling=true"),
        (small(python_samples=[python(0, None)]), "read the report, or export it with --include-blobs=true"),
        (small(python_samples=[python(0, 1, "cuda")]), "record them with nsys profile --python-sampling=true"),
    ):
        with pytest.raises(MissingTableError, match=f"has no call stacks of python_samples\nHint: {hint}"):
            exported(of, tmp_path, "collapsed", events="python_samples")
