"""What a report holds and a table does not: calls of every class are read, and what is not known is warned of."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import SHARED, Parts, Value, event, message, strings
from tests.helpers import count_undecoded
from tracekit.errors import TracekitWarning
from tracekit.readers.nsys_rep import events

MORE = SHARED / "captures" / "h200_more"
needs_more = pytest.mark.skipif(not MORE.is_dir(), reason="no captures beside the checkout")
THREAD = 7 << 24 | 9
CALL, MARK = 48, 47


def call(event_class: int | None, *more: tuple[int, Value], kind: int = CALL) -> bytes:
    classed = [] if event_class is None else [(6, event_class)]
    return event(kind, 108, (1, 10), (2, 20), (3, 5), *classed, (7, 0), (8, 0), (13, THREAD), *more)


def activity(event_type: int, *parts: tuple[int, Value]) -> bytes:
    return event(event_type, 107, (1, 10), (2, 20), (3, 5), (4, 0), (5, 1), (6, 7), (8, 7 << 24), *parts)


KERNEL = (101, message((1, 0), (2, 0), *((field, 1) for field in range(10, 25))))
COPY, SET = (102, message((1, 8), (4, 1), (5, 1))), (103, message((1, 8), (4, 1)))


def report(folder: Path, *blocks: bytes, stream: bytes | None = None) -> tk.Trace:
    path = folder / "made.nsys-rep"
    path.write_bytes(Parts(blocks, [strings("cudaLaunchKernel", "GpuMetrics", "A")], stream=stream).pack())
    return tk.load(path)


def said(trace: tk.Trace, *tables: str) -> list[str]:
    """What is warned of when tables are read."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for name in tables:
            trace.table(name)
    return [str(w.message).partition(": ")[2] for w in found if w.category is TracekitWarning]


def left_out(number: int, what: str, tables: str = "api_calls and osrt_calls") -> str:
    events = "1 unknown or incomplete event was" if number == 1 else f"{number:,} unknown or incomplete events were"
    return f"{events} skipped ({what}), but may belong to {tables}"


def test_calls_with_a_chain_are_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BATCH_BYTES", 1)
    block = call(67, (15, b"")) + call(0) + call(1) + call(67, (15, b""), (15, b""))
    with report(tmp_path, block, block) as trace:
        assert said(trace, "api_calls", "osrt_calls") == []
        found = trace.table("api_calls", ["api_call_id", "api", "callchain_id"]).to_pydict()
        assert trace.undecoded == {}
    assert found == {
        "api_call_id": [1, 2, 3, 4, 5, 6, 7, 8],
        "api": ["CUDA backtrace", "CUDA runtime", "CUDA driver", "CUDA backtrace"] * 2,
        "callchain_id": [0, None, None, 1, 2, None, None, 3],
    }


def test_calls_that_are_not_known_are_warned_of_once(tmp_path: Path) -> None:
    block = call(0) + call(120) + call(None) + call(120) + call(3) + call(28) + call(10, kind=MARK)
    with report(tmp_path, block, block) as trace:
        expected = [left_out(2, "call without a class"), left_out(4, "call of class 120")]
        assert sorted(said(trace, "api_calls")) == expected
        assert said(trace, "osrt_calls", "api_calls") == []
        assert count_undecoded(trace.undecoded) == {
            "call of class 120": 4,
            "call without a class": 2,
            "start or finish mark": 2,
        }


def test_a_conversion_warns(tmp_path: Path) -> None:
    with report(tmp_path, call(0) + call(120)) as trace, pytest.warns(TracekitWarning, match="call of class 120"):
        trace.export(tmp_path / "out", format="parquet")


def test_activities_without_a_known_part_are_warned_of(tmp_path: Path) -> None:
    block = activity(79, KERNEL) + activity(79) + activity(80, COPY) + activity(80, SET) + activity(80, (104, b""))
    later = activity(170, KERNEL) + activity(170) + activity(171, (110, b""))
    tables = "the tables of GPU activities"
    with report(tmp_path, block + later) as trace:
        unknown = [left_out(1, f"GPU activity of type {t}", tables) for t in (170, 171)]
        assert sorted(said(trace, "memsets")) == [*unknown, left_out(1, "GPU activity of type 80", tables)]
        assert said(trace, "memcpys") == []
        assert said(trace, "kernels") == [left_out(1, "GPU activity of type 79", tables)]
        assert {t: trace.count(t) for t in ("kernels", "memcpys", "memsets")} == {
            "kernels": 2, "memcpys": 1, "memsets": 1,
        }  # fmt: skip
        empty = len(block + later) - len(activity(79, KERNEL) * 2 + activity(80, COPY) + activity(80, SET))
        assert count_undecoded(trace.undecoded) == {f"GPU activity of type {t}": 1 for t in (170, 171, 79, 80)}
        assert 0 < sum(u.bytes or 0 for u in trace.undecoded.values()) < empty


def test_the_bytes_of_events_are_those_of_their_messages(tmp_path: Path) -> None:
    """Without the number of the field and the length, which precede every message."""
    sizes = {"call of class 120": 4, "system call": 9, "OpenMP": 2, "CUDA graph": 5, "memory map": 7}
    calls = {"call of class 120": (48, 120), "system call": (147, 121), "OpenMP": (48, 78), "CUDA graph": (131, 0)}
    blocks = b"".join(event(k, 108, (6, c), (99, b"." * sizes[name])) for name, (k, c) in calls.items())
    blocks += event(28, 109, (99, b"." * sizes["memory map"])) + event(27, 113, (1, 5), (2, 7 << 24))
    with report(tmp_path, blocks, blocks) as trace:
        found = trace.undecoded
    around = len(message((6, 0), (99, b"")))
    assert found == {
        "OpenMP": tk.Undecoded(2, 2 * (around + 2), ("openmp_events",)),
        "call of class 120": tk.Undecoded(2, 2 * (around + 4), ("api_calls", "osrt_calls")),
        "call of class 121": tk.Undecoded(2, 2 * (around + 9), ("api_calls", "osrt_calls")),
        "event of type 131": tk.Undecoded(2, 2 * (around + 5)),
        "memory map": tk.Undecoded(2, 2 * (len(message((99, b""))) + 7), is_auxiliary=True),
        "process without a name": tk.Undecoded(2, 2 * len(message((1, 5), (2, 7 << 24))), is_auxiliary=True),
    }


def test_halves_of_ranges_and_unknown_types_are_warned_of(tmp_path: Path) -> None:
    known = [event(t, 102, (1, t), (2, 1), (7, "a"), (9, THREAD), (10, 2)) for t in (33, 34, 39, 59, 60, 75, 76)]
    others = [event(t, 102, (1, t), (2, 1), (7, "a"), (9, THREAD)) for t in (35, 68, 160)]
    tables = "nvtx_ranges and nvtx_marks"
    with report(tmp_path, b"".join(known + others)) as trace:
        assert said(trace, "kernels", "api_calls") == []
        assert sorted(said(trace, "nvtx_ranges")) == [
            left_out(1, "NVTX event of type 160", tables),
            left_out(1, "NVTX start of a push/pop range", tables),
            left_out(1, "NVTX start of a start/end range", tables),
        ]
        assert trace.count("nvtx_ranges") == 2
        assert trace.undecoded.keys() == {
            "NVTX event of type 160", "NVTX start of a push/pop range", "NVTX start of a start/end range",
        }  # fmt: skip


def test_samples_without_values_are_warned_of(tmp_path: Path) -> None:
    source = 1 << 48
    listed = message((1, source), (3, message((1, 2), (2, 0), (3, 1))))
    stream = message((1, 0), (3, 3), (9, "lz4"), (13, message((1, source), (3, 1))), (14, listed))
    whole = message((2, message((1, source), (2, 3), (3, b"\7"))))
    without = [message((2, message(*fields))) for fields in ([(1, source), (2, 3)], [(1, source), (3, b"\7")])]
    with report(tmp_path, whole + b"".join(without), stream=stream) as trace:
        what = "sample of GPU metrics without its time or its values"
        assert said(trace, "gpu_metrics") == [left_out(2, what, "gpu_metrics and counters")]
        assert trace.count("gpu_metrics") == 1


@needs_more
def test_calls_with_a_chain_of_a_capture() -> None:
    with tk.load(MORE / "pystacks.nsys-rep") as mine, tk.load(MORE / "pystacks.sqlite") as theirs:
        assert said(mine, *mine.tables) == []
        assert mine.count("api_calls") == 1406
        assert mine.table("api_calls").equals(theirs.table("api_calls"))
