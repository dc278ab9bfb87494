"""What a CSV of Nsight Compute may cost is bounded by its size, whatever it repeats."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests import fork_server
from tracekit.core import ncu
from tracekit.core.ncu import join
from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.ncu_csv import frame, rows

ROOT = Path(__file__).parents[2]
SIZE = 2_000_000
SECONDS = 40
MIB, FIXED_MIB, WIDE_MIB = 1 << 20, 100, 600
BYTES_PER_BYTE = 64
DETAILS = (
    b'"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    b'"CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)
ROW = b'"0","1","p","h","k","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","S","m","ns","1"\n'
RAW = DETAILS.partition(b',"Section Name"')[0] + b',"a","b"\n'
UNITS = b'""' + 10 * b',""' + b',"ns","byte"\n'
RAW_ROW = ROW.partition(b',"S"')[0] + b',"1","2"\n'
SUMMARY = (
    b'"Process ID","Process Name","Kernel Name","Invocations","Metric Name","Metric Unit",'
    b'"Minimum","Maximum","Average"\n'
)
PUSH_POP = b'"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"'
NESTED = b'"ID","Process ID","Kernel Name",' + PUSH_POP + b',"Metric Name","Metric Value"\n"0","1","k","1 ""'


def many(text: bytes) -> bytes:
    """A text again and again."""
    return text * (SIZE // len(text))


def numbered(row: bytes) -> bytes:
    """A row again and again, each with another number."""
    return b"".join(row.replace(b"#", b"%d" % n) for n in range(SIZE // (len(row) + 4)))


def widened(line: bytes, cell: bytes, columns: int) -> bytes:
    """A line with more cells."""
    return line[:-1] + cell * columns + b"\n"


FILES = {
    "quotes": DETAILS + ROW + many(b'"'),
    "lines of a quote": DETAILS + many(b'"\n'),
    "lines of two quotes": DETAILS + many(b'""\n'),
    "cells": DETAILS + many(b'","'),
    "blank lines": DETAILS + many(b"\n"),
    "blank lines of a raw page": RAW + UNITS + many(b"\n"),
    "blank lines of Windows": DETAILS + many(b"\r\n"),
    "lines of a blank": DETAILS + many(b" \n"),
    "returns": DETAILS + many(b"\r"),
    "zeros": DETAILS + many(b"\0"),
    "lines of a zero": DETAILS + many(b"\0\n"),
    "commas": RAW + UNITS + b'"0"' + many(b","),
    "a cell of newlines": DETAILS + ROW.replace(b'"k"', b'"%b"' % many(b"\n")),
    "a long cell": DETAILS + ROW.replace(b'"1"\n', b'"%b"\n' % many(b"9")),
    "a cell of quotes": DETAILS + ROW.replace(b'"k"', b'"%b"' % many(b'a"')),
    "a row of many cells": RAW + UNITS + b'"0"' + many(b',"1"'),
    "rows that are cut": DETAILS + many(ROW[:40] + b"\n"),
    "rows that do not end": DETAILS + many(b'"0","1","p\n'),
    "remarks": many(b"==PROF== \n") + DETAILS + ROW,
    "print": DETAILS + many(b"x\n"),
    "UTF-16": b"\xff\xfe" + (DETAILS + many(ROW)).decode().encode("utf-16-le")[:SIZE],
    "not UTF-8": b"\xef\xbb\xbf" + DETAILS + many(ROW.replace(b'"k"', b'"\xff\x80"')),
    "tables": many(DETAILS + ROW),
    "raw tables": many(RAW + UNITS + RAW_ROW),
    "tables in turn": many(DETAILS + ROW + RAW + UNITS + RAW_ROW),
    "metrics": DETAILS + numbered(ROW.replace(b'"m"', b'"m#"')),
    "launches": DETAILS + numbered(b'"#"' + ROW.removeprefix(b'"0"')),
    "launches of a metric each": DETAILS + numbered(b'"#"' + ROW.removeprefix(b'"0"').replace(b'"m"', b'"m#"')),
    "groups": SUMMARY + numbered(b'"1","p","k#","2","m","ns","1","2","1"\n'),
    "ranges": NESTED + many(b"<default domain>:a:none:none:none:none:none:none,") + b'""","m","1"\n',
    "a long session": b'"Session Attribute","Value"\n"a","%b"\n' % many(b'"'),
    "attributes": b'"Session Attribute","Value"\n' + numbered(b'"a#","b"\n'),
    "columns": RAW[:-1] + many(b',"a"') + b"\n" + 3 * RAW_ROW,
    "columns in turn": many(widened(RAW, b',"a"', 60_000) + RAW_ROW + widened(RAW, b',"b"', 60_000) + RAW_ROW),
    "columns and few cells": widened(RAW, b',"a"', 60_000) + RAW_ROW * 40_000,
    "columns of short rows": DETAILS[:-1] + 300 * b',"a"' + b"\n" + many(ROW),
    "as many columns as may be": widened(RAW, b',"a"', 60_000) + many(widened(UNITS, b',""', 60_000)),
}
READ = """
import json, re, resource, sys, time, warnings
from pathlib import Path
import tracekit as tk

warnings.simplefilter("ignore")

def held(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def read(path):
    with tk.load(path, "ncu-csv") as trace:
        for name in trace.tables:
            trace[name].validate(full=True)
        trace.wide()

read("fixtures/ncu/ncu_details.csv")
read("fixtures/ncu/ncu_nvtx_raw.csv")
resource.setrlimit(resource.RLIMIT_DATA, (held("VmData") + (2 << 30), resource.RLIM_INFINITY))
used = int(time.process_time())
resource.setrlimit(resource.RLIMIT_CPU, (used + int(sys.argv[2]), used + int(sys.argv[2]) + 5))
Path("/proc/self/clear_refs").write_text("5")
before, said = held("VmRSS"), ""
try:
    read(sys.argv[1])
except tk.TracekitError as e:
    said = type(e).__name__ + ": " + str(e)
print(json.dumps([held("VmHWM") - before, said]))
"""


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system does not tell the memory held")
@pytest.mark.parametrize("name", FILES)
def test_cost_is_bounded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(FILES[name])
    command = [sys.executable, "-c", READ, str(path), str(SECONDS)]
    done = fork_server.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    held, said = json.loads(done.stdout)
    fixed = WIDE_MIB if "columns" in name else FIXED_MIB
    assert held <= fixed * MIB + BYTES_PER_BYTE * len(FILES[name])
    assert "\nHint: " in said or not said


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "columns",
            "the header of the raw page has more than 65536 columns, tracekit's limit\nHint: ",
        ),
        (
            "columns of short rows",
            "the header of the details page has 315 columns, but its rows have far fewer\nHint: ",
        ),
        ("tables in turn", "the columns change too often: 5"),
    ],
)
def test_what_is_beyond_the_bound_is_damage(name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(FILES[name])
    with pytest.raises(CorruptTraceError) as raised:
        tk.load(path, "ncu-csv")
    assert str(raised.value).startswith(f"{path}: {said}")


def test_a_session_with_a_long_value_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(b'"Session Attribute","Value"\n"Arguments","%b"\n"CUDA Version","12.4"\n' % (200_000 * b"x"))
    with tk.load(path, "ncu-csv") as trace:
        assert trace.info["cuda_version"] == "12.4"


def test_tables_with_the_same_columns_are_read_together_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.csv"
    units = (UNITS, UNITS.replace(b"ns", b"us"), UNITS.replace(b"ns", b"msecond"))
    parts = [RAW + units[n % 3] + RAW_ROW * (n % 4) + RAW_ROW.replace(b'"0"', b'"%d"' % n, 1) for n in range(20)]
    path.write_bytes(b"==PROF== x\n".join([*parts, DETAILS + ROW, DETAILS, DETAILS + ROW + ROW[:30] + b"\n", *parts]))
    batches: list[int] = []
    read = rows.RowCollector._convert_and_collect_batch
    monkeypatch.setattr(
        rows.RowCollector,
        "_convert_and_collect_batch",
        lambda self, p, t, n: (batches.append(len(p)), read(self, p, t, n)),
    )
    with pytest.warns(tk.TracekitWarning, match="1 row does not match the header of its table and was skipped"):
        together = tk.load(path, "ncu-csv")
    assert batches == [20, 2, 20]
    monkeypatch.setattr(rows, "BATCH_BYTES", 1)
    with pytest.warns(tk.TracekitWarning, match="1 row does not match the header of its table and was skipped"):
        alone = tk.load(path, "ncu-csv")
    assert len(batches) == 3 + 42
    assert together.count("ncu_launches") > 40
    assert [name for name in alone.tables if not together[name].equals(alone[name])] == []


def test_rows_that_are_too_short_are_left_out_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(DETAILS + ROW + b'"1","2"\n' * 3 + b'"x"\n' + ROW + b'"2"\n')
    with pytest.warns(tk.TracekitWarning, match="4 rows do not match the header of their table"):
        expected = tk.load(path, "ncu-csv")
    monkeypatch.setattr(rows, "FREE_CELLS", 0)
    monkeypatch.setattr(rows, "CELLS_PER_BYTE", 0.2)
    with pytest.warns(tk.TracekitWarning, match="4 rows do not match the header of their table"):
        cut = tk.load(path, "ncu-csv")
    assert expected.count("ncu_metrics") == cut.count("ncu_metrics") == 2


def test_a_header_may_have_many_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MAX_COLUMNS", 13)
    path = tmp_path / "file.csv"
    path.write_bytes(RAW + UNITS + RAW_ROW)
    assert tk.load(path, "ncu-csv").count("ncu_metrics") == 2
    path.write_bytes(RAW.replace(b'"b"', b'"b","c"') + UNITS + RAW_ROW)
    with pytest.raises(CorruptTraceError, match="the header of the raw page has more than 13 columns"):
        tk.load(path, "ncu-csv")


def frames(launches: int, columns: int) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """So many launches with one value each, all in different columns as far as there are some."""
    known = pl.LazyFrame({"launch_id": range(launches)})
    own = {"metric": [f"m{n % columns}" for n in range(launches)], "label": None, "section": None, "text": None}
    values = {
        "launch_id": range(launches),
        "value": [float(n) for n in range(launches)],
        "resolution": [1.0] * launches,
    }
    types = dict.fromkeys(("metric", "label", "section", "text"), pl.String)
    return known, pl.LazyFrame({**values, **own}, schema_overrides=types)


@pytest.mark.core
def test_a_wide_table_is_bounded_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "FREE_CELLS", 100)
    monkeypatch.setattr(join, "CELLS_PER_VALUE", 2)
    assert ncu.add_metric_columns(*frames(11, 11)).shape == (11, 12)
    assert ncu.add_metric_columns(*frames(1000, 2)).shape == (1000, 3)
    said = r"12 launches with 12 metrics need 144 cells for 12 values\nHint: read the table ncu_metrics"
    with pytest.raises(TracekitError, match=said):
        ncu.add_metric_columns(*frames(12, 12))
