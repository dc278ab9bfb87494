"""Instances of NVTX ranges by name, domain and number, and what ``select`` keeps of a capture for them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_report_reads import FIXTURES
from tests.core.test_reports import Row, frames, nvtx
from tracekit.core.nvtx_instance import Instance, RangeName, find_range_instance, parse_range_name
from tracekit.errors import TracekitError

ELSEWHERE = "Hint: choose one of the ranges with this name: "
RANGES = [
    nvtx(50, 60, "step", kind="push_pop", thread_id=2),
    nvtx(10, 20, "step", kind="push_pop"),
    nvtx(30, None, "step", kind="start_end"),
    nvtx(0, 5, "step", kind="push_pop", domain="app"),
    nvtx(1, 2, "other", kind="push_pop", domain="app"),
    nvtx(3, 4, None, kind="push_pop"),
]


def instance_of(text: str, rows: list[Row] = RANGES) -> Instance:
    return find_range_instance(frames(nvtx_ranges=rows)("nvtx_ranges"), text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("step", ("step", "", 0)),
        ("step@app", ("step", "app", 0)),
        ("step@app/3", ("step", "app", 3)),
        ("step/12", ("step", "", 12)),
        ("", ("", "", 0)),
        ("@app", ("", "app", 0)),
        ("a/b", ("a/b", "", 0)),
        ("a/1/2", ("a/1", "", 2)),
        ("a/1@app", ("a/1", "app", 0)),
        ("a@b@c", ("a@b", "c", 0)),
        ("step@lib:two/x/2", ("step", "lib:two/x", 2)),
        ("step@lib/x", ("step", "lib/x", 0)),
        (r"a\/1", ("a/1", "", 0)),
        (r"a\@b@c\/d/1", ("a@b", "c/d", 1)),
        (r"a\\/1", ("a\\", "", 1)),
        ("a\nb/1", ("a\nb", "", 1)),
        ("a\\", ("a\\", "", 0)),
        ("a/" + "9" * 19, ("a/" + "9" * 19, "", 0)),
    ],
)
def test_names(text: str, parts: tuple[str, str, int]) -> None:
    assert parse_range_name(text) == parts


def test_a_text_that_names_no_range_is_a_name_of_the_default_domain() -> None:
    ranges = [
        nvtx(10 * i, 10 * i + 5, name, kind="push_pop") for i, name in enumerate(("me@host", "layer/1", "a", "a/2"))
    ]
    assert instance_of("me@host", ranges).start_ns == 0
    assert instance_of("layer/1", ranges).start_ns == 10
    assert instance_of("a/0", ranges).start_ns == 20
    with pytest.raises(TracekitError, match="no NVTX range 'a' with index 2"):
        instance_of("a/2", ranges)
    assert instance_of(r"a\/2", ranges).start_ns == 30


def test_invalid_utf8_is_replaced_as_in_captures() -> None:
    ranges = [nvtx(0, 5, "caf\ufffd", kind="push_pop")]
    assert instance_of("caf\udce9", ranges).start_ns == 0
    with pytest.raises(TracekitError, match="there is no NVTX range 'caf\ufffd' in the default domain"):
        instance_of("caf\udce9")


@given(st.text("ab@/\\1", max_size=8), st.text("ab@/\\1", max_size=8), st.integers(0, 99))
def test_escaped_names_are_read_back(name: str, domain: str, index: int) -> None:
    def escape(text: str) -> str:
        return "".join(f"\\{c}" if c in "@/\\" else c for c in text)

    assert parse_range_name(f"{escape(name)}@{escape(domain)}/{index}") == RangeName(name, domain, index)


@pytest.mark.parametrize(
    ("text", "instance"),
    [
        ("step", (10, 20, 7, 1)),
        ("step/0", (10, 20, 7, 1)),
        ("step/1", (30, None, 7, None)),
        ("step/2", (50, 60, 7, 2)),
        ("step@app", (0, 5, 7, 1)),
        ("", (3, 4, 7, 1)),
    ],
)
def test_instances_are_numbered_by_start(text: str, instance: tuple[Any, ...]) -> None:
    assert instance_of(text) == instance


def test_hints_list_the_ranges_whose_names_contain_the_requested_name() -> None:
    """PyTorch adds arguments to the names of ops."""
    names = ["Batch 1", *(f"aten::Linear, seq = {n}" for n in range(30))]
    rows = [nvtx(n, n + 1, name, kind="push_pop") for n, name in enumerate(names)]
    with pytest.raises(
        TracekitError, match=r"choose one of these ranges: 'aten::Linear, seq = 0', .*, … \(30 in all\)$"
    ):
        instance_of("aten::linear", rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "step/3",
            "there is no NVTX range 'step' with index 3 in the default domain\nHint: choose an index from 0 to 2",
        ),
        (
            "other",
            "there is no NVTX range 'other' in the default domain\n" + ELSEWHERE + "other@app",
        ),
        (
            "step@ap",
            "there is no NVTX range 'step' in domain 'ap'\n" + ELSEWHERE + "step, step@app",
        ),
        ("sted", "Hint: did you mean 'step'? choose one of these ranges: 'step', ''"),
        ("x@ap", "Hint: did you mean 'app'? choose one of these domains with ranges: '', 'app'"),
    ],
)
def test_missing_ranges_list_what_exists(text: str, message: str) -> None:
    with pytest.raises(TracekitError) as e:
        instance_of(text)
    assert message in str(e.value)


def test_long_lists_are_shortened_and_may_be_empty() -> None:
    with pytest.raises(TracekitError, match=r"'r9', … \(30 in all\)$"):
        instance_of("x", [nvtx(i, i + 1, f"r{i}") for i in range(30)])
    with pytest.raises(TracekitError, match="there are no domains with ranges"):
        instance_of("x", [])


@pytest.mark.parametrize("name", ["nvtx_features.nsys-rep", "nvtx_features.sqlite"])
def test_selection_by_brute_force(name: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        for row in trace.frame("nvtx_ranges").collect().to_dicts()[:40]:
            text = "".join(f"\\{c}" if c in "@/\\" else c for c in row["name"] or "")
            text += f"@{row['domain']}" if row["domain"] else ""
            key = (row["name"], row["domain"])
            same = [r for r in trace["nvtx_ranges"].to_pylist() if (r["name"], r["domain"]) == key]
            index = sorted(same, key=lambda r: r["start_ns"]).index(row)
            part = trace.select(nvtx=f"{text}/{index}")
            for table in ("api_calls", "nvtx_ranges", "kernels", "osrt_calls"):
                expected = [r for r in trace[table].to_pylist() if overlaps(row, r)]
                assert part[table].to_pylist() == expected


def overlaps(around: Row, row: Row) -> bool:
    if row["process_id"] != around["process_id"]:
        return False
    is_of_thread = around["kind"] == "push_pop" and around["thread_id"] != around["process_id"]
    if is_of_thread and row.get("thread_id", around["thread_id"]) != around["thread_id"]:
        return False
    after = around["end_ns"] is not None and row["start_ns"] >= around["end_ns"]
    return not after and (row["end_ns"] is None or max(row["end_ns"], row["start_ns"] + 1) > around["start_ns"])


def test_steps_commute_and_pickle() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        name = trace["nvtx_ranges"].slice(0, 1).to_pylist()[0]["name"]
        one = trace.select(nvtx=name).select(time=(0, 1 << 40)).rollup()
        other = trace.select(time=(0, 1 << 40)).rollup().select(nvtx=name)
        assert one._plan == other._plan
        narrow = trace.select(tables=["kernels"])  # the range is found although its table is not selected
        assert narrow.select(nvtx=name).count("kernels") == trace.select(nvtx=name).count("kernels")
        with pickle.loads(pickle.dumps(one)) as copy:
            assert copy.count("api_calls") == one.count("api_calls")
