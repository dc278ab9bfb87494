"""What profiles of nvprof hold of people and machines is gone from a copy, also where SQL or XML hides it."""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import re
import sqlite3
from pathlib import Path

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.errors import CorruptTraceError, TracekitError

ENVIRONMENT = """INSERT INTO StringTable (value)
    VALUES ('PATH=/bin\nHOME=/home/zqkate\nUSER=zqkate\nHOSTNAME=zqhost7\n')"""
UUID = "12345678-1234-1234-1234-123456789abc"


def database(folder: Path, *statements: str, name: str = "made.nvprof") -> Path:
    path = folder / name
    path.write_bytes((FIXTURES / "nvprof" / "program.nvprof").read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def session(folder: Path, xml: str, *databases: Path) -> Path:
    packed = [base64.b64encode(gzip.compress(path.read_bytes())).decode() for path in databases]
    elements = [f"<pdm><split>{text}</split></pdm>" for text in packed]
    path = folder / "made.nvvp"
    path.write_text(
        f'<?xml version="1.0"?>\n<session version="2">{xml}<timelinepdm>\n{elements[0]}\n</timelinepdm>'
        f"<analysispdm>{''.join(elements[1:])}</analysispdm></session>",
        "utf-8",
    )
    return path


def contents(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".nvvp":
        return data
    profiles = re.findall(rb"<pdm>(.*?)</pdm>", data, re.DOTALL)
    databases = (b"".join(map(base64.b64decode, re.findall(rb"<split>([^<]*)", profile))) for profile in profiles)
    return data + html.unescape(data.decode()).encode() + b"".join(map(gzip.decompress, databases))


def check(path: Path, private: tuple[str, ...], public: tuple[str, ...] = ()) -> Path:
    """Redact a file, and check that private texts are gone, public ones stay, and a second copy is equal."""
    out, twice = (path.with_name(f"{name}{path.suffix}") for name in ("copy", "twice"))
    assert [text for text in private if text.encode() not in contents(path)] == []
    assert tk.redact(path, out) == tk.unredacted(path)
    assert [text for text in private if text.encode() in contents(out)] == []
    assert [text for text in public if text.encode() not in contents(out)] == []
    assert not any(tk.redact(out, twice).values())
    assert twice.read_bytes() == out.read_bytes()
    return out


def test_names_in_sql_are_overwritten_and_the_database_stays_valid(tmp_path: Path) -> None:
    path = database(
        tmp_path,
        ENVIRONMENT,
        "CREATE VIEW made AS SELECT 'by zqkate on zqhost7' AS author, * FROM StringTable",
        "CREATE TABLE notes (a TEXT DEFAULT 'zqkate@example.org', zqkate INT /* zqkate was here */)",
        f'CREATE TABLE "run_{UUID}" (a PRIMARY KEY, b) WITHOUT ROWID',
        f'CREATE INDEX "of_{UUID}" ON "run_{UUID}" (b)',
        f"""INSERT INTO "run_{UUID}" VALUES ('zqkate', 'loop of zqkate')""",
        "ANALYZE",
    )
    out = check(path, ("zqhost7", "zqkate@", "by zqkate", "zqkate was", "loop of zqkate", UUID), ("zqkate INT",))
    with contextlib.closing(sqlite3.connect(out)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT author FROM made LIMIT 1").fetchone() == ("by xxxxxx on xxxxxxx",)
        ((table,),) = db.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'run%'").fetchall()
        assert db.execute("SELECT count(*) FROM sqlite_stat1 WHERE tbl = ?", (table,)).fetchone()[0] > 0
        assert db.execute(f'SELECT * FROM "{table}"').fetchall() == [("xxxxxx", "loop of xxxxxx")]


def test_values_of_a_unique_column_stay_different(tmp_path: Path) -> None:
    values = ("/home/zqlena/a.cu", "/home/zqmona/a.cu", "PATH=/y\nHOME=/home/zqnora\nUSER=zqnora\n")
    path = database(tmp_path, ENVIRONMENT, *(f"INSERT INTO StringTable (value) VALUES ('{v}')" for v in values))
    out = check(path, ("zqlena", "zqmona", "zqnora", "zqkate"))
    with contextlib.closing(sqlite3.connect(out)) as db:
        found = [v for (v,) in db.execute("SELECT value FROM StringTable ORDER BY _id_ DESC LIMIT 4")]
    assert found == [" (2)", "/home/xxxxxx/a.cu (2)", "/home/xxxxxx/a.cu", ""]


def test_ids_of_devices_and_paths_of_source_files(tmp_path: Path) -> None:
    blob = b"ABCDEFGHIJKLMNOP".hex()
    path = database(
        tmp_path,
        f"UPDATE CUPTI_ACTIVITY_KIND_DEVICE SET uuid = x'{blob}'",
        "INSERT INTO StringTable (_id_, value) VALUES (9001, '/zqgroup/zqproject/main.cpp'), (9002, 'zqfunction')",
        "UPDATE CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH SET srcFile = 9001, funcName = 9002",
        "INSERT INTO CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH (srcFile, funcName) VALUES (9001, 9002), (9002, 9002)",
    )
    check(path, ("ABCDEFGH", "zqgroup", "zqproject"), ("main.cpp", "zqfunction"))


XML = (
    '<!DOCTYPE session [<!ENTITY a "zqolga at /home/zqolga/x">]>'
    """<executable file="/opt/zqprogram" cwd='/home/zqpaul' args="--key zqargument &lt;"><envs>"""
    '<env name="USER" value="zqolga"/><env name="JOB" value="zqvalue1"/></envs></executable>'
    '<a b="zq&#111;lga &#x7a;qpaul" password="zq&quot;password"/><!-- zqolga > zqpaul --><c><![CDATA[zqolga <x>]]></c>'
    'text of zqolga &amp; co<timeline pathname="/data/zqfalcon/a.cu" kind="gpu"/>'
)


@pytest.mark.parametrize("count", [1, 2])
def test_the_xml_of_a_session_is_redacted_with_its_databases(count: int, tmp_path: Path) -> None:
    loop = "INSERT INTO StringTable (value) VALUES ('loop of zqolga and zqkate')"
    databases = [database(tmp_path, loop, ENVIRONMENT, name=f"{i}.db") for i in range(count)]
    if count > 1:
        databases[0] = database(tmp_path, loop, name="0.db")  # only the second one tells the name
    private = ("zqolga", "zqpaul", "zqprogram", "zqargument", "zqvalue1", 'zq"password', "zqfalcon", "zqkate")
    out = check(session(tmp_path, XML, *databases), private, ("text of xxxxxx &amp; co", 'kind="gpu"', "a.cu"))
    if count == 1:
        with tk.load(out) as trace:
            assert trace["kernels"].num_rows == tk.load(FIXTURES / "nvprof" / "program.nvprof")["kernels"].num_rows


def test_damaged_sessions_give_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "cut.nvvp"
    path.write_bytes((FIXTURES / "nvprof" / "session.nvvp").read_bytes().replace(b"</session>", b""))
    with pytest.raises(CorruptTraceError, match="the session is truncated"):
        tk.redact(path, tmp_path / "out")
    damaged = database(tmp_path, "CREATE TRIGGER t AFTER INSERT ON StringTable BEGIN SELECT 1; END")
    with pytest.raises(TracekitError, match=r"made.nvvp: the packed profile: the database has SQL triggers"):
        tk.redact(session(tmp_path, "", damaged), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_output_and_commands_between_the_tables_of_csv_are_emptied(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    path.write_text(
        'zqoutput of the program\n==7== NVPROF is profiling process 7, command: ./a --key zqargument\nzq "more"\n'
        "==7== Profiling application: ./a --key zqargument\n==7== Profiling result:\n"
        '"Start","Duration","Grid X","Grid Y","Grid Z","Device","Context","Stream","Name"\nms,us,,,,,,,\n'
        '1.0,2.0,1,1,1,"V100 (0)",1,7,"gemm<int, /home/zqkate/a.cu>(""/home/zqlena/b"")"\n'
        "1.0,2.0,1,1,1,V100 (0),1,7,f<int, /home/zqmona/b, 3>\n\nzqtail\n==7== Generated result file: /a/zqfile\n",
        "utf-8",
    )
    private = ("zqoutput", "zqargument", "more", "zqtail", "zqfile", "zqkate", "zqlena", "zqmona")
    public = ("gemm<int, ", "NVPROF is profiling process 7", "Profiling result", ",f<int, /home/xxxxxx/b, 3>\n")
    check(path, private, public)
