"""``tracekit.redact``: every real capture keeps its tables, loses what is private, and can be redacted again."""

from __future__ import annotations

import functools
import os
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests.builders.nsys_sqlite import untouched
from tests.helpers import number_pseudonyms
from tests.secrets_of import left, secrets_of, texts
from tracekit import registry
from tracekit.errors import ExportError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.redaction.patterns import KINDS
from tracekit.registry.source import Source

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
SUFFIXES = (".sqlite", ".nsys-rep", ".qdrep")
OWN = sorted(p for f in (ROOT / "fixtures", SHARED / "captures" / "h200") for p in f.glob("*") if p.suffix in SUFFIXES)
CORPUS = sorted(p for p in (SHARED / "corpus").glob("nsys*/**/*") if p.suffix in SUFFIXES)
NAMES = {"nvtx_ranges", "nvtx_marks", "processes", "streams", "threads"}
ADDRESSES = ("network_cards.guid", "network_metrics.network_device_id")
MOST_CHANGED = 50


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def differences(path: Path, out: Path) -> dict[str, int]:
    """Number of distinct values that differ, by column: of texts, as all else is equal."""
    found: dict[str, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        with tk.load(path) as before, tk.load(out) as after:
            assert after.format == before.format
            for name in before.tables:
                mine, theirs = (number_pseudonyms(name, trace[name]) for trace in (before, after))
                assert mine.num_rows == theirs.num_rows
                for column in mine.column_names:
                    if not mine[column].equals(theirs[column]):
                        if f"{name}.{column}" in ADDRESSES:
                            continue
                        assert pa.types.is_dictionary(mine[column].type) or pa.types.is_string(mine[column].type)
                        a, b = (pl.from_arrow(t[column]).cast(pl.String) for t in (mine, theirs))
                        both = pl.DataFrame({"a": a, "b": b}).unique()
                        found[f"{name}.{column}"] = both.filter(both["a"].ne_missing(both["b"])).height
    return found


@pytest.fixture(scope="module")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], tuple[Path, dict[str, int]]]:
    """Redact a capture, once for all tests: the copy, and what was replaced."""

    @functools.cache
    def redact(path: Path) -> tuple[Path, dict[str, int]]:
        out = tmp_path_factory.mktemp("redacted") / f"once{path.suffix}"
        with untouched(path):
            return out, tk.redact(path, out)

    return redact


PATHS = {"stacks.module", "cpu_page_faults.module", "cpu_page_faults.source_file", "jit_operations.cache_path"} | {
    "diagnostics.text"
}
"""Columns with paths or messages, whose private folders and names are replaced."""


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("path", OWN, ids=named)
def test_tables_stay_and_a_second_time_changes_nothing(path: Path, redacted: Any, tmp_path: Path) -> None:
    twice = tmp_path / f"twice{path.suffix}"
    once, counts = redacted(path)
    assert list(counts) == list(KINDS)
    assert counts["environment"]
    assert counts["host name"]
    assert differences(path, once).keys() <= PATHS
    assert not any(tk.redact(once, twice).values())
    assert twice.read_bytes() == once.read_bytes()


def remaining(path: Path, out: Path) -> dict[str, int]:
    """How much of what is private still stands in the copy, by kind: in its texts, and in the bytes of an export."""
    data = b"\0".join(texts(out))
    return left(secrets_of(path), data + (out.read_bytes() if out.suffix == ".sqlite" else b""))


@pytest.mark.slow
@pytest.mark.parametrize("path", OWN, ids=named)
def test_nothing_private_is_left(path: Path, redacted: Any) -> None:
    out, _ = redacted(path)
    assert {"command", "uuid", "bus"} <= left(secrets_of(path), b"\0".join(texts(path))).keys()
    assert remaining(path, out) == {}


@pytest.mark.many(1)
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
    assert {c for c in changed if c.partition(".")[0] not in NAMES} <= PATHS
    assert sum(changed.values()) <= MOST_CHANGED
    assert remaining(path, out) == {}


def pairs() -> list[tuple[Path, Path]]:
    exports = [p for p in (*OWN, *CORPUS) if p.suffix == ".sqlite" and "MISMATCH" not in str(p)]
    return [(p, q) for p in exports for s in SUFFIXES[1:] if (q := p.with_suffix(s)).exists()]


@pytest.mark.many(1)
@pytest.mark.corpus
@pytest.mark.parametrize("number", range(len(pairs())))
def test_both_forms_of_a_capture_lose_the_same_names(number: int, tmp_path: Path) -> None:
    changed = []
    compared = set.intersection(*map(recorded_tables, pairs()[number])) - {"processes"}
    for path in pairs()[number]:
        out = tmp_path / f"out{path.suffix}"
        tk.redact(path, out)
        changed.append({c: n for c, n in differences(path, out).items() if c.partition(".")[0] in compared})
    assert changed[0] == changed[1]


def recorded_tables(path: Path) -> set[str]:
    """Return the tables that have rows. nsys does not export some tables of a report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        with tk.load(path) as trace:
            return {name for name in trace.tables if trace[name].num_rows}


def test_formats_that_cannot_be_redacted_are_named(tmp_path: Path) -> None:
    with tk.load(ROOT / "fixtures" / "empty.sqlite") as trace:
        tables = trace.export(tmp_path / "tables", format="parquet")
    with pytest.raises(TracekitError) as caught:
        tk.redact(tables, tmp_path / "out")
    assert (
        str(caught.value)
        == f"{tables}: parquet files cannot be redacted\nHint: choose a file of another format: nsys-sqlite, "
        "nsys-rep, nsys-jsonlines, ascend, kineto, xplane, chrome-trace, memory-snapshot, nccl, proton, nvprof-csv, "
        "nvprof, perfetto, rocpd, rpd, rocprofv3-json, rocprof-csv"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["tables"]


def test_what_no_reader_recognizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError):
        tk.redact(ROOT / "pyproject.toml", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        tk.redact(tmp_path / "nothing.sqlite", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_plug_ins_can_offer_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def redact(source: Source, target: Path) -> dict[str, int]:
        target.write_bytes(source.path.read_bytes().replace(b"alice", b""))
        return {"user name": 1}

    reader = tk.Reader("made", "Made up", (".made",), lambda s: s.head.startswith(b"MADE"), lambda _: {}, redact)
    monkeypatch.setattr(registry, "readers", lambda: {"made": reader})
    path = tmp_path / "a.made"
    path.write_bytes(b"MADE by alice")
    assert tk.redact(path, tmp_path / "b.made") == {"user name": 1}
    assert (tmp_path / "b.made").read_bytes() == b"MADE by "
    with pytest.raises(ExportError, match="the output already exists"):
        tk.redact(path, tmp_path / "b.made")
    assert tk.redact(path, tmp_path / "b.made", overwrite=True)


def test_a_key_makes_the_same_pseudonyms_in_every_file(tmp_path: Path) -> None:
    key = b"0123456789abcdef"
    report, export = (ROOT / "fixtures" / f"ddp2{suffix}" for suffix in (".nsys-rep", ".sqlite"))
    ids = []
    for n, (path, with_key) in enumerate(((report, key), (export, key), (report, None))):
        tk.redact(path, out := tmp_path / f"{n}{path.suffix}", key=with_key)
        with tk.load(out) as trace:
            ids.append(sorted(trace["devices"].select(["uuid", "bus_location"]).to_pylist(), key=str))
    assert ids[0] == ids[1] != ids[2]
    assert len({d["uuid"] for d in ids[0]}) == 2
    assert all(uuid.UUID(d["uuid"]).version == 8 for each in ids for d in each)


def test_short_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match=r"^the key has only 15 bytes, so it can be guessed\nHint: use at least 16"):
        tk.redact(OWN[0], tmp_path / "out", key=b"0123456789abcde")
    assert list(tmp_path.iterdir()) == []


def test_readers_without_keys_and_checks_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tk.Reader("made", "Made up", (".made",), lambda _: True, lambda _: {}, lambda _, __: {})
    monkeypatch.setattr(registry, "readers", lambda: {"made": reader})
    path = tmp_path / "a.made"
    path.write_bytes(b"MADE")
    with pytest.raises(
        TracekitError, match=r"made files cannot be redacted with a key\nHint: redact them without a key$"
    ):
        tk.redact(path, tmp_path / "out", key=bytes(16))
    with pytest.raises(TracekitError, match=r"private values of made files cannot be counted\nHint: write a copy"):
        tk.unredacted(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.made"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.nsys-rep")
    for act in (lambda p: tk.redact(p, tmp_path / "out"), tk.unredacted):
        with pytest.raises(TracekitError, match="neither a file nor a folder"):
            act(tmp_path / "a.nsys-rep")
    assert [p.name for p in tmp_path.iterdir()] == ["a.nsys-rep"]
