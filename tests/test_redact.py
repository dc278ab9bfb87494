"""``tracekit.redact``: every real capture keeps its tables, loses what is private, and can be redacted again."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests.readers.databases import untouched
from tests.readers.test_nsys_rep_redact import unpacked
from tests.readers.test_nsys_sqlite_redact import dump
from tracekit import registry
from tracekit.errors import ExportError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.common.protobuf.wire import Message
from tracekit.readers.common.redaction import COMMON, KINDS

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
SUFFIXES = (".sqlite", ".nsys-rep", ".qdrep")
OWN = sorted(p for f in (ROOT / "fixtures", SHARED / "captures" / "h200") for p in f.glob("*") if p.suffix in SUFFIXES)
CORPUS = sorted(p for p in (SHARED / "corpus").glob("nsys*/**/*") if p.suffix in SUFFIXES)
NAMES = {"nvtx_ranges", "nvtx_marks", "processes", "streams", "threads"}
MOST_CHANGED = 50
ACCOUNTS = (b"USER", b"LOGNAME", b"USERNAME", b"SUDO_USER")


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def differences(path: Path, out: Path) -> dict[str, int]:
    """Number of values that differ, by column: of texts, as all else is equal."""
    found: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        with tk.load(path) as before, tk.load(out) as after:
            assert after.format == before.format
            for name in before.tables:
                mine, theirs = before[name], after[name]
                assert mine.num_rows == theirs.num_rows
                for column in mine.column_names:
                    if not mine[column].equals(theirs[column]):
                        assert pa.types.is_dictionary(mine[column].type) or pa.types.is_string(mine[column].type)
                        a, b = (pl.from_arrow(t[column]).cast(pl.String) for t in (mine, theirs))
                        found[f"{name}.{column}"] = int(a.ne_missing(b).sum())
    return found


@pytest.mark.parametrize("path", OWN, ids=named)
def test_tables_stay_and_a_second_time_changes_nothing(path: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / f"once{path.suffix}", tmp_path / f"twice{path.suffix}"
    with untouched(path):
        counts = tk.redact(path, once)
    assert list(counts) == list(KINDS)
    assert counts["environment"]
    assert counts["host name"]
    assert differences(path, once) == {}
    assert not any(tk.redact(once, twice).values())
    assert twice.read_bytes() == once.read_bytes()


def secrets(path: Path) -> Iterator[tuple[str, bytes]]:
    """What a capture tells of the machine, by kind, read from where nsys puts it."""
    if path.suffix == ".sqlite":
        yield from secrets_of_export(path)
        return
    found = unpacked(path)
    facts, options = (Message(memoryview(found[n])) for n in ("UI Data", "Analysis Options Data"))
    yield from (("host", bytes(facts.part(n))) for n in (5, 24, 40))
    yield "command", bytes(facts.part(25))
    yield from (("variable", bytes(m.part(1)) + b"=" + bytes(m.part(2))) for m in options.message(26).messages(30))
    for name, data in found.items():
        if name.startswith("strings"):
            for text in Message(memoryview(data)).parts(1):
                yield from (("variable", v) for v in bytes(text).split(b"\0") if b"\0" in bytes(text) and b"=" in v)


def secrets_of_export(path: Path) -> Iterator[tuple[str, bytes]]:
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as db:
        db.text_factory = bytes
        names = {n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for (text,) in db.execute("SELECT value FROM StringIds WHERE instr(value, char(0))"):
            yield from (("variable", v) for v in text.split(b"\0") if b"=" in v)
        for table in {b"META_DATA_CAPTURE", b"META_DATA_EXPORT", b"EXPORT_META_DATA"} & names:
            for name, value in db.execute(f"SELECT name, value FROM {table.decode()}"):
                kind = {b"DEVICE_DISPLAY_NAME": "host", b"EXPORT_HOST": "host", b"EXPORT_USER": "user"}.get(name)
                kind = "variable" if name.endswith(b":ENVIRONMENT_VARIABLE") else kind
                if kind and value:
                    yield kind, value


def values(path: Path) -> Iterator[bytes]:
    """Every text and blob of an export."""
    for rows in dump(path).values():
        yield from (v.encode("utf-8", "surrogateescape") for row in rows.values() for v in row if isinstance(v, str))
        yield from (v for row in rows.values() for v in row if isinstance(v, bytes))


def left(path: Path, out: Path) -> dict[str, int]:
    """How much of what is private still stands in the bytes of the copy, by kind."""
    found: dict[str, int] = {}
    texts = b"\0".join(values(out) if out.suffix == ".sqlite" else unpacked(out).values())
    everything = texts + out.read_bytes()
    for kind, value in set(secrets(path)):
        name, _, text = value.partition(b"=")
        words = [value] if kind in ("host", "user") else [text] if kind == "variable" and name in ACCOUNTS else []
        telling = [w for w in words if w.lower() not in COMMON and re.search(rb"[A-Za-z]", w) and len(w) > 1]
        hits = any(re.search(rb"(?<!\w)" + re.escape(w) + rb"(?!\w)", texts) for w in telling)
        if hits or (kind in ("variable", "command") and len(value) > 7 and value in everything):
            found[kind] = found.get(kind, 0) + 1
    return found


@pytest.mark.parametrize("path", OWN, ids=named)
def test_nothing_private_is_left(path: Path, tmp_path: Path) -> None:
    out = tmp_path / f"out{path.suffix}"
    tk.redact(path, out)
    assert {k for k, _ in secrets(path)} >= {"host", "variable"}
    assert left(path, path).keys() >= {"host", "variable"}
    assert left(path, out) == {}


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS, reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_public_captures(number: int, tmp_path: Path) -> None:
    path, out = CORPUS[number], tmp_path / f"out{CORPUS[number].suffix}"
    again = tmp_path / f"again{path.suffix}"
    tk.redact(path, out)
    assert not any(tk.redact(out, again).values())
    assert again.read_bytes() == out.read_bytes()
    changed = differences(path, out)
    assert {c for c in changed if c.partition(".")[0] not in NAMES} == set()
    assert sum(changed.values()) <= MOST_CHANGED
    assert left(path, out) == {}


def pairs() -> list[tuple[Path, Path]]:
    exports = [p for p in (*OWN, *CORPUS) if p.suffix == ".sqlite" and "MISMATCH" not in str(p)]
    return [(p, q) for p in exports for s in SUFFIXES[1:] if (q := p.with_suffix(s)).exists()]


@pytest.mark.corpus
@pytest.mark.parametrize("number", range(len(pairs())))
def test_both_forms_of_a_capture_lose_the_same_names(number: int, tmp_path: Path) -> None:
    changed = []
    for path in pairs()[number]:
        out = tmp_path / f"out{path.suffix}"
        tk.redact(path, out)
        changed.append({c: n for c, n in differences(path, out).items() if not c.startswith("processes.")})
    assert changed[0] == changed[1]


def test_formats_that_cannot_be_redacted_are_named(tmp_path: Path) -> None:
    with tk.load(ROOT / "fixtures" / "empty.sqlite") as trace:
        tables = trace.export(tmp_path / "tables", format="parquet")
    with pytest.raises(TracekitError) as caught:
        tk.redact(tables, tmp_path / "out")
    assert str(caught.value) == f"{tables}: parquet files cannot be redacted\nHint: formats: nsys-sqlite, nsys-rep"
    assert [p.name for p in tmp_path.iterdir()] == ["tables"]


def test_what_no_reader_recognises_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError):
        tk.redact(ROOT / "pyproject.toml", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        tk.redact(tmp_path / "nothing.sqlite", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_plug_ins_can_offer_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def redact(source: registry.Source, target: Path) -> dict[str, int]:
        target.write_bytes(source.path.read_bytes().replace(b"alice", b""))
        return {"user name": 1}

    reader = tk.Reader("made", "Made up", (".made",), lambda s: s.head.startswith(b"MADE"), lambda _: {}, redact)
    monkeypatch.setattr(registry, "readers", lambda: {"made": reader})
    path = tmp_path / "a.made"
    path.write_bytes(b"MADE by alice")
    assert tk.redact(path, tmp_path / "b.made") == {"user name": 1}
    assert (tmp_path / "b.made").read_bytes() == b"MADE by "
    with pytest.raises(ExportError, match="exists already"):
        tk.redact(path, tmp_path / "b.made")
    assert tk.redact(path, tmp_path / "b.made", overwrite=True)
