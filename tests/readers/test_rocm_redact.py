"""What profiles of AMD GPUs hold of people and machines is gone from a copy: of databases, JSON and CSV."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.errors import ExportError, TracekitError
from tracekit.readers.redaction.csv_text import locate_cells, read_rows

ROCM = FIXTURES / "rocm"
NODE = 9_876_543_210_123
HEADER = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
GUID = "00001092_4a6f_7a6f_9b1c_d2e3f4a5b6c7"


def check(path: Path, private: tuple[str, ...], public: tuple[str, ...] = ()) -> Path:
    """Redact a file, and check that private texts are gone, public ones stay, and a second copy is equal."""
    out, twice = (path.with_name(f"{name}_{path.name}") for name in ("copy", "twice"))
    assert [text for text in private if text.encode() not in path.read_bytes()] == []
    assert tk.redact(path, out) == tk.unredacted(path)
    assert [text for text in private if text.encode() in out.read_bytes()] == []
    assert [text for text in public if text.encode() not in out.read_bytes()] == []
    assert not any(tk.redact(out, twice).values())
    assert twice.read_bytes() == out.read_bytes()
    return out


def test_ids_of_nodes_and_processes_become_others_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "made.db"
    path.write_bytes((ROCM / "train_results.db").read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in tables:
            columns = [column for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            if "nid" in columns:
                db.execute(f'UPDATE "{table}" SET nid = {NODE}')
        node, agents = (f"rocpd_info_{kind}_{GUID}" for kind in ("node", "agent"))
        db.execute(f'UPDATE "{node}" SET id = {NODE}, hash = {NODE + 1}')
        db.execute(f"""UPDATE "{agents}" SET extdata = '{{"uuid": {{"bytes": {{"a": 171}}}}, "b": 5}}'""")
        db.execute(f'CREATE VIEW rocpd_string AS SELECT * FROM "rocpd_string_{GUID}"')
        db.commit()
    out = check(path, (GUID, "171"), ('"b": 5',))
    with contextlib.closing(sqlite3.connect(out)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        (node,) = (name for name in names if "info_node" in name)
        assert db.execute(f'SELECT id, hash FROM "{node}"').fetchall() == [(1, 1)]
        used = [
            name
            for name in names
            if db.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = 'nid'", (name,)).fetchone()
        ]
        assert {n for name in used for (n,) in db.execute(f'SELECT DISTINCT nid FROM "{name}"')} == {1}
        assert db.execute("SELECT count(*) FROM rocpd_string").fetchone()[0] > 0
        assert len({name[-36:] for name in names}) == 1
    with tk.load(path) as before, tk.load(out) as after:
        for table in before.tables:
            assert before[table].num_rows == after[table].num_rows
        assert before["kernels"].equals(after["kernels"])


def test_json_of_rocprofv3(tmp_path: Path) -> None:
    document = json.loads((ROCM / "train_results.json").read_text("utf-8"))
    (process,) = document["rocprofiler-sdk-tool"]
    process["metadata"]["node"] |= {
        "id": NODE,
        "hash": NODE + 1,
        "machine_id": "0123456789abcdef" * 2,
        "hostname": "zqnode7",
    }
    process["metadata"] |= {"config": {"output_path": "/data/zqproject/out", "output_file": "zqnode7_run"}}
    process["agents"][1] |= {"uuid": {"bytes": {"value0": 77171717, "value1": 205}}, "hive_id": 11259375123}
    path = tmp_path / "made_results.json"
    path.write_text(json.dumps(document), "utf-8")
    private = (str(NODE), str(NODE + 1), "0123456789abcdef", "zqnode7", "zqproject", "77171717", "11259375123")
    out = check(path, private, ("output_path", "hive_id"))
    with tk.load(path) as before, tk.load(out) as after:
        for table in before.tables:
            assert before[table].equals(after[table]), table


def made_csv(folder: Path, more: str, *rows: tuple[str, str], line: str = "\r\n") -> Path:
    path = folder / "zqhost5_marker_api_trace.csv"
    cells = [f"M,{text},1,2,3,4,5{rest}{line}" for text, rest in rows]
    path.write_bytes(b"\xef\xbb\xbf" + "".join((HEADER + more + line, *cells)).encode())
    return path


@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_names_of_columns_tell_what_is_private(line: str, tmp_path: Path) -> None:
    rows = (
        ("gemm", ',"zq password 1","zqhost7","zqbobby","0123456789abcdef0123456789abcdef"'),
        ('"by zqbobby\nat zqhost7"', ",zqpassword2,zqhost7,zqbobby,1"),
    )
    path = made_csv(tmp_path, ',"password","hostname",user,Uuid', *rows, line=line)
    out = check(path, ("zq password", "zqpassword2", "zqhost7", "zqbobby", "0123456789abcdef"), ("gemm",))
    with tk.load(out) as trace:
        assert sorted(trace["nvtx_ranges"]["name"].to_pylist()) == ["by xxxxxxx\nat xxxxxxx", "gemm"]


def test_quotes_and_line_breaks_in_cells(tmp_path: Path) -> None:
    path = made_csv(
        tmp_path,
        "",
        ('"{""password"": ""zq two words"", ""env"": {""PATH"": ""/x"", ""HOME"": ""/home/zqdora""}}"', ""),
        ('say "zq" 6" at /home/zqerik/x', ""),
        ('"PATH=/bin\nHOME=/home/zqhans\nTOKEN=zqtoken12345\n"', ""),
        ('"/home/zqfred/x', ""),
    )
    check(path, ("zq two", "zqdora", "zqerik", "zqhans", "zqtoken12345", "zqfred"))


def test_a_folder_gives_a_folder_of_its_csv_files(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    made_csv(folder, "", ("HOSTNAME=zqhost5 PATH=/x USER=zqivan", ""))
    (folder / "4242_kernel_trace.csv").write_bytes((ROCM / "csv" / "4242_kernel_trace.csv").read_bytes())
    (folder / "notes.txt").write_text("of zqivan")
    counts = tk.redact(folder, out := tmp_path / "out")
    assert tk.unredacted(folder) == counts
    assert sorted(path.name for path in out.iterdir()) == ["4242_kernel_trace.csv", "xxxxxxx_marker_api_trace.csv"]
    assert (out / "4242_kernel_trace.csv").read_bytes() == (folder / "4242_kernel_trace.csv").read_bytes()
    assert b"zq" not in (out / "xxxxxxx_marker_api_trace.csv").read_bytes()
    with pytest.raises(ExportError, match="exists"):
        tk.redact(folder, out)
    with pytest.raises(ExportError):
        tk.redact(folder, out, overwrite=True)
    assert len(list(out.iterdir())) == 2
    (folder / "zqhost6_marker_api_trace.csv").write_text(f"{HEADER}\nM,HOSTNAME=zqhost6 PATH=/x,1,2,3,4,5\n")
    with pytest.raises(TracekitError, match=r"two files have the same name after redaction\nHint: rename one"):
        tk.redact(folder, tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ('a,"b,""c""\nd"\r\n,e', ["a", '"b,""c""\nd"', "", "", "e"]),
        ('a"b,"c"d,\n"e', ['a"b', '"c"d', "", '"e']),
        ("", [""]),
        ('""', ['""']),
    ],
)
def test_cells_are_located(text: str, cells: list[str]) -> None:
    located = locate_cells(text.encode())
    assert [text[start:stop] for start, stop in zip(located.starts, located.ends, strict=True)] == cells


def test_sections_end_after_rows() -> None:
    blocks = iter([b'a,"b\n', b'c"\nd\n"', b'e\nf"\n', b"g", b""])
    assert list(read_rows(lambda: next(blocks))) == [b'a,"b\nc"\nd\n', b'"e\nf"\n', b"g"]
