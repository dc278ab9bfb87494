"""The JSON scanner reads objects of any shape: a log with its own keys, compared with ``json.loads``."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import examples
from tracekit.errors import CorruptTraceError
from tracekit.readers.common.json.document import Document, DocumentFormat
from tracekit.readers.common.json.scanner import AS_STRING, NESTED, THOUSANDTHS, JsonCells, JsonScanner
from tracekit.readers.common.json.stream import Stream
from tracekit.system.files import InputFile

LEVEL, TEXT, SIZE, MILLISECONDS, RATE, HOST = range(1, 7)
KEYS = {
    (0, "context"): NESTED,
    (0, "level"): LEVEL,
    (0, "text"): TEXT,
    (0, "size"): SIZE,
    (0, "ms"): MILLISECONDS + THOUSANDTHS,
    (0, "rate"): RATE + AS_STRING,
    (1, "host"): HOST,
}
LINES = DocumentFormat(None, "records", "write the log again")
MEMBER = DocumentFormat("records", "records", "write the log again", metadata_names=("version",))

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
OTHERS = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=8,
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "level": TEXTS | INTEGERS,
        "text": TEXTS,
        "size": INTEGERS | TEXTS,
        "ms": st.integers(-(1 << 40), 1 << 40).map(lambda n: n / 1000),
        "rate": st.floats(allow_nan=False, allow_infinity=False),
        "context": st.dictionaries(TEXTS, OTHERS, max_size=2).flatmap(
            lambda rest: TEXTS.map(lambda host: {**rest, "host": host}) | st.just({**rest, "host": None})
        ),
        "unread": OTHERS,
    },
)


def read(path: Path, layout: DocumentFormat, block_bytes: int = 1 << 16) -> tuple[list[dict[str, Any]], Document]:
    """Return the members of all records, and the document."""
    columns: list[pa.Table] = []
    compressed = path.suffix == ".gz"
    file = InputFile(path)
    scanner = JsonScanner(KEYS)
    with Stream(file, compressed=compressed, block_bytes=block_bytes) as stream:
        document = Document(path, stream, scanner, layout)
        for _ in document.parse_in_batches():
            cells, rows = JsonCells(scanner, Counter()), np.arange(scanner.rows)
            columns.append(
                pa.table(
                    {
                        "level": cells.get_member_strings(LEVEL, rows),
                        "text": cells.get_member_strings(TEXT, rows),
                        "size": cells.get_member_integers(SIZE, rows),
                        "ms": cells.get_member_integers(MILLISECONDS, rows),
                        "rate": cells.get_member_strings(RATE, rows, include_other_types=True),
                        "context": cells.format_nested_json(rows),
                        "host": cells.get_member_strings(HOST, rows),
                    }
                )
            )
    file.close()
    return [row for table in columns for row in table.to_pylist()], document


def expected(record: dict[str, Any]) -> dict[str, Any]:
    """What is read of a record."""

    def of_type(name: str, kind: type) -> Any:
        return record.get(name) if isinstance(record.get(name), kind) else None

    return {
        "level": of_type("level", str),
        "text": record.get("text"),
        "size": of_type("size", int),
        "ms": None if "ms" not in record else round(record["ms"] * 1000),
        "rate": None if "rate" not in record else json.dumps(record["rate"]),
        "context": record.get("context"),
        "host": record.get("context", {}).get("host"),
    }


def check(path: Path, records: list[dict[str, Any]], layout: DocumentFormat, block_bytes: int) -> Document:
    rows, document = read(path, layout, block_bytes)
    for row in rows:
        row["context"] = json.loads(row["context"]) if row["context"] else None
    assert rows == [expected(r) for r in records]
    assert (document.invalid, document.truncated, document.trailing_bytes) == (0, False, 0)
    return document


@given(st.lists(RECORDS, max_size=8), st.booleans(), st.sampled_from([None, 1]), st.sampled_from([7, 100, 1 << 16]))
def test_records_equal_those_of_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, Any]],
    ensure_ascii: bool,
    indent: int | None,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = json.dumps({"version": 3, "records": records, "end": []}, ensure_ascii=ensure_ascii, indent=indent)
    (folder / "log.json").write_text(whole, "utf-8")
    assert check(folder / "log.json", records, MEMBER, block_bytes).metadata == {"version": 3}
    (folder / "log.json.gz").write_bytes(gzip.compress(json.dumps(records, indent=indent).encode()))
    check(folder / "log.json.gz", records, LINES, block_bytes)
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records), "utf-8")
    if records:
        check(folder / "log.jsonl", records, LINES, block_bytes)


REPEATED = dataclasses.replace(MEMBER, may_repeat=True)


@given(
    st.lists(st.lists(RECORDS, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["", "\n", " \r\n\n" + " " * 190]),
    st.sampled_from([None, 1]),
    st.sampled_from([7, 100, 1 << 16]),
)
def test_documents_that_follow_one_another_are_read_as_one(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[dict[str, Any]]],
    between: str,
    indent: int | None,
    block_bytes: int,
) -> None:
    path, records = tmp_path_factory.getbasetemp() / "parts.json", [record for part in parts for record in part]
    path.write_text(between.join(json.dumps({"version": 3, "records": part}, indent=indent) for part in parts), "utf-8")
    assert check(path, records, REPEATED, block_bytes).metadata == {"version": 3}
    path.write_text(between.join(json.dumps(part, indent=indent) for part in parts), "utf-8")
    check(path, records, REPEATED, block_bytes)


def test_what_follows_the_last_document_is_counted(tmp_path: Path) -> None:
    path, part = tmp_path / "parts.json", '{"version": 3, "records": [{"text": "a"}]}'
    for rest, count in (("{garbage", 8), ("  [1]", 3), (" " * 300 + "{}", 2)):
        path.write_text(f"{part}\n{part}{rest}", "utf-8")
        rows, document = read(path, REPEATED)
        assert ([row["text"] for row in rows], document.trailing_bytes) == (["a", "a"], count)
    path.write_text(f"{part}\n{part[:-2]}", "utf-8")
    rows, document = read(path, REPEATED)
    assert ([row["text"] for row in rows], document.truncated) == (["a", "a"], True)


def test_documents_with_different_metadata_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    path.write_text('{"version": 3, "records": []} {"version": 4, "records": []}', "utf-8")
    with pytest.raises(CorruptTraceError, match="several JSON documents, which differ in 'version'"):
        read(path, REPEATED)


@pytest.mark.parametrize("block_bytes", [7, 1 << 16])
def test_invalid_lines_are_skipped_and_counted(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"text": "a"}\n{"text" "b"}\n{"text": "c"}\n\n{"size": 1}\n{"text": "tr', "utf-8")
    rows, document = read(path, LINES, block_bytes)
    assert [(row["text"], row["size"]) for row in rows] == [("a", None), ("c", None), (None, 1)]
    assert (document.invalid, document.truncated) == (1, True)


def test_too_many_invalid_records_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"text" 1}\n' * 10_002, "utf-8")
    with pytest.raises(CorruptTraceError, match=r"10001 invalid records .*\nHint: write the log again"):
        read(path, LINES)


def test_many_batches(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"size": {i}, "text": "{i % 7}"}}\n' for i in range(examples(300_000))), "utf-8")
    rows, _ = read(path, LINES)
    assert [row["size"] for row in rows] == list(range(examples(300_000)))
    assert {(row["size"] % 7, row["text"]) for row in rows} == {(i, str(i)) for i in range(7)}
