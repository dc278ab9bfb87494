"""Reports read like their exports: every table, row by row and column by column."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from docs.support_matrix import OF_DLPROF
from tests.builders.nsys_rep import CAPTURES, SHARED, Parts, container, event, message, packed, strings, take_apart
from tests.helpers import count_undecoded
from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitWarning, UnsupportedVersionError
from tracekit.readers.nsys.capture import NsysCapture
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys.tables import Where
from tracekit.readers.nsys_rep import READER, events
from tracekit.readers.nsys_rep.container import OFFSETS, UI_DATA, RawData
from tracekit.readers.nsys_rep.report import NsysReportCapture
from tracekit.readers.nsys_sqlite.capture import ExportCapture
from tracekit.registry.source import Source
from tracekit.registry.tables import count_rows, read_chunks

CORPUS = SHARED / "corpus"
needs_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus beside the checkout")
AGAIN = "\nHint: copy the report again from where it was recorded, or record it again"


def report_of(export: Path) -> Path | None:
    """The report that an export was made from; none if the two are known not to belong together."""
    found = (export.with_suffix(s) for s in (".nsys-rep", ".qdrep"))
    return None if "MISMATCH" in str(export) else next((p for p in found if p.exists()), None)


OWN = sorted(p for p in CAPTURES.glob("*.sqlite") if report_of(p))
MORE = sorted(p for p in (SHARED / "captures" / "h200_more").glob("*.sqlite") if report_of(p))
PUBLIC = sorted(p for p in CORPUS.glob("nsys_pairs/**/*.sqlite") if report_of(p))
ALONE = sorted(p for p in CORPUS.glob("nsys_rep_only/**/*") if p.suffix in (".nsys-rep", ".qdrep"))


NOT_DECODED = ("memory map", "start or finish mark", "process without a name", "generic event of GpuMetrics")
"""Classes of events in real reports that are in no table, for reasons that docs/formats/nsys-rep.md gives."""
LATER = ("processes", "diagnostics", "jit_operations", "cuda_overheads", "network_cards")
"""Tables that every report holds, but that only later versions of nsys export."""


def read(path: Path) -> NsysReportCapture:
    return NsysReportCapture(Source(path))


def written(folder: Path, data: bytes) -> NsysReportCapture:
    path = folder / "made.nsys-rep"
    path.write_bytes(data)
    return read(path)


def rows(capture: NsysCapture, table: str, *columns: str) -> list[tuple[object, ...]]:
    found = read_chunks(capture, table, columns or schemas.table(table).names)
    return list(zip(*(found[c].to_pylist() for c in found.column_names), strict=True))


def tables(capture: NsysCapture) -> dict[str, pa.Table]:
    return {name: read_chunks(capture, name, schema.names) for name, schema in schemas.tables().items()}


def exported(capture: NsysCapture, table: str, column: str) -> bool:
    """Whether an export has what a column is made of: a later exporter of the same report writes more."""
    if column not in SOURCES[table].columns:
        return False
    source, name = SOURCES[table].locate_column(column)
    if table == "devices" and "TARGET_INFO_CUDA_GPU" in capture.tables.columns:
        return column != "uuid"
    if column in ("payload_type", "payload_text"):
        return read_chunks(capture, table, ["payload_text"])["payload_text"].null_count < count_rows(capture, table)
    return source in capture.tables.columns and (
        name in (*capture.tables.columns[source], "rowid") or not name.isidentifier()
    )


def differences(report: NsysCapture, export: NsysCapture) -> list[str]:
    """Name the columns that differ, of the tables that the export has."""
    found = []
    for name, sources in SOURCES.items():
        schema = schemas.table(name)
        mine, theirs = (r.read_many({name: schema.names})[name] for r in (report, export))
        if name == "capture_info" or (name in LATER and sources.first_table not in export.tables.columns):
            continue
        count = report.count_many([name])[name]
        if not mine.num_rows == theirs.num_rows == count:
            found.append(f"{name}: {mine.num_rows} rows, {count} counted, {theirs.num_rows} in the export")
            continue
        columns = [c for c in schema.names if plain(mine[c]) != plain(theirs[c])]
        found += [f"{name}.{c}" for c in columns if exported(export, name, c) or theirs[c].null_count < len(theirs)]
    return found


def plain(column: pa.ChunkedArray) -> list[object]:
    found = column.to_pylist()
    return [None if isinstance(v, float) and np.isnan(v) else v for v in found]


@needs_captures
@pytest.mark.parametrize("export", [*OWN, *MORE], ids=lambda p: p.stem)
def test_reads_like_the_export(export: Path) -> None:
    report = report_of(export)
    assert report is not None
    without_payloads = ["python_samples.stack_id", "stacks: 1004 rows, 1004 count_undecoded, 932 in the export"]
    expected = without_payloads if export.stem == "pystacks" else []
    assert differences(read(report), ExportCapture(Source(export))) == expected


@needs_captures
@pytest.mark.parametrize("export", OWN, ids=lambda p: p.stem)
def test_facts_are_those_of_the_export_but_its_own_version(export: Path) -> None:
    report = report_of(export)
    assert report is not None
    mine, theirs = dict(rows(read(report), "capture_info")), dict(rows(ExportCapture(Source(export)), "capture_info"))
    assert (mine.pop("tool_version"), theirs.pop("tool_version")) == ("2025.3.1.0", "2025.3.2.0")
    assert theirs.pop("schema_version") == "3.20.3"
    assert mine == theirs


@pytest.mark.many(1)
@pytest.mark.corpus
@needs_corpus
@pytest.mark.parametrize("number", range(len(PUBLIC)))
def test_public_pair(number: int) -> None:
    report = report_of(PUBLIC[number])
    assert report is not None
    mine, theirs = read(report), ExportCapture(Source(PUBLIC[number]))
    assert differences(mine, theirs) == []
    facts, told = dict(rows(mine, "capture_info")), dict(rows(theirs, "capture_info"))
    only_theirs = {"schema_version", *OF_DLPROF}
    assert {k: facts[k] for k in told.keys() - only_theirs} == {k: v for k, v in told.items() if k not in only_theirs}


@pytest.mark.corpus
@needs_corpus
@pytest.mark.parametrize("number", range(len(ALONE)))
def test_report_without_export_opens(number: int) -> None:
    capture = read(ALONE[number])
    for name, found in tables(capture).items():
        found.validate(full=True)
        assert count_rows(capture, name) == found.num_rows


@pytest.mark.many(1)
@needs_captures
@pytest.mark.parametrize("size", [1, 100_000])
def test_batches_give_the_same_rows_whatever_their_size(
    size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = take_apart(CAPTURES / "train_amp.nsys-rep")
    path = tmp_path / "many.nsys-rep"
    path.write_bytes(replace(parts, blocks=[*split(parts.blocks[0], 7)]).pack())
    monkeypatch.setattr(events, "BATCH_BYTES", size)
    many, one = read(path), read(CAPTURES / "train_amp.nsys-rep")
    assert len(many.report.raw_data.blocks) == 7
    assert tables(many) == tables(one)


def split(block: bytes, number: int) -> list[bytes]:
    """Cut a block of events between its entries."""
    from tests.builders.nsys_rep import _entries

    found = list(_entries(block))
    step = -(-len(found) // number)
    return [message(*((1, e) for e in found[i : i + step])) for i in range(0, len(found), step)]


@needs_captures
def test_only_blocks_that_hold_the_table_are_unpacked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = take_apart(CAPTURES / "train_amp.nsys-rep")
    path = tmp_path / "many.nsys-rep"
    path.write_bytes(replace(parts, blocks=[*parts.blocks, *[event(41, 106, (1, 5)) * 100] * 3]).pack())
    capture = read(path)
    read_chunks(capture, "kernels", ["start_ns"])
    unpacked = []
    monkeypatch.setattr(
        RawData,
        "decompress",
        lambda self, block, _unpack=RawData.decompress: unpacked.append(block) or _unpack(self, block),
    )
    read_chunks(capture, "memcpys", ["bytes"])
    assert len(unpacked) == 1
    assert capture.report.raw_data.blocks.index(unpacked[0]) == 0


@needs_captures
def test_strings_are_found_by_count_where_no_offset_is_given(tmp_path: Path) -> None:
    parts = take_apart(CAPTURES / "nvtx_features.nsys-rep")
    old = written(tmp_path, replace(parts, offsets=False).pack())
    assert tables(old) == tables(read(CAPTURES / "nvtx_features.nsys-rep"))


@needs_captures
def test_what_is_recorded_beside_the_tables_is_counted_by_name() -> None:
    assert count_undecoded(read(CAPTURES / "osrt_libs.nsys-rep").undecoded) == {
        "memory map": 89,
        "start or finish mark": 2,
    }


@needs_captures
def test_row_numbers_count_all_events_also_where_some_are_left_out() -> None:
    capture = read(CAPTURES / "nvtx_features.nsys-rep")
    marks = read_chunks(capture, "nvtx_marks", ["mark_id"])["mark_id"].to_pylist()
    ranges = read_chunks(capture, "nvtx_ranges", ["range_id"])["range_id"].to_pylist()
    assert marks == [3]
    assert ranges[:2] == [5, 7]
    assert capture.report.find_rowid("NVTX_EVENTS", 1, Where("eventType", (59, 60))) == 7
    assert capture.report.find_rowid("NVTX_EVENTS", 1000, None) is None


def test_payloads_of_every_type(tmp_path: Path) -> None:
    payloads = [(1, 1 << 63), (2, -5), (3, 0.5), (4, (1 << 32) - 1), (5, -7), (8, "{}")]
    made = [event(34, 102, (1, 34), (2, i), (8, message(p)), (9, 1 << 48)) for i, p in enumerate(payloads)]
    single = message((1, 34), (2, 9), (8, b"\x35" + np.float32(1.5).tobytes()), (9, 1 << 48))
    made.append(message((1, message((1, 34), (102, single)))))
    made.append(event(34, 102, (1, 34), (2, 9), (8, message((7, 0))), (9, 1 << 48)))
    capture = written(tmp_path, Parts([b"".join(made)], [strings("registered")]).pack())
    assert rows(capture, "nvtx_marks", "payload_text")[-1] == ("registered",)
    found = rows(capture, "nvtx_marks", "payload_type", "payload_int", "payload_float", "payload_text")[:-1]
    assert found == [
        ("uint64", -(1 << 63), None, None),
        ("int64", -5, None, None),
        ("double", None, 0.5, None),
        ("uint32", (1 << 32) - 1, None, None),
        ("int32", -7, None, None),
        ("json", None, None, "{}"),
        ("float", None, 1.5, None),
    ]


def test_call_chains_are_numbered_from_block_to_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BATCH_BYTES", 1)
    call = ((1, 1), (2, 2), (3, 0), (6, 27), (7, 0), (8, 0), (13, 1 << 48))
    block = event(48, 108, *call, (15, b"")) + event(48, 108, *call) + event(48, 108, *call, (15, b""), (15, b""))
    capture = written(tmp_path, Parts([block, block], [strings("poll")]).pack())
    assert rows(capture, "osrt_calls", "osrt_call_id", "callchain_id") == [
        (1, 1), (2, 0), (3, 2), (4, 3), (5, 0), (6, 4),
    ]  # fmt: skip


def test_repeated_fields_and_any_order_are_understood(tmp_path: Path) -> None:
    fields = [(10, 9), (9, 1 << 48), (2, 3), (7, "first"), (1, 59), (7, "last"), (1900, 1)]
    capture = written(tmp_path, Parts([event(59, 102, *fields)]).pack())
    assert rows(capture, "nvtx_ranges", "start_ns", "end_ns", "name") == [(3, 9, "last")]


def test_text_that_is_not_utf8_is_repaired_and_counted(tmp_path: Path) -> None:
    made = event(59, 102, (1, 59), (2, 1), (7, b"caf\xe9"), (9, 1 << 48), (10, 2))
    capture = written(tmp_path, Parts([made]).pack())
    with pytest.warns(TracekitWarning, match="1 string of NVTX_EVENTS.text is not UTF-8: invalid bytes are replaced"):
        assert rows(capture, "nvtx_ranges", "name") == [("caf\ufffd",)]


def test_empty_report_has_every_table(tmp_path: Path) -> None:
    found = tables(written(tmp_path, Parts().pack()))
    assert {name for name, table in found.items() if table.num_rows} == {"capture_info"}


def test_reader_recognizes_the_content(tmp_path: Path) -> None:
    path = tmp_path / "unknown"
    path.write_bytes(Parts().pack())
    assert READER.sniff(Source(path))
    path.write_bytes(b"SQLite format 3\0")
    assert not READER.sniff(Source(path))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            b"version https://git-lfs.github.com/",
            "this is a Git LFS pointer, not the file itself\nHint: run: git lfs pull",
        ),
        (
            b"U3w[END]NVIDIA Nsight Systems Stream 2025.3.1.0!\n",
            (
                "this is a .qdstrm stream, which only Nsight Systems can convert into a report\n"
                "Hint: with the QdstrmImporter of Nsight Systems 2025.3.1.0, run: QdstrmImporter -i FILE.qdstrm"
            ),
        ),
        (b"", "the file is empty (0 bytes)\nHint: export or copy it again"),
    ],
)
def test_other_files_are_named(head: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError) as caught:
        written(tmp_path, head)
    assert str(caught.value) == f"{tmp_path / 'made.nsys-rep'}: not an Nsight Systems report: {said}"


def test_unfinished_report_says_what_to_do(tmp_path: Path) -> None:
    data = Parts().pack()[:-1]
    with pytest.raises(CorruptTraceError) as caught:
        written(tmp_path, data)
    assert str(caught.value) == (
        f"{tmp_path / 'made.nsys-rep'}: the report is unfinished or truncated: "
        f"the end marker is missing at the end of the file ({len(data)} bytes)\n"
        "Hint: copy it again; if the original is also unfinished, let nsys finish, record again, "
        "or convert the .qdstrm file: QdstrmImporter -i FILE.qdstrm"
    )


def test_other_compression_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        written(tmp_path, Parts(compression="zstd").pack())
    assert str(caught.value) == (
        f"{tmp_path / 'made.nsys-rep'}: "
        "the blocks of the report are compressed with 'zstd', but tracekit supports only lz4\n"
        "Hint: run nsys export --type sqlite REPORT, and read the export"
    )


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            "2031.1.2.3-9",
            "written by nsys 2031.1.2.3, but tracekit supports 2019.5 to 2026.2: unknown parts",
        ),
        (
            "",
            (
                "the report does not contain the version of nsys: "
                "it is read as if the newest supported version had written it"
            ),
        ),
    ],
)
def test_unknown_build_is_warned_of_and_read(build: str, said: str, tmp_path: Path) -> None:
    block = event(59, 102, (1, 59), (2, 1), (9, 1 << 48), (10, 2))
    with pytest.warns(TracekitWarning, match=said):
        capture = written(tmp_path, Parts([block], sections={UI_DATA: message((6, build))}).pack())
    assert count_rows(capture, "nvtx_ranges") == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"NVIDIA Tegra Profiler Report 1.", "the file is truncated: it has only 31 bytes"),
        (
            Parts().pack()[:-16] + b"\xff" * 8 + b"U3w[END]",
            "the offset of the table of contents is 18446744073709551615, but the file has {size} bytes",
        ),
        (container(Parts().sections), "the section 'Raw Sampling Data' (0 bytes) does not begin with QDTEXT00"),
        (
            Parts().pack(blocks=[packed(b"x", size=1 << 40)]),
            "a block of 3 bytes declares a decompressed size of 1099511627776 bytes, but the size must be 1 to 765",
        ),
        (Parts().pack(blocks=[b"\x7f\x7f"]), "a block at byte {block} declares 127 bytes, but only 0 bytes are left"),
        (
            Parts().pack(blocks=[packed(event(59, 102))] * 1001),
            (
                "the first 1001 blocks of events have only 8008 bytes in total, "
                "but at least 4096 bytes per block are expected"
            ),
        ),
    ],
    ids=["short", "contents", "sections", "ratio", "block", "tiny"],
)  # fmt: skip
def test_damage_is_found_when_opened(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError) as caught:
        written(tmp_path, data)
    block = 8 + len(b"\0") + 1 + len(Parts().counts()) + 2
    expected = said.format(size=len(data), block=block)
    assert str(caught.value) == f"{tmp_path / 'made.nsys-rep'}: {expected}{AGAIN}"


RANGE = event(59, 102, (1, 59), (2, 1), (9, 1 << 48), (10, 2))


def test_the_last_of_many_equal_fields_counts(tmp_path: Path) -> None:
    block = packed(event(59, 102, (1, 59), *[(2, n) for n in range(5000)], (10, 9000)))
    capture = written(tmp_path, Parts().pack(blocks=[block]))
    assert rows(capture, "nvtx_ranges", "start_ns", "end_ns") == [(4999, 9000)]


OVERRUN = "a field extends beyond the end of its message"
EVENT_OVERRUN = "the payload of an event extends beyond the end of the event"


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (packed(RANGE, size=200), "a block of {packed} bytes does not decompress to the 200 bytes that it declares"),
        (packed(RANGE[:-1]), "a block of events is damaged at byte 0 of {left}"),
        (packed(b"\x08\x01"), "a block of events is damaged at byte 0 of 2"),
        (packed(event(59, 102, (7, b"")).replace(b"\x3a\0", b"\x3a\7")), OVERRUN),
        (packed(event(59, 102, (1, 59)) + message((1, b"\x08\x3b\xb2\x06\x7f"))), EVENT_OVERRUN),
        (packed(event(59, 102, (5, 1)).replace(b"\x28\1", b"\x2b\1")), "a field has an unknown wire type"),
        (packed(b"\x0a\0" * 200_000), "a block holds more than 131072 events, which tracekit does not support"),
    ],
    ids=["tail", "cut", "tag", "field", "event", "kind", "entries"],
)  # fmt: skip
def test_damage_is_found_when_read(block: bytes, said: str, tmp_path: Path) -> None:
    capture = written(tmp_path, Parts().pack(blocks=[block]))
    with pytest.raises(CorruptTraceError) as caught:
        tables(capture)
    expected = said.format(packed=block[0], left=len(RANGE) - 1)
    assert str(caught.value).startswith(f"{tmp_path / 'made.nsys-rep'}: ")
    assert str(caught.value).endswith(f": {expected}{AGAIN}")


FACTS_ONLY = Parts().sections


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            Parts(sections=FACTS_ONLY | {OFFSETS: message((2, 1 << 20))}, offsets=False),
            "the offset of the strings is 1048584",
        ),
        (
            Parts([RANGE], sections=FACTS_ONLY | {OFFSETS: message((2, 13))}, offsets=False),
            "the strings begin at byte 21",
        ),
        (
            Parts([RANGE], [b"\x0a\x05abc"], stream=message((1, 1), (3, 1), (9, "lz4"))),
            "block of strings is damaged at byte 7",
        ),
        (Parts([], [strings("a", "b")], stream=message((1, 0), (3, 1), (9, "lz4"))), "after 2 of 1 strings"),
        (
            Parts(stream=message((1, 0), (9, "lz4"), (13, message((1, 1 << 32), (3, 0))), (14, b"\x0b"))),
            "a field has the unknown wire type 3",
        ),
    ],
    ids=["beyond", "between", "strings", "more", "types"],
)
def test_parts_that_do_not_fit_together(parts: Parts, said: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError, match=said):
        tables(written(tmp_path, parts.pack()))


def test_reader_opens_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(Parts([RANGE]).pack())
    capture = READER.open(Source(path))
    assert isinstance(capture, NsysReportCapture)
    assert count_rows(capture, "nvtx_ranges") == 1
    assert count_rows(capture, "kernels") == 0
    capture.close()


def test_metrics_of_two_gpus_keep_the_order_of_the_file(tmp_path: Path) -> None:
    source, first = 1 << 48 | 1 << 32, message((1, 2), (2, 0), (3, 4))
    listed = [message((1, source | gpu), (3, first), (3, message((1, 1), (2, 4), (3, 1)))) for gpu in (0, 1)]
    stream = message((1, 0), (3, 3), (9, "lz4"), (13, message((1, source), (3, 0))), (14, listed[0]), (14, listed[1]))
    sample = lambda gpu, time: message((2, message((1, source | gpu), (2, time), (3, b"\1\0\0\xff\xff"))))  # noqa: E731
    other = message(*((2, message((1, type_id), (2, 0), (3, b""))) for type_id in (7, source | 0x300)))
    parts = Parts(
        [sample(1, 10) + sample(0, 11) + other + sample(1, 12)], [strings("GpuMetrics", "A [%]", "B")], stream=stream
    )
    capture = written(tmp_path, parts.pack())
    big, names = 0xFF000001, ("B", "A [%]")
    expected = [(t, g, i, names[i], (big, 255)[i]) for t, g in ((10, 1), (11, 0), (12, 1)) for i in (0, 1)]
    assert rows(capture, "gpu_metrics") == expected
    assert count_undecoded(capture.undecoded) == {"generic event": 1, "generic event of GpuMetrics": 1}


@pytest.mark.parametrize(
    "path", [*sorted(CAPTURES.glob("*.nsys-rep")), *(p.with_suffix(".nsys-rep") for p in MORE)], ids=lambda p: p.stem
)
def test_every_event_of_a_real_report_is_in_a_table_or_has_a_reason(path: Path) -> None:
    sizes = read(path).undecoded
    assert set(sizes) <= set(NOT_DECODED)
    assert all((size.bytes or 0) > size.count for size in sizes.values())


@pytest.mark.parametrize("build", ["2023.3.3.42-test", "2025.3.1.0-test"])
def test_contexts_have_their_device_whatever_recorded_them(build: str, tmp_path: Path) -> None:
    """nsys 2024.1 exports the device of a context that 2023.3 recorded."""
    context = message((14, message((1, 7), (4, 42), (5, 0), (6, 1))))
    parts = Parts([RANGE], rest=[context], sections={UI_DATA: message((6, build))})
    found = rows(written(tmp_path, parts.pack()), "contexts", "process_id", "context_id", "device_id", "null_stream_id")
    assert found == [(42, 1, 0, 7)]


@pytest.mark.parametrize(("build", "exported"), [("2025.3.2.474-test", False), ("2025.5.1.121-test", True)])
def test_cuda_events_have_times_from_2025_5_on(build: str, exported: bool, tmp_path: Path) -> None:
    made = event(127, 107, (1, 0), (3, 5), (4, 0), (5, 1), (6, 7), (8, 7 << 24), (106, message((1, 2))))
    capture = written(tmp_path, Parts([made], sections={UI_DATA: message((6, build))}).pack())
    assert rows(capture, "cuda_events", "timestamp_ns") == [(0 if exported else None,)]


@pytest.mark.parametrize("size", range(1, 9))
def test_metrics_of_every_size_are_as_nsys_exports_them(size: int, tmp_path: Path) -> None:
    """Those of 3 bytes are signed: from 2^23 on nsys 2025.3 shows them less by 2^24."""
    source, half = 1 << 48, 1 << (8 * size - 1)
    listed = message((1, source), (3, message((1, 1), (2, 1), (3, size))))
    stream = message((1, 0), (3, 2), (9, "lz4"), (13, message((1, source), (3, 0))), (14, listed))
    numbers = [0, 1, half - 1, half, 2 * half - 1]
    samples = [b"\xff" + n.to_bytes(size, "little") + b"\xff" for n in numbers]
    block = b"".join(message((2, message((1, source), (2, 5), (3, s)))) for s in samples)
    capture = written(tmp_path, Parts([block], [strings("GpuMetrics", "A")], stream=stream).pack())
    signed = [n - 2 * half if n >= half else n for n in numbers]
    expected = numbers if size in (1, 2, 4) else signed
    assert [v for (v,) in rows(capture, "gpu_metrics", "value")] == expected


def test_nothing_is_warned_of_in_a_whole_report(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tables(written(tmp_path, Parts([RANGE]).pack()))
    assert pc.sum(found["nvtx_ranges"]["end_ns"]).as_py() == 2
