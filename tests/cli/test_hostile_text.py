"""Text from captures does nothing in a terminal, whatever verb prints it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import unicodedata
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

ROOT = Path(__file__).parents[2]
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\x85\u202etxt.exe\u2066\u200f\u2028\ufeff=HYPERLINK(1)\ttab\rreturn"
FORMULA = "=HYPERLINK(1)"
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
VERBS = [
    ["info", "IN"],
    ["tables", "IN"],
    *(["rows", "IN", table, "-n", "3"] for table in ("kernels", "nvtx_ranges", "devices", "capture_info", "threads")),
    ["rows", "IN", "kernels", "--correlated", "-n", "3"],
    ["stats", "IN", "-r", "cuda_gpu_kern_sum,nvtx_sum,cuda_gpu_trace", "-q"],
    ["stats", "IN", "-r", "advise", "-q"],
    ["stats", "IN", "-r", "op-type", "-q"],
]


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export in which every string and every fact of the machine is hostile."""
    path = tmp_path_factory.mktemp("evil") / "evil.sqlite"
    shutil.copy(ROOT / "fixtures" / "train_amp.sqlite", path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE StringIds SET value = ? || value WHERE id > 0", (FORMULA + EVIL,))
        db.execute("UPDATE NVTX_EVENTS SET text = ? || coalesce(text, '')", (FORMULA + EVIL,))
        for table, column in (("TARGET_INFO_GPU", "name"), ("META_DATA_EXPORT", "value")):
            db.execute(f"UPDATE {table} SET {column} = ? || {column} WHERE typeof({column}) = 'text'", (EVIL,))
        db.execute("UPDATE META_DATA_CAPTURE SET value = ? || value WHERE name LIKE '%VERSION%'", (EVIL,))
    return path


def harmless(shown: str) -> bool:
    """Whether nothing of it acts on a terminal; headings may be bold."""
    bare = shown.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\n", "")
    return not {unicodedata.category(c) for c in bare} & UNSAFE


@pytest.mark.slow
@pytest.mark.many(4)
@pytest.mark.parametrize("columns", [60, 300])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_terminal_gets_nothing_that_acts(show: Show, evil: Path, verb: list[str], columns: int) -> None:
    shown = show(*(str(evil) if a == "IN" else a for a in verb), columns=columns, color=True)
    assert len(shown.splitlines()) > 2
    assert harmless(shown)


@pytest.mark.many(3)
@pytest.mark.parametrize("style", ["csv", "json", "jsonl"])
@pytest.mark.parametrize("verb", [VERBS[2], VERBS[8]], ids=" ".join)
def test_data_on_a_terminal(show: Show, evil: Path, verb: list[str], style: str) -> None:
    shown = show(*(str(evil) if a == "IN" else a for a in verb), "--format", style, columns=100, color=True)
    assert "owned" in shown
    assert harmless(shown)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("out", [["--to", "chrome-trace"], ["--to", "csv", "--table", "kernels"]], ids=lambda o: o[1])
def test_a_conversion_to_a_terminal(show: Show, evil: Path, out: list[str]) -> None:
    shown = show("convert", evil, "-", *out, "-q", columns=100, color=True)
    assert "owned" in shown
    assert harmless(shown)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_bytes_do_not_go_to_a_terminal(show: Show, evil: Path, format: str) -> None:
    shown = show("convert", evil, "-", "--to", format, "--table", "kernels", "-q", columns=100)
    assert shown.strip().endswith(
        "Error: the output is binary and cannot be printed on a terminal: name an output file"
    )


@pytest.mark.many(5)
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_tables_for_people_are_harmless_in_a_file_too(run: Run, evil: Path, verb: list[str]) -> None:
    assert harmless(run(*(str(evil) if a == "IN" else a for a in verb)).text)


def test_data_in_a_file_is_exact(run: Run, evil: Path) -> None:
    verb = ["rows", evil, "kernels", "--columns", "short_name", "-n", "1", "--format"]
    name = json.loads(run(*verb, "json").text)[0]["short_name"]
    assert name.startswith(FORMULA + EVIL)
    assert json.loads(run(*verb, "jsonl").text)["short_name"] == name
    assert pl.read_csv(run(*verb, "csv").stdout)["short_name"][0] == name
    assert harmless(run(*verb, "json").text)
    assert harmless(run(*verb, "jsonl").text)


def test_json_of_info(run: Run, evil: Path) -> None:
    text = run("info", evil, "--json").text
    assert harmless(text)
    assert json.loads(text)["devices"][0]["name"].startswith(EVIL)


@pytest.mark.parametrize(
    "arguments",
    [["nothing\x1b[2J.sqlite"], ["IN", "--from", "\x1b[2J\u202e"], ["IN", "\x9b31m"], ["--\x1b[2J"]],
    ids=repr,
)
def test_messages_quote_harmlessly(run: Run, evil: Path, arguments: list[str]) -> None:
    verb = ["info", *(str(evil) if a == "IN" else a for a in arguments)]
    result = run(*verb, status=2 if arguments[0].startswith("--") else 1)
    assert result.stderr
    assert harmless(result.stderr)


def test_errors_of_a_library_too(evil: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "bad.sqlite"
    shutil.copy(evil, path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'", (f"CREATE {EVIL}",))
    result = run("info", path, status=1)
    assert harmless(result.stderr)


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metrics of Nsight Compute with hostile names."""
    text = (ROOT / "fixtures" / "ncu" / "ncu_raw.csv").read_text("utf-8")
    path = tmp_path_factory.mktemp("evil") / "evil.csv"
    path.write_text(text.replace("dram__bytes.sum", f"=dram{EVIL.partition(chr(9))[0]}__bytes.sum"), "utf-8")
    return path


def test_titles(show: Show, metrics: Path) -> None:
    shown = show("rows", metrics, "ncu_metrics", "--wide", "-n", "1", columns=100, color=True)
    assert "=dram" in shown
    assert harmless(shown)


@pytest.mark.parametrize("verb", [VERBS[2], VERBS[8]], ids=" ".join)
def test_spreadsheets(run: Run, evil: Path, verb: list[str]) -> None:
    arguments = [str(evil) if a == "IN" else a for a in verb]
    raw = run(*arguments, "--format", "csv").text
    safe = run(*arguments, "--format", "csv", "--spreadsheet").text
    assert f",{FORMULA}" in raw or f'"{FORMULA}' in raw
    assert f",{FORMULA}" not in safe
    assert f'"{FORMULA}' not in safe
    assert f"'{FORMULA}" in safe


def test_titles_in_spreadsheets(run: Run, metrics: Path) -> None:
    text = run("rows", metrics, "ncu_metrics", "--wide", "--format", "csv", "--spreadsheet").text
    assert "'=dram" in text
    assert not [title for title in text.splitlines()[0].split(",") if title.startswith(("=", '"='))]


def test_spreadsheets_by_the_exporter(run: Run, evil: Path, tmp_path: Path) -> None:
    run("convert", evil, tmp_path / "k.csv", "--table", "kernels", "--option", "spreadsheet=yes")
    safe = pl.read_csv(tmp_path / "k.csv")
    run("convert", evil, tmp_path / "r.csv", "--table", "kernels", "--option", "spreadsheet=no")
    raw = pl.read_csv(tmp_path / "r.csv")
    assert safe["short_name"].str.starts_with(f"'{FORMULA}").all()
    assert safe.with_columns(pl.col(pl.String).str.strip_prefix("'")).equals(raw)
    said = run("convert", evil, tmp_path / "x", "--to", "csv", "--option", "spreadsheet=maybe", status=1).stderr
    assert (
        said == "tracekit: the format csv: 'maybe' is not a valid value of the option 'spreadsheet'\n"
        "Hint: set spreadsheet to yes or no (in Python, True or False)\n"
    )
