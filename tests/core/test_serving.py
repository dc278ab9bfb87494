"""Phases and steps of serving: names of annotations, traces of vLLM and SGLang read naively, and brute force."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.declared import PROCESS, build_frames, build_kernel, build_launch, build_range
from tests.builders.reports import compute_report
from tests.conftest import FIXTURES
from tracekit.core.iterations import find_iterations
from tracekit.core.ops import Ops
from tracekit.core.ops.step_annotations import Annotation, load_annotation_patterns, parse_annotation
from tracekit.core.serving import are_steps_annotated

TRACELENS = Path(__file__).parents[2] / "../shared/corpus/makers/kineto_other/AMD-AGI__TraceLens"
NUMBERS = ("requests", "context_requests", "context_tokens", "generation_requests", "generation_tokens")
DETAILED = "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)"
MIXED = "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]"

ANNOTATIONS = {
    "execute_context_2(6144)_generation_3(3)": ("vLLM", "mixed", 5, 2, 6144, 3, 3, None),
    "execute_context_1(888_788544)_generation_0(0)": ("vLLM", "prefill", 1, 1, 888, 0, 0, None),
    "execute_context_0(0)_generation_64(128)": ("vLLM", "decode", 64, 0, 0, 64, 128, None),
    "execute_context_0(0)_generation_0(0)": ("vLLM", "idle", 0, 0, 0, 0, 0, None),
    DETAILED: ("vLLM", "mixed", 5, 2, 6144, 3, 3, 13288),
    "execute_new_2_cached_0": ("vLLM", "prefill", 2, None, None, None, None, None),
    "execute_new_0_cached_8": ("vLLM", None, 8, None, None, None, None, None),
    "gpu_model_runner: forward": ("vLLM", None, None, None, None, None, None, None),
    "step[EXTEND bs=2 toks=4096]": ("SGLang", "prefill", 2, 2, 4096, 0, 0, None),
    "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]": ("SGLang", "prefill", 2, 2, 12, 0, 0, 20),
    "step[EXTEND bs=2 toks=0]": ("SGLang", "prefill", 2, 2, None, 0, 0, None),
    "step[DECODE bs=32]": ("SGLang", "decode", 32, 0, 0, 32, 32, None),
    "step[DECODE bs=2 g_sq=8 g_sqsq=32 g_sqsk=120 g_sk=30]": ("SGLang", "decode", 2, 0, 0, 2, 8, 30),
    "step[TARGET_VERIFY bs=4]": ("SGLang", "decode", 4, 0, 0, 4, None, None),
    "step[TARGET_VERIFY bs=2 c_sq=6 c_sqsq=18 c_sqsk=90 c_sk=30]": ("SGLang", "decode", 2, 0, 0, 2, 6, 30),
    "step[DRAFT_EXTEND_V2 bs=2 c_sq=5 c_sqsq=13 c_sqsk=93 c_sk=35]": ("SGLang", "decode", 2, 0, 0, 2, 5, 35),
    "step[MIXED bs=2]": ("SGLang", "mixed", 2, None, None, None, None, None),
    MIXED: ("SGLang", "mixed", 2, 1, 5, 1, 1, 20),
    "step[IDLE bs=0]": ("SGLang", "idle", 0, None, None, None, None, None),
    "step[SOMETHING_NEW bs=3]": ("SGLang", None, 3, None, None, None, None, None),
    "prefill[bs=2 tok=14721 ctx=[7803, 6918]]": ("ATOM", "prefill", 2, 2, 14721, 0, 0, None),
    "prefill[bs=2 tok=9 ctx=[4, 5] sqsq=41 sqsk=41 sk=9]": ("ATOM", "prefill", 2, 2, 9, 0, 0, 9),
    "decode[bs=117/128 tok=117 d=117]": ("ATOM", "decode", 117, 0, 0, 117, 117, None),
    "decode[bs=128 tok=384 p=2 d=126]": ("ATOM", "mixed", 128, 2, None, 126, None, None),
    "[Executor] _forward_step: 0 ctx reqs, 7 gen reqs": ("TensorRT-LLM", "decode", 7, 0, None, 7, None, None),
    "[Executor] _forward_step 8: 1 ctx reqs, 512 ctx tokens, 7 gen reqs": (
        "TensorRT-LLM",
        "mixed",
        8,
        1,
        512,
        7,
        None,
        None,
    ),
    "forward-compute": ("Megatron", "forward", None, None, None, None, None, None),
    "forward-send-backward-recv": ("Megatron", "communication", None, None, None, None, None, None),
    "Prefill": ("named range", "prefill", None, None, None, None, None, None),
    "decode 12": ("named range", "decode", None, None, None, None, None, None),
    # Numbers that contradict one another, and names that no framework writes.
    "execute_context_0(5)_generation_1(1)": ("vLLM", None, None, None, None, None, None, None),
    "execute_context_3(2)_generation_1(1)": ("vLLM", None, None, None, None, None, None, None),
    DETAILED.replace("6147", "6148"): ("vLLM", None, None, None, None, None, None, None),
    DETAILED.replace("sk7144", "sk100"): ("vLLM", None, None, None, None, None, None, None),
    "step[DECODE bs=9 g_sq=3]": ("SGLang", "decode", None, None, None, None, None, None),
    "execute_context_1(1)_generation_99999999999999999999(1)": None,
    "step[DECODE bs=" + "9" * 30 + "]": None,
    "step[decode bs=2]": None,
    "decode_attention": None,
    "prefilled": None,
    "Prefill" * 400: None,
    "Decode\n": None,
}


@pytest.mark.parametrize(("name", "expected"), ANNOTATIONS.items(), ids=lambda v: str(v)[:40])
def test_annotations(name: str, expected: tuple[Any, ...] | None) -> None:
    parsed = parse_annotation(name)
    assert (None if parsed is None else tuple(parsed)[:8]) == expected


def test_declared_examples_and_the_patterns_of_polars() -> None:
    for rule in load_annotation_patterns():
        names = pl.Series([*rule["examples"], "other"])
        assert names.str.contains(rule["pattern"]).to_list() == [True] * len(rule["examples"]) + [False]
        parsed = [parse_annotation(name) for name in rule["examples"]]
        assert all(isinstance(p, Annotation) and p.framework == rule["framework"] for p in parsed)
        assert rule["doc"]
        assert rule["source"]


def attributes(rows: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return rows.select(columns).rows()


def find_named(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [e for e in events if e.get("cat") == category]


def union(intervals: list[tuple[int, int]]) -> int:
    """Return the number of moments that any of the intervals covers."""
    total, last = 0, None
    for start, end in sorted(intervals):
        total += max(0, end - (start if last is None else max(start, last)))
        last = end if last is None else max(last, end)
    return total


FEW = 5000
TRACES = {
    "b200/eager_trace": ("vLLM", "prefill", 1, 1, 888, 0, 0),
    "inference/vllm_decode_full/graph_execution": ("vLLM", "decode", 32, 0, 0, 32, 32),
    "inference/vllm_prefilldecode_piecewise/graph_execution": ("vLLM", "mixed", 46, 9, 8155, 37, 37),
    "inference/sglang_decode/sglang_Qwen3-8B_decode": ("SGLang", "decode", 32, 0, 0, 32, 32),
    "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode": ("SGLang", "prefill", 15, 15, 15360, 0, 0),
}


@pytest.mark.skipif(not TRACELENS.exists(), reason="the captures of TraceLens are not here")
@pytest.mark.parametrize(("trace", "expected"), TRACES.items())
def test_traces_of_vllm_and_sglang(trace: str, expected: tuple[Any, ...]) -> None:
    """The JSON, read naively: what the runtime calls in the only annotated step launched, by correlation id."""
    path = TRACELENS / f"{trace}.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    step = max(
        (e for e in find_named(events, "user_annotation") if e["name"].startswith(("ex", "st"))), key=lambda e: e["dur"]
    )
    begin, end = step["ts"], step["ts"] + step["dur"]
    calls = find_named(events, "cuda_runtime") + find_named(events, "cuda_driver")
    inside = {e["args"]["correlation"] for e in calls if begin <= e["ts"] <= end and "correlation" in e["args"]}
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    work = [e for kind in kinds for e in find_named(events, kind) if e["args"]["correlation"] in inside]
    times = [(round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000)) for e in work]
    with tracekit.load(path) as loaded:
        (row,) = loaded.report("serving_steps").data.rows(named=True)
        (phase,) = loaded.report("serving_phases:batch").data.rows(named=True)
        if len(events) < FEW:
            delimited = loaded.report("steps").data.row(0, named=True)
            assert (delimited["steps"], delimited["key_op"]) == (1, step["name"])
    assert tuple(row[n] for n in ("framework", "phase", *NUMBERS)) == expected
    assert tuple(phase[n] for n in ("framework", "phase", *NUMBERS)) == expected
    assert row["kernels"] == sum(e["cat"] == "kernel" for e in work)
    slack = len(work)  # the profiler wrote microseconds with three digits
    assert row["gpu_time_ns"] == pytest.approx(sum(e - s for s, e in times), abs=slack)
    assert row["busy_ns"] == pytest.approx(union(times), abs=slack)
    assert row["cpu_ns"] == pytest.approx(step["dur"] * 1000, abs=2)
    assert row["time_ns"] == pytest.approx(max(end * 1000, *(e for _, e in times)) - begin * 1000, abs=1000)
    assert (phase["steps"], phase["batch"], phase["total"]) == (1, row["requests"], row["time_ns"])
    shares = [phase[n] for n in ("attention", "gemm", "moe", "kv_cache", "sampling", "communication", "rest")]
    assert sum(shares) == pytest.approx(100)
    tokens = row["context_tokens"] + row["generation_tokens"]
    assert phase["tokens_per_s"] == pytest.approx(tokens / row["time_ns"] * 1e9)


STEPS = (
    "[Executor] _forward_step {}: 1 ctx reqs, 512 ctx tokens, 0 gen reqs",
    "[Executor] _forward_step {}: 0 ctx reqs, 4 gen reqs",
)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(1, 9),
            st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=3),
        ),
        max_size=6,
    )
)
def test_times_of_steps(steps: list[tuple[int, int, list[tuple[int, int]]]]) -> None:
    """Steps on one thread, with kernels that start after a delay and last for some time: the GPU lags behind."""
    tables: dict[str, list[dict[str, Any]]] = {"nvtx_ranges": [], "api_calls": [], "kernels": []}
    expected, now, done, number = [], 0, 0, 0
    for step, (kind, pause, kernels) in enumerate(steps):
        start = now = now + pause
        own = []
        for delay, duration in kernels:
            number += 1
            tables["api_calls"].append(build_launch(number, now + 1))
            own.append((now + 2 + delay, now + 2 + delay + duration))
            tables["kernels"].append(build_kernel(number, *own[-1], "flash_fwd"))
            now += 2
        now += 2
        tables["nvtx_ranges"].append(build_range(step, STEPS[kind].format(step), start, now))
        begin, done = max(start, done), max([done, now, *(e for _, e in own)])
        inside = union([(max(s, begin), min(e, done)) for s, e in own if s < done and e > begin])
        expected.append(
            (step, kind, begin, done - begin, sum(e - s for s, e in own), union(own), done - begin - inside)
        )
    rows = compute_report(build_frames(**tables), "serving_steps").data
    kinds = rows.with_columns(kind=(pl.col("phase") == "decode").cast(pl.Int64))
    columns = ("step", "kind", "time_start_ns", "time_ns", "gpu_time_ns", "busy_ns", "idle_ns")
    assert attributes(kinds, *columns) == expected
    phases = compute_report(build_frames(**tables), "serving_phases").data
    assert phases["total"].sum() == sum(time for _, _, _, time, *_ in expected)
    for row in phases.iter_rows(named=True):
        times = [time for _, kind, _, time, *_ in expected if (kind == 1) == (row["phase"] == "decode")]
        assert (row["steps"], row["total"], row["mean"]) == (
            len(times),
            sum(times),
            pytest.approx(sum(times) / len(times)),
        )
        assert min(times) <= row["median"] <= row["p99"] <= max(times)
        assert row["context_tokens"] == (512 * len(times) if row["phase"] == "prefill" else None)


def test_phases_of_training_and_threads() -> None:
    """Two microbatches of Megatron, whose backward passes launch on another thread, and a range that contains them."""
    passes = {
        "forward-compute": [(10, 20), (40, 50)],
        "backward-compute": [(20, 40), (50, 70)],
        "optimizer": [(80, 90)],
    }
    ranges = [
        ("forward-backward", 5, 75),
        *((name, *times) for name, all_times in passes.items() for times in all_times),
    ]
    starts = [(12, 1), (42, 1), (25, 2), (55, 2), (82, 1), (76, 1)]
    frames = build_frames(
        nvtx_ranges=[build_range(i, *of) for i, of in enumerate(ranges)],
        api_calls=[build_launch(i, at, thread) for i, (at, thread) in enumerate(starts, 1)],
        kernels=[build_kernel(i, at + 1, at + 4) for i, (at, _) in enumerate(starts, 1)],
    )
    rows = compute_report(frames, "serving_phases").data.sort("phase")
    columns = ("framework", "phase", "steps", "cpu_ns", "gpu_time_ns", "requests", "tokens_per_s")
    assert attributes(rows, *columns) == [
        ("Megatron", "backward", 2, 40, 6, None, None),
        ("Megatron", "forward", 2, 20, 6, None, None),
        ("Megatron", "optimizer", 1, 10, 3, None, None),
        (None, "outside", None, None, 3, None, None),
    ]
    alone = build_frames(nvtx_ranges=[build_range(1, "optimizer", 0, 9), build_range(2, "forward-pass", 0, 9)])
    assert compute_report(alone, "serving_phases").data.is_empty()


def test_nested_and_equal_ranges_mark_one_step() -> None:
    ranges = [
        ("decode", 0, 100),  # contains several steps
        ("execute_context_0(0)_generation_4(4)", 10, 30),
        ("step[DECODE bs=4]", 12, 29),
        ("step[DECODE bs=4 g_sq=4 g_sk=80]", 40, 50),
        ("execute_context_0(0)_generation_4(4)", 40, 50),
        ("gpu_model_runner: forward", 41, 49),
        ("Prefill", 60, None),
        ("step[EXTEND bs=1 toks=5]", 70, 80),
        ("prefill", 95, 90),  # ends before it starts
    ]
    frames = build_frames(
        nvtx_ranges=[build_range(i, *of) for i, of in enumerate(ranges)],
        api_calls=[build_launch(1, 71, name="cudaStreamBeginCapture_v10000")],
    )
    rows = compute_report(frames, "serving_steps").data
    assert attributes(rows, "framework", "phase", "requests", "sequence_tokens", "start_ns", "cpu_ns") == [
        ("SGLang", "decode", 4, None, 10, 20),
        ("vLLM", "decode", 4, 80, 40, 10),
        ("SGLang", "capture", 1, None, 60, 40),
    ]
    only = build_frames(nvtx_ranges=[build_range(i, "gpu_model_runner: forward", 10 * i, 10 * i + 5) for i in range(3)])
    assert attributes(compute_report(only, "serving_phases").data, "phase", "steps") == [(None, 3)]
    assert compute_report(build_frames(), "serving_phases").data.is_empty()


def test_ranges_that_a_layered_trace_copies_into_replays_mark_no_steps() -> None:
    """A graph that was captured in the first step is replayed twice in the second one."""
    ranges = [("decode 0", 0, 10, None), ("decode 1", 20, 40, None), ("decode 0", 21, 25, 0), ("decode 0", 31, 35, 0)]
    tables = build_frames(nvtx_ranges=[build_range(i, *of[:3]) for i, of in enumerate(ranges)])

    def frames(name: str) -> pl.LazyFrame:
        copies = {"captured_range_id": pl.Series([of[3] for of in ranges])} if name == "nvtx_ranges" else {}
        return tables(name).with_columns(**copies)

    rows = compute_report(frames, "serving_steps").data
    assert attributes(rows, "name", "start_ns", "cpu_ns") == [("decode 0", 0, 10), ("decode 1", 20, 20)]


SEQUENCES = {
    "execute_context_*(*)_generation_*(*)": [
        f"execute_context_{i % 2}({i % 2 * 99}_{i})_generation_8(8)" for i in range(4)
    ],
    "execute_*_context_*(*)_generation_*(*)": [
        f"execute_{i}_context_0(sq0sk0sqsq0sqsk0)_generation_{i}(sq{i}sk{i}sqsq{i}sqsk{i})" for i in range(4)
    ],
    "execute_new_*_cached_*": [f"execute_new_1_cached_{i}" for i in range(4)],
    "step[*]": ["step[EXTEND bs=2 toks=4096]", *(f"step[DECODE bs={i}]" for i in range(3))],
    "prefill|decode[*]": ["prefill[bs=1 tok=9 ctx=[9]]", *(f"decode[bs={i} tok={i} d={i}]" for i in range(3))],
    "[Executor] _forward_step *: * ctx reqs, * gen reqs": [
        f"[Executor] _forward_step {i}: 0 ctx reqs, {i} gen reqs" for i in range(4)
    ],
    "step[DECODE bs=32]": ["step[DECODE bs=32]"],
}


@pytest.mark.parametrize(("label", "names"), SEQUENCES.items())
def test_annotations_delimit_the_steps_of_the_capture(label: str, names: list[str]) -> None:
    """Steps of all phases and sizes, which launch different numbers of kernels, and a range inside of each."""
    ranges = [
        of for i, name in enumerate(names) for of in ((name, 20 * i, 20 * i + 15), ("forward", 20 * i, 20 * i + 14))
    ]
    launches = [20 * i + 1 + j for i in range(len(names)) for j in range(1 + i % 3)]
    frames = build_frames(
        nvtx_ranges=[build_range(i, *of) for i, of in enumerate(ranges)],
        api_calls=[build_launch(i, at) for i, at in enumerate(launches, 1)],
        kernels=[build_kernel(i, at + 1, at + 2, f"k{i % 3}") for i, at in enumerate(launches, 1)],
    )
    iterations = find_iterations(Ops(frames))
    assert (iterations.label, iterations.frame.height) == (label, len(names))
    assert iterations.frame["name"].to_list() == names
    assert PROCESS in iterations.by_process["process_id"]


FIXTURE = Path(__file__).parents[2] / "fixtures/serving/steps.nsys-rep"
PLAN = "p1x128 d1 d1 p3x64 d4 d4 p4x256 d8 d8 d8 p1x500 d1"
"""What ``fixtures/programs/serve.py`` does: prefills of a number of requests and their lengths, and decodes."""


def test_recorded_steps_of_a_program_that_annotates_as_vllm_does() -> None:
    expected = []
    for step in PLAN.split():
        requests, _, length = step[1:].partition("x")
        tokens = int(requests) * int(length or 1)
        expected.append(("prefill" if step[0] == "p" else "decode", int(requests), tokens))
    with tracekit.load(FIXTURE) as trace:
        steps, phases = (trace.report(f"serving_{name}").data for name in ("steps", "phases"))
        assert trace.report("steps").data["steps"].to_list() == [len(expected)]
        assert trace.with_layers("capture").report("serving_steps").data.equals(steps)
    tokens = pl.col("context_tokens") + pl.col("generation_tokens")
    assert attributes(steps.with_columns(tokens=tokens), "phase", "requests", "tokens") == expected
    assert steps.filter(phase="decode")["kernels"].unique().to_list() == [55]  # all nodes of the graph
    outside = phases.filter(phase="outside").row(0, named=True)
    assert (outside["steps"], outside["gpu_time_ns"], outside["rest"]) == (
        None,
        4736,
        100,
    )  # fills, during a capture
    phases = phases.filter(pl.col("phase") != "outside")
    assert attributes(phases, "phase", "steps", "requests", "sequence") == [
        ("prefill", 4, 9, None),
        ("decode", 8, 35, None),
    ]
    assert phases["total"].to_list() == [steps.filter(phase=p)["time_ns"].sum() for p in phases["phase"]]


def test_chosen_iterations_limit_the_reports() -> None:
    with tracekit.load(FIXTURE) as trace:
        whole = trace.report("serving_steps").data
        some = trace.rollup(iterations=(1, 3))
        assert some.report("serving_steps").data.rows() == whole[1:4].rows()
        assert some.report("serving_phases").data["steps"].to_list() == [1, 2]
        total = int(some.report("kernel_categories").data["total"].sum())
        assert total == some.report("kernel_categories:layer").data["total"].sum() == whole[1:4]["gpu_time_ns"].sum()


@pytest.mark.parametrize(("name", "expected"), [("serving/steps.nsys-rep", True), ("ddp2.sqlite", False)])
def test_annotated_steps_are_noticed(name: str, *, expected: bool) -> None:
    """The only annotations of ``ddp2`` lie beside steps, and are none."""
    with tracekit.load(FIXTURES / name) as trace:
        assert are_steps_annotated(trace.frame) is expected
        assert bool(trace.stats("serving_steps").height) is expected
