"""NVTX payloads of exports made with ``--include-blobs``, against the report and a plain reading of each blob."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_folders import KINDS, as_folder, tables_of
from tests.builders.nsys_sqlite import FIXTURES, edited
from tracekit.errors import CorruptTraceError
from tracekit.readers.nsys import blobs

WRITTEN = [line.split("\t") for line in (FIXTURES / "payloads" / "blobs.tsv").read_text("utf-8").splitlines()]
CAPTURES = {c: {int(row): bytes.fromhex(data) for name, row, data in WRITTEN if name == c} for c, _, _ in WRITTEN}


def format_blob(blob: bytes | None) -> str | None:
    """Tell one blob, step by step."""
    if blob is None:
        return None
    count = struct.unpack_from("<Q", blob)[0] if len(blob) >= 8 else 0
    if not 0 < count <= (len(blob) - 8) // 24:
        return blob.hex()
    found, end = [], 8 + 24 * count
    for nth in range(count):
        schema, size, place = struct.unpack_from("<QQQ", blob, 8 + 24 * nth)
        if place < end or place + size > len(blob):
            return blob.hex()
        end = place + size
        found.append(f"{schema}:{blob[place:end].hex()}")
    return ",".join(found)


def blob_of(*items: tuple[int, bytes]) -> bytes:
    head, body = struct.pack("<Q", len(items)), b""
    for schema, content in items:
        head += struct.pack("<QQQ", schema, len(content), 8 + 24 * len(items) + len(body))
        body += content
    return head + body


def with_blobs(folder: Path, capture: str) -> Path:
    """The export that nsys makes of a capture with ``--include-blobs``."""
    path = edited(folder, of=capture)
    with contextlib.closing(sqlite3.connect(path)) as db:
        listed = [(data, row) for row, data in CAPTURES[capture].items()]
        db.executemany("UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid = ?", listed)
        db.commit()
    return path


def payloads(path: Path) -> dict[int, tuple[str, str]]:
    with tk.load(path) as trace:
        rows = trace.table("nvtx_ranges", ["range_id", "payload_type", "payload_text"]).to_pylist()
    return {r["range_id"]: (r["payload_type"], r["payload_text"]) for r in rows if r["payload_type"] is not None}


def test_what_nsys_wrote_is_known() -> None:
    assert {name: len(listed) for name, listed in CAPTURES.items()} == {"ddp2": 16, "jax_mlp": 43, "every_type": 106}
    assert format_blob(CAPTURES["ddp2"][342]) == "16777221:514a744917bb992c001104010000000000000000c97f0000"


@pytest.mark.filterwarnings("ignore::tracekit.TracekitWarning")
def test_a_report_tells_them_alike() -> None:
    with tk.load(FIXTURES / "payloads" / "every_type.nsys-rep") as trace:
        marks = trace.table("nvtx_marks", ["mark_id", "payload_type", "payload_text"]).to_pylist()
    reported = {m["mark_id"]: m["payload_text"] for m in marks if m["payload_type"] == "binary"}
    listed = CAPTURES["every_type"]
    mine = dict(
        zip(listed, blobs.format_payload_blobs(pa.array(listed.values(), pa.binary())).to_pylist(), strict=True)
    )
    assert {row: mine[row] for row in reported} == reported
    assert len(reported) == 104
    assert sum("," in text for text in mine.values()) == 2


@pytest.mark.parametrize("capture", ["ddp2", "jax_mlp"])
def test_payloads_of_a_sqlite_export(tmp_path: Path, capture: str) -> None:
    expected = {row: ("binary", format_blob(data)) for row, data in CAPTURES[capture].items()}
    assert {row: p for row, p in payloads(with_blobs(tmp_path, capture)).items() if row in expected} == expected


@pytest.mark.many(1)
@pytest.mark.parametrize("capture", ["ddp2", "jax_mlp"])
@pytest.mark.parametrize("kind", KINDS)
def test_payloads_of_a_folder(tmp_path: Path, capture: str, kind: str) -> None:
    export = with_blobs(tmp_path, capture)
    tables = tables_of(FIXTURES / f"{capture}.sqlite")
    events = tables["NVTX_EVENTS"]
    column = pa.array([CAPTURES[capture].get(row + 1) for row in range(events.num_rows)], pa.large_binary())
    place = events.schema.get_field_index("binaryData")
    for name, values in (("as nsys has it", column.view(pa.large_string())), ("as bytes", column)):
        folder = as_folder(
            tmp_path / name, kind, {**tables, "NVTX_EVENTS": events.set_column(place, "binaryData", values)}
        )
        with tk.load(export) as one, tk.load(folder) as other:
            assert other["nvtx_ranges"].equals(one["nvtx_ranges"])
        assert len(payloads(folder)) == len(payloads(export)) >= len(CAPTURES[capture])


@pytest.mark.parametrize("value", ["x''", "x'00'", "x'ff00ff'", "'plain text'", "x'ffffffffffffffff'"])
def test_other_values_are_hexadecimal_numbers(tmp_path: Path, value: str) -> None:
    path = edited(tmp_path, f"UPDATE NVTX_EVENTS SET binaryData = {value}", of="nvtx_features")
    found = {p for p in payloads(path).values() if p[0] == "binary"}
    assert found == {("binary", b"plain text".hex() if "plain" in value else value[2:-1])}


def test_more_than_can_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_blobs(tmp_path, "ddp2")
    monkeypatch.setattr(blobs, "MAX_BYTES", 800)
    with (
        tk.load(path) as trace,
        pytest.raises(
            CorruptTraceError,
            match=r"a batch has 1235 bytes of NVTX payloads, but tracekit supports at most 800\nHint: ",
        ),
    ):
        trace["nvtx_ranges"]


ITEMS = st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.binary(max_size=9)), max_size=4).map(lambda i: blob_of(*i))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A blob with some bytes replaced, cut off or added."""
    data = bytearray(draw(ITEMS))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 2, 8, 24, 32, 255]))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=3))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60), ITEMS, damaged())), st.integers(0, 3))
def test_any_blobs(values: list[bytes | None], offset: int) -> None:
    column = pa.array([None, b"before", b"", *values], pa.binary())[offset:]
    assert blobs.format_payload_blobs(column).to_pylist() == [format_blob(v) for v in column.to_pylist()]
