"""Call stacks are those of the rows of call chains, whatever form they are read from."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import SHARED, Parts, event, message, strings
from tests.builders.nsys_sqlite import edited, stacks_of
from tests.readers.test_nsys_rep import rows, written
from tracekit.errors import CorruptTraceError
from tracekit.readers.nsys import stacks as nsys_stacks
from tracekit.readers.nsys_rep import events

OSRT = Path(__file__).parents[2] / "fixtures" / "osrt_libs.sqlite"
WITH_STACKS = [
    OSRT,
    *(SHARED / "captures" / "h200_more" / f"{name}.sqlite" for name in ("pystacks", "omp", "syscalls")),
]
PATHS = [p for export in WITH_STACKS if export.exists() for p in (export, export.with_suffix(".nsys-rep"))]
THREAD = (11, 1 << 48 | 7 << 24 | 9)


def paths(trace: tk.Trace) -> dict[int, tuple[tuple[object, ...], ...]]:
    """The frames of every stack, innermost first."""
    found: dict[int, tuple[tuple[object, ...], ...]] = {}
    for row in trace["stacks"].to_pylist():
        key, parent, depth, *frame = row.values()
        found[key] = (tuple(frame), *(found[parent] if parent is not None else ()))
        assert len(found[key]) == depth
    assert list(found) == list(range(1, len(found) + 1))
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.name)
def test_every_stack_is_that_of_its_call_chain(path: Path) -> None:
    stacks, of_rows = stacks_of(path.with_suffix(".sqlite"))
    assert stacks
    with tk.load(path) as trace:
        paths(trace)
        listed = trace["stacks"].to_pylist()
        assert listed[: len(stacks)] == stacks
        assert all(row["line"] is not None for row in listed[len(stacks) :])
        assert trace.count("stacks") == len(listed)
        for table, known in of_rows.items():
            found = trace.table(table, [trace.schema(table).names[0], "stack_id"]).to_pylist()
            assert {row: stack for row, stack in (r.values() for r in found) if stack is not None} == known


def frame(symbol: int, address: int, *fields: tuple[int, int]) -> tuple[int, bytes]:
    return (4, message((1, symbol), (2, 2), *fields, (8, address)))


def sample(time: int, *frames: tuple[int, bytes]) -> bytes:
    return event(31, 104, (1, time), (3, 0), *frames, (5, message((2, 1))), THREAD)


def stacks(tmp_path: Path, *events: bytes) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    capture = written(tmp_path, Parts([b"".join(events)], [strings("main", "work", "app", "wait")]).pack())
    columns = ("stack_id", "parent_id", "depth", "symbol", "module", "original_ip")
    return rows(capture, "stacks", *columns), rows(capture, "cpu_samples", "stack_id")


def test_stacks_share_their_callers(tmp_path: Path) -> None:
    main, work, wait = frame(0, 16), frame(1, 32), frame(3, 48)
    made, of_samples = stacks(
        tmp_path, sample(1, work, main), sample(2), sample(3, wait, work, main), sample(4, main), sample(5, wait, main)
    )
    assert made == [
        (1, None, 1, "main", "app", 16),
        (2, 1, 2, "work", "app", 32),
        (3, 2, 3, "wait", "app", 48),
        (4, 1, 2, "wait", "app", 48),
    ]
    assert of_samples == [(2,), (None,), (3,), (1,), (4,)]


def test_frames_differ_by_address_and_by_flags(tmp_path: Path) -> None:
    variants = [frame(0, 16), frame(0, 1 << 63), frame(0, 16, (4, 0)), frame(0, 16, (4, 1)), frame(0, 16, (6, 1))]
    variants += [frame(0, 16, (3, 0)), frame(0, 16, (5, 0)), frame(0, 16, (9, 7)), frame(0, 16, (9, 0))]
    variants += [(4, message((1, 0), (2, 2)))]
    made, of_samples = stacks(tmp_path, *(sample(n, v) for n, v in enumerate(variants)), sample(99, variants[3]))
    assert of_samples == [*((n,) for n in range(1, 11)), (4,)]
    assert [row[-1] for row in made] == [16, -(1 << 63), *[16] * 7, None]


@pytest.mark.parametrize("kept", [0, 30, 1 << 20])
def test_stacks_of_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(events, "BATCH_BYTES", 1)
    monkeypatch.setattr(nsys_stacks, "MAX_KNOWN_BYTES", kept)
    main, work, wait = frame(0, 16), frame(1, 32), frame(3, 48)
    some = [[work, main], [], [main], [wait, work, main], [work, main], [wait, main]]
    blocks = [b"".join(sample(10 * n + i, *some[(n + i) % len(some)]) for i in range(3)) for n in range(8)]
    capture = written(tmp_path, Parts(blocks, [strings("main", "work", "app", "wait")]).pack())
    numbers = [2, None, 1, 3, 2, 4]
    expected = [(numbers[(n + i) % len(some)],) for n in range(8) for i in range(3)]
    assert rows(capture, "cpu_samples", "stack_id") == expected
    assert rows(capture, "stacks", "parent_id", "symbol") == [(None, "main"), (1, "work"), (2, "wait"), (1, "wait")]


def test_fields_between_frames_do_not_matter(tmp_path: Path) -> None:
    main, work = frame(0, 16), frame(1, 32)
    between = event(31, 104, (1, 1), work, (3, 5), main, (6, 1))
    made, of_samples = stacks(tmp_path, between, sample(2, work, main))
    assert len(made) == 2
    assert of_samples == [(2,), (2,)]


def test_a_frame_without_strings_has_no_names(tmp_path: Path) -> None:
    with pytest.warns(tk.TracekitWarning, match="1 row of stacks refers to strings that the file lacks"):
        made, _ = stacks(tmp_path, sample(1, frame(77, 16)), sample(2, (4, b"")))
    assert [row[3:] for row in made] == [(None, "app", 16), (None, None, None)]


def test_a_frame_that_is_no_message_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError, match="a field extends beyond the end of its message"):
        stacks(tmp_path, sample(1, (4, b"\x0a\x05a")))
    with pytest.raises(CorruptTraceError, match="field 1 of a frame holds bytes instead of a number"):
        stacks(tmp_path, sample(1, (4, message((1, b"main")))))


def test_call_chains_in_any_order_of_rows(tmp_path: Path) -> None:
    copy = "CREATE TABLE other AS SELECT * FROM SAMPLING_CALLCHAINS ORDER BY stackDepth DESC, id DESC"
    path = edited(
        tmp_path,
        copy,
        "DROP TABLE SAMPLING_CALLCHAINS",
        "ALTER TABLE other RENAME TO SAMPLING_CALLCHAINS",
        of="osrt_libs",
    )
    with tk.load(path) as mixed, tk.load(OSRT) as plain:
        assert mixed["stacks"].equals(plain["stacks"])
        assert mixed["cpu_samples"].equals(plain["cpu_samples"])


def test_call_chains_whose_numbers_have_gaps(tmp_path: Path) -> None:
    gone = "DELETE FROM SAMPLING_CALLCHAINS WHERE id IN (2, 3, 50)"
    with tk.load(edited(tmp_path, gone, of="osrt_libs")) as trace, tk.load(OSRT) as plain:
        mine, theirs = (t["cpu_samples"]["stack_id"].to_pylist() for t in (trace, plain))
        assert [n for n, stack in enumerate(mine, 1) if stack is None] == [2, 3, 50]
        mine_paths, their_paths = paths(trace), paths(plain)
        assert all(a is None or mine_paths[a] == their_paths[b] for a, b in zip(mine, theirs, strict=True))


def test_an_export_without_call_chains_has_no_stacks(tmp_path: Path) -> None:
    drop = [f"DROP TABLE {t}_CALLCHAINS" for t in ("SAMPLING", "OSRT")]
    with tk.load(edited(tmp_path, *drop, of="osrt_libs")) as trace:
        assert trace.count("stacks") == trace["stacks"].num_rows == 0
        assert trace["cpu_samples"]["stack_id"].null_count == trace.count("cpu_samples") == 96


def test_an_export_with_some_call_chains(tmp_path: Path) -> None:
    with tk.load(edited(tmp_path, "DROP TABLE SAMPLING_CALLCHAINS", of="osrt_libs")) as trace:
        assert trace["cpu_samples"]["stack_id"].null_count == 96
        assert trace["osrt_calls"]["stack_id"].drop_null().unique().to_pylist()[0] > 0
    with tk.load(edited(tmp_path, "DELETE FROM OSRT_CALLCHAINS", of="osrt_libs")) as trace:
        assert trace["osrt_calls"]["stack_id"].null_count == trace.count("osrt_calls")


def test_only_what_is_asked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.readers.nsys import stacks as module

    monkeypatch.setattr(module.StackBuilder, "__init__", lambda *_: pytest.fail("stacks are read"))
    with tk.load(OSRT) as trace:
        assert trace.table("cpu_samples", ["thread_id"]).num_rows == 96
