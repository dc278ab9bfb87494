"""CSV output of nvprof is read as its cells say."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError, TracekitWarning, UnknownFormatError

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "nvprof_csv"
TRACES, SUMMARY = FIXTURES / "traces.csv", FIXTURES / "summary.csv"
CORPUS = ROOT.parent / "shared" / "corpus" / "makers" / "nvprof"
TOTALS = ("kind", "name", "count", "total_ns", "min_ns", "max_ns")


def frame(path: Path, name: str) -> pl.DataFrame:
    with tk.load(path) as trace:
        return pl.DataFrame(trace[name]).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def save(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_activities_are_those_of_the_cells() -> None:
    rows = list(csv.reader(TRACES.read_text().splitlines()[5:11]))
    expected = [
        (
            round(float(row[0]) * 1_000_000),
            round(float(row[0]) * 1_000_000) + round(float(row[1]) * 1000),
            int(row[15][-2]),
            int(row[17]),
            row[18],
            int(row[2]),
            round(float(row[9]) * 1024),
        )
        for row in rows
        if row[2]
    ]
    columns = ("start_ns", "end_ns", "device_id", "stream_id", "name", "grid_x", "static_shared_memory_bytes")
    assert frame(TRACES, "kernels").select(columns).rows() == expected
    assert frame(TRACES, "kernels")["short_name"].to_list() == ["gemm", "reduce"]
    copies = frame(TRACES, "memcpys").select("copy_kind", "src_memory_kind", "bytes", "correlation_id")
    assert copies.rows() == [
        ("Host-to-Device", "Pageable", 131_072, 316),
        ("Peer-to-Peer", "Device", 1 << 20, 330),
        ("Unified Host-to-Device", None, 65_536, None),
    ]
    assert frame(TRACES, "memsets").select("memory_kind", "end_ns").rows() == [("Device", 100_001_888)]
    assert frame(TRACES, "devices").rows()[0][:2] == (0, "Tesla V100-SXM2-16GB")


def test_calls_launch_the_activities_of_their_process() -> None:
    calls = frame(TRACES, "api_calls")
    assert calls["name"].to_list() == [
        "cudaMemset",
        "cudaMemcpy",
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "cuMemcpyPeer",
    ]
    assert calls["api"].to_list() == ["CUDA runtime"] * 4 + ["CUDA driver"]
    with tk.load(TRACES) as trace:
        kernels = trace.correlate().frame("kernels").collect()
    assert kernels["api_call_id"].to_list() == [3, 4]
    assert kernels["process_id"].to_list() == [4242, 4242]


def test_a_summary_has_totals() -> None:
    assert frame(SUMMARY, "activity_totals").select(TOTALS).rows() == [
        ("activity", "void gemm<float, int=4>(float*, float const *, int)", 3, 6_000_000, 1_900_500, 2_100_250),
        ("activity", "[CUDA memcpy HtoD]", 8, 4_000_000, 450_000, 650_000),
        ("api_call", "cudaLaunchKernel", 11, 12_345_678, 1_500, 9_000_000),
    ]
    with tk.load(SUMMARY) as trace:
        assert tk.stats(trace, "activity_total_sum")["Time (%)"].to_list() == [60.0, 40.0, 100.0]
        assert "No timeline was recorded" in trace.why().sentence


def test_older_forms_are_read(tmp_path: Path) -> None:
    path = save(
        tmp_path / "old.csv",
        "==7== Profiling result:",
        "Time(%),Time,Calls,Avg,Min,Max,Name",
        "50.00%,1.5ms,2,750us,700.5us,800us,f(int, float)",
        "",
        "==8== API calls:",
        "Time(%),Time,Calls,Avg,Min,Max,Name",
        "100.00%,2s,1,2s,2s,2s,cudaFree",
        '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Device","Context","Stream","Name"',
        "s,ns,,,,,,,,,",
        '1.5,20,1,1,1,32,1,"K40","1","7","f(int) [12]"',
        '1.6,20,,,,,,"K40","1","7","[Unified Memory CPU page faults]"',
    )
    assert frame(path, "activity_totals").select(TOTALS).rows() == [
        ("activity", "f(int, float)", 2, 1_500_000, 700_500, 800_000),
        ("api_call", "cudaFree", 1, 2_000_000_000, 2_000_000_000, 2_000_000_000),
    ]
    kernel = frame(path, "kernels").row(0, named=True)
    assert (kernel["start_ns"], kernel["name"], kernel["correlation_id"]) == (1_500_000_000, "f(int)", 12)
    assert (kernel["process_id"], kernel["device_id"]) == (8, 0)
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"other activities": 1}


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['"Start","Duration","Name"', "ms,us,", '1.0,x,"f"'], "'x' in the column Duration"),
        (['"Start","Duration","Name"', "ms,us,", '1e300,1,"f"'], "Start"),
        (['"Start","Duration","Name"', '1.0 parsec,1us,"f"'], "parsec"),
        (['"Start","Duration","Name","Name"', '1.0,1,"f",1'], "repeats a column"),
        (['"Start","Duration","Name"'] * 999, "tables"),
    ],
)
def test_invalid_rows_are_errors(lines: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError, match=text):
        tk.load(save(tmp_path / "bad.csv", *lines))


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    assert frame(save(tmp_path / "a.csv", '"Start","Duration","Name"'), "api_calls").is_empty()
    assert frame(save(tmp_path / "b.csv", '"Start","Duration","Name"', "ms,us,"), "api_calls").is_empty()


def test_output_that_is_not_csv_is_named(tmp_path: Path) -> None:
    path = save(
        tmp_path / "log.txt", "==5== NVPROF is profiling process 5", "==5== Profiling result:", "Time(%)      Time"
    )
    with pytest.raises(UnknownFormatError, match="output of nvprof without --csv") as error:
        tk.load(path)
    assert "nvprof --csv" in str(error.value)


@pytest.mark.filterwarnings("ignore:.*so its name may be truncated")
def test_the_public_summary_is_read() -> None:
    path = CORPUS / "jazzTheJackRabbit__epic-flow-cuda" / "nvprof.csv"
    if not path.exists():
        pytest.skip("not beside this checkout")
    totals = frame(path, "activity_totals")
    assert totals["total_ns"].to_list() == [542_360_000, 237_430_000, 237_260_000, 117_720_000]
    assert totals["count"].to_list() == [45, 150, 150, 10]
    assert totals["name"].str.count_matches(",").to_list() == [0, 12, 12, 0]


HEADER, UNITS, *_ = TRACES.read_text().splitlines()[3:]
KERNEL = '1.5,20,80,2,1,256,1,1,32,1.5,512,,,,,"Tesla V100 (0)","1","7","f<int, 4>(float*)",12'


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_other_encodings_and_line_ends(mark: str, line_end: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(TRACES.read_text().replace("\n", line_end).encode(mark))
    for name in ("kernels", "memcpys", "memsets", "api_calls", "devices"):
        assert frame(path, name).equals(frame(TRACES, name))


def test_rows_after_empty_lines_are_read_and_other_lines_are_counted(tmp_path: Path) -> None:
    later = KERNEL.replace("1.5,20", "2.5,30")
    lines = ["==7== Profiling result:", HEADER, UNITS, KERNEL, "", later, "==7== Event result:", "a,b", "", "1,2"]
    path = save(tmp_path / "a.csv", *lines)
    assert frame(path, "kernels")["start_ns"].to_list() == [1_500_000, 2_500_000]
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"lines outside of tables": 2}


def test_the_kind_of_a_summary_is_that_of_its_own_title(tmp_path: Path) -> None:
    header = "Time(%),Time,Calls,Avg,Min,Max,Name"
    titles = ("==1== Profiling result:", "==1== API calls:", "==2== Profiling result:")
    lines = [line for title in titles for line in (title, header, "%,ms,,us,us,us,", "9,1,2,3,4,5,f")]
    kinds = frame(save(tmp_path / "a.csv", *lines), "activity_totals")["kind"].to_list()
    assert kinds == ["activity", "api_call", "activity"]


@pytest.mark.parametrize("place", [4, 5, 11, 18])
def test_long_tables_are_read_in_parts(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part may consist of a single line, with or without quotes."""
    monkeypatch.setattr("tracekit.readers.nvprof_csv.capture._CHUNK_BYTES", 200 * place)
    rows = [f'{n},20,1,1,1,32,1,"K40 (0)","1","7","f<{n}, 4>(int, int) [{n}]"' for n in range(place)]
    header = '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Device","Context","Stream","Name"'
    for quote in ('"', ""):
        lines = [line.replace('"', quote) for line in (header, "s,ns,,,,,,,,,", *rows)]
        kernels = frame(save(tmp_path / "a.csv", *lines), "kernels")
        assert kernels["name"].to_list() == [f"f<{n}, 4>(int, int)" for n in range(place)]
        assert kernels["correlation_id"].to_list() == [*range(place)]


@pytest.mark.parametrize(
    ("units", "row", "text"),
    [
        (None, KERNEL, "'1.5' in the column Start"),
        (UNITS.replace("ms", "KB"), KERNEL, "Start"),
        (UNITS.replace("ms", ""), KERNEL, "Start"),
        (UNITS.replace("KB", ""), KERNEL, "Static SMem"),
        (UNITS.replace("KB", "ms"), KERNEL, "Static SMem"),
        (UNITS, KERNEL.replace(",80,", ",80.5,"), "Grid X"),
        (UNITS, KERNEL.replace(",80,", ",-80,"), "Grid X"),
        (UNITS, KERNEL.replace(",80,", ",99999999999,"), "Grid X"),
        (UNITS, KERNEL.replace("1.5,20", "nan,20"), "Start"),
        (UNITS, KERNEL.replace("1.5,20", "1.5,inf"), "Duration"),
        (UNITS, KERNEL.replace("1.5,20", '"1,5",20'), "'1,5' in the column Start"),
        (UNITS, "Hello", "row cannot be read"),
    ],
)
def test_numbers_without_a_unit_of_their_kind_are_errors(
    units: str | None, row: str, text: str, tmp_path: Path
) -> None:
    path = save(tmp_path / "bad.csv", HEADER, *filter(None, [units]), row)
    with pytest.raises(CorruptTraceError, match=text), tk.load(path) as trace:
        trace["kernels"]


def test_units_differ_by_column_and_table(tmp_path: Path) -> None:
    tables = (("s,ns", "1.000000001,7"), ("us,ms", "2,0.001"), ("ns,s", "3,0.000000001"), ("ms,us", "4e-3,1E0"))
    lines = [
        line for start, row in tables for line in (HEADER, UNITS.replace("ms,us", start), KERNEL.replace("1.5,20", row))
    ]
    kernels = frame(save(tmp_path / "a.csv", *lines), "kernels")
    spans = [(3, 4), (2000, 3000), (4000, 5000), (1_000_000_001, 1_000_000_008)]
    assert kernels.select("start_ns", "end_ns").rows() == spans


def test_the_last_row_of_a_summary_may_be_truncated(tmp_path: Path) -> None:
    """A quote ends it. Without quotes, its name can end anywhere."""
    path, lines = (
        tmp_path / "a.csv",
        ["==1== Profiling result:", "Time(%),Time,Calls,Avg,Min,Max,Name", "%,ms,,us,us,us,"],
    )
    path.write_text("\n".join([*lines, "9,1,2,3,4,5,void f(i"]))
    with pytest.warns(TracekitWarning, match="the last row does not end with a line break, so its name may be"):
        assert frame(path, "activity_totals")["name"].to_list() == ["void f(i"]
    path.write_bytes(SUMMARY.read_bytes().rstrip())
    assert frame(path, "activity_totals").equals(frame(SUMMARY, "activity_totals"))


@pytest.mark.parametrize("path", [TRACES, SUMMARY])
def test_zeros_are_damage(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a.csv"
    copy.write_bytes(path.read_bytes() + bytes(512) + b"\n")
    with pytest.raises(CorruptTraceError, match="contains zeros, as after an interrupted copy"):
        tk.load(copy)


def test_calls_without_times_are_counted(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.csv", "==7== Profiling result:", '"Start","Duration","Name"', "ms,us,", ',2,"f"', '1,2,"g"'
    )
    assert frame(path, "api_calls")["name"].to_list() == ["g"]
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"API calls without times": 1}
