"""Counters of programs and plug-ins (generic events), and events of the operating system counted in intervals."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, Value, message, strings
from tests.builders.nsys_sqlite import FIXTURES, edited, plain
from tracekit.errors import CorruptTraceError, TracekitWarning

COUNTERS, EVENTS = FIXTURES / "counters" / "nvtx_counters", FIXTURES / "counters" / "os_events"
FORMS = (".nsys-rep", ".sqlite")
SOURCE = 1 << 48 | 3 << 32
SIGNED, UNSIGNED, FLOAT, DOUBLE = range(4)
VALUES = """
    SELECT d.rowid, d.genericEventId, e.timestamp, (e.globalTid >> 24) & 0xFFFFFF, e.globalTid & 0xFFFFFF,
           'GenericCounters', (SELECT value FROM StringIds WHERE id = t.nameId),
           (SELECT value FROM StringIds WHERE id = f.fieldNameId),
           CASE WHEN intVal NOT NULL THEN 'int64' WHEN uintVal NOT NULL THEN 'uint64'
                WHEN floatVal NOT NULL THEN 'float' ELSE 'double' END,
           coalesce(intVal, uintVal), coalesce(floatVal, doubleVal)
    FROM GENERIC_EVENT_DATA d JOIN GENERIC_EVENTS e USING (genericEventId) JOIN GENERIC_EVENT_TYPES t USING (typeId)
    JOIN GENERIC_EVENT_TYPE_FIELDS f ON f.typeId = t.typeId AND f.fieldIdx = d.fieldIdx ORDER BY d.rowid"""
INTERVALS = """
    SELECT p.rowid, start, "end", p.componentId, c.name, c.instance, p.eventId, m.name, m.unit, count
    FROM PERF_EVENT_SOC_OR_CPU_RAW_EVENT p JOIN TARGET_INFO_COMPONENT c USING (componentId)
    JOIN TARGET_INFO_PERF_METRIC m ON m.id = p.eventId ORDER BY p.rowid"""


def rows(path: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    with tk.load(path) as trace:
        found = trace.table(table, columns or None)
        assert trace.count(table) == found.num_rows
        return list(zip(*(c.to_pylist() for c in found.columns), strict=True))


def test_an_export_is_read_as_sql_reads_it() -> None:
    export = COUNTERS.with_suffix(".sqlite")
    found = rows(export, "counters")
    assert found == plain(export, VALUES)
    assert len(found) == 355
    assert found[-1][-2] == -50
    with tk.load(export) as trace:
        assert not {"GENERIC_EVENTS", "GENERIC_EVENT_DATA", "GENERIC_EVENT_TYPES"} & trace.undecoded.keys()


def test_a_report_is_read_like_its_export_but_for_samples_without_values() -> None:
    """The export has the reason as the value: 0 that it is zero, 1 that it is unchanged, 2 that it is unavailable."""
    mine, theirs = (rows(COUNTERS.with_suffix(form), "counters") for form in FORMS)
    assert len(mine) == len(theirs)
    different = [(m, t) for m, t in zip(mine, theirs, strict=True) if m != t]
    assert [(m[:8], m[8:], t[8:]) for m, t in different] == [
        (t[:8], (None, None, None), ("int64", reason, None))
        for (_, t), reason in zip(different, (1, 2, 1), strict=True)
    ]
    with tk.load(COUNTERS.with_suffix(".nsys-rep")) as trace:
        assert trace.undecoded.keys() == {"start or finish mark"}


def test_intervals_of_both_forms_are_as_sql_reads_them() -> None:
    expected = plain(EVENTS.with_suffix(".sqlite"), INTERVALS)
    assert len(expected) == 162
    for form in FORMS:
        assert rows(EVENTS.with_suffix(form), "performance_counters") == expected
        with tk.load(EVENTS.with_suffix(form)) as trace:
            assert not {"performance counter", "PERF_EVENT_SOC_OR_CPU_RAW_EVENT"} & trace.undecoded.keys()


@pytest.mark.parametrize("form", FORMS)
def test_they_are_drawn(form: str, tmp_path: Path) -> None:
    drawn = {}
    for path in (COUNTERS, EVENTS):
        with tk.load(path.with_suffix(form)) as trace:
            trace.export(tmp_path / "out.json", format="chrome-trace", overwrite=True)
        events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
        drawn[path.name] = [(e["name"], e["args"]) for e in events if e["ph"] == "C"]
    counters = drawn["nvtx_counters"]
    assert {name for name, _ in counters} == {
        *("queue length", "temperature", "static id"),
        *("pool: used", "pool: load", "pool: total", "pool: t"),
    }
    assert len(counters) == (352 if form == ".nsys-rep" else 355)
    assert ("static id", {"value": 2**64 - 1}) in counters
    assert ("pool: load", {"value": 1 / 3}) in counters
    counts = plain(EVENTS.with_suffix(".sqlite"), INTERVALS)
    assert sorted(drawn["os_events"], key=str) == sorted(((str(r[7]), {"count": r[-1]}) for r in counts), key=str)


def layout(number: int, name: int, *fields: tuple[int, int, int, int]) -> bytes:
    """The layout of an event type: name, offset, size and type of each value."""
    listed = [(3, message((1, field), (2, at), (3, size), (8, kind))) for field, at, size, kind in fields]
    return message((1, SOURCE | number), (2, name), *listed)


def sample(number: int, time: int, data: bytes, *more: tuple[int, Value]) -> bytes:
    return message((2, message((1, SOURCE | number), (2, time), (3, data), *more)))


def written(folder: Path, layouts: list[bytes], *blocks: bytes) -> Path:
    path = folder / "made.nsys-rep"
    stream = message((13, message((1, SOURCE), (3, 0))), *((14, listed) for listed in layouts))
    parts = Parts(blocks, [strings("GenericCounters", "group", "a", "b", "c", "d")])
    path.write_bytes(Parts(blocks, parts.strings, stream=parts.counts() + stream).pack())
    return path


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_integers_of_every_size(size: int, kind: int, tmp_path: Path) -> None:
    half = 1 << (8 * size - 1)
    numbers = [0, 1, half - 1, half, 2 * half - 1]
    samples = [sample(1, 5, b"\xff" + n.to_bytes(size, "little") + b"\xff") for n in numbers]
    path = written(tmp_path, [layout(1, 1, (2, 1, size, kind))], b"".join(samples))
    signed = kind == SIGNED or size == 8
    expected = [n - 2 * half if n >= half and signed else n for n in numbers]
    name = "int64" if kind == SIGNED else "uint64"
    assert rows(path, "counters", "value_type", "value_int", "value_float") == [(name, n, None) for n in expected]


def test_values_of_several_types_over_several_blocks(tmp_path: Path) -> None:
    dice = random.Random(1)
    layouts = [
        layout(1, 1, (2, 0, 4, FLOAT), (3, 8, 8, DOUBLE)),
        layout(2, 9, (4, 0, 2, SIGNED)),
        layout(3, 1, (5, 4, 4, UNSIGNED), (2, 0, 1, SIGNED)),
    ]
    blocks, expected = [], []
    for time in range(300):
        kind = dice.choice((1, 2, 3))
        origin = message((2, 1), (3, 7), (4, time + 1))
        numbers: list[tuple[str, str | None, str, int | None, float | None]]
        if kind == 1:
            real, half = dice.random(), dice.randrange(100) / 2
            data = struct.pack("<fxxxxd", half, real)
            numbers = [("group", "a", "float", None, half), ("group", "b", "double", None, real)]
        elif kind == 2:
            number = dice.randrange(-1000, 1000)
            data, numbers = struct.pack("<h", number), [("", "c", "int64", number, None)]
        else:
            one, two = dice.randrange(1 << 32), dice.randrange(-128, 128)
            data = struct.pack("<bxxxI", two, one)
            numbers = [("group", "d", "uint64", one, None), ("group", "a", "int64", two, None)]
        if time % 100 == 0:
            blocks.append(b"")
        blocks[-1] += sample(kind, time, data, *([] if time % 7 == 0 else [(4, origin)]))
        thread = (None, None) if time % 7 == 0 else (7, time + 1)
        expected += [(time + 1, time, *thread, "GenericCounters", n or None, *rest) for n, *rest in numbers]
    found = rows(written(tmp_path, layouts, *blocks), "counters")
    assert [r[1:] for r in found] == expected
    assert [r[0] for r in found] == list(range(1, len(expected) + 1))


@pytest.mark.parametrize(
    "fields",
    [
        [(2, 0, 4, SIGNED), (3, 2, 4, SIGNED)],
        [(2, 0, 3, UNSIGNED)],
        [(2, 0, 8, FLOAT)],
        [(2, 0, 4, 9)],
        [(2, 1 << 20, 4, SIGNED)],
        [],
    ],
)
def test_layouts_that_are_not_understood_are_counted(fields: list[tuple[int, int, int, int]], tmp_path: Path) -> None:
    path = written(tmp_path, [layout(1, 1, *fields)], sample(1, 5, b"\0" * 16))
    assert rows(path, "counters") == []
    with tk.load(path) as trace:
        assert {name: found.count for name, found in trace.undecoded.items()} == {"generic event of GenericCounters": 1}


@pytest.mark.parametrize(("data", "value"), [(b"\0", 0), (b"\1", None), (b"\xff", None)])
def test_samples_without_values(data: bytes, value: int | None, tmp_path: Path) -> None:
    path = written(tmp_path, [layout(1, 1, (2, 0, 4, SIGNED), (3, 4, 4, UNSIGNED))], sample(1, 5, data))
    kinds = (None, None) if value is None else ("int64", "uint64")
    assert rows(path, "counters", "value_type", "value_int") == [(kind, value) for kind in kinds]


def test_a_sample_that_is_too_short(tmp_path: Path) -> None:
    path = written(tmp_path, [layout(1, 1, (2, 0, 4, SIGNED))], sample(1, 5, b"\1\2\3"))
    with pytest.raises(CorruptTraceError, match="a counter sample is shorter than the values that the event type"):
        rows(path, "counters", "value_int")


def test_incomplete_samples_are_warned_of(tmp_path: Path) -> None:
    without = [message((2, message(*fields))) for fields in ([(1, SOURCE | 1), (2, 3)], [(1, SOURCE | 1), (3, b"1")])]
    path = written(tmp_path, [layout(1, 1, (2, 0, 1, SIGNED))], sample(1, 5, b"\7") + b"".join(without))
    with (
        tk.load(path) as trace,
        pytest.warns(TracekitWarning, match="2 unknown or incomplete events were skipped"),
    ):
        assert trace["counters"]["value_int"].to_pylist() == [7]


def test_an_export_with_events_in_any_order_or_missing(tmp_path: Path) -> None:
    source = COUNTERS.with_suffix(".sqlite")
    turned = edited(
        tmp_path,
        "CREATE TABLE old AS SELECT * FROM GENERIC_EVENTS",
        "DROP TABLE GENERIC_EVENTS",
        "CREATE TABLE GENERIC_EVENTS AS SELECT * FROM old ORDER BY genericEventId DESC",
        of="counters/nvtx_counters",
    )
    assert rows(turned, "counters") == plain(source, VALUES)
    lost = edited(tmp_path, "DELETE FROM GENERIC_EVENTS WHERE genericEventId = 9", of="counters/nvtx_counters")
    with pytest.raises(CorruptTraceError, match="table GENERIC_EVENT_DATA, row 9: timestamp_ns is null"):
        rows(lost, "counters")
    missing = edited(tmp_path, "DROP TABLE GENERIC_EVENTS", of="counters/nvtx_counters")
    with pytest.raises(CorruptTraceError, match="timestamp_ns is null"):
        rows(missing, "counters")


def test_names_may_be_missing(tmp_path: Path) -> None:
    lost = [f"DROP TABLE {t}" for t in ("GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS", "GENERIC_EVENT_SOURCES")]
    path = edited(tmp_path, *lost, of="counters/nvtx_counters")
    assert set(rows(path, "counters", "source", "name", "field")) == {(None, None, None)}
    dropped = [f"DROP TABLE {t}" for t in ("TARGET_INFO_COMPONENT", "TARGET_INFO_PERF_METRIC")]
    path = edited(tmp_path, *dropped, of="counters/os_events")
    named = ("component", "instance", "metric", "metric_unit")
    assert set(rows(path, "performance_counters", *named)) == {(None,) * 4}
