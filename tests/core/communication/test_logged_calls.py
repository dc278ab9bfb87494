"""Collectives that logs state: those that a job hangs in, their bandwidths, and their matches across ranks."""

from __future__ import annotations

import polars as pl
import pytest
from tests.builders.communication import calls, nccl, nccl_kernel, scene
from tests.exporters.test_chrome_trace import kernel, trace
from tracekit.core.communication import (
    find_pending_operations,
    join_logged_calls,
    list_pending_sentences,
    match_calls,
    read_communication_calls,
    read_log_tables,
    read_logged_states,
)
from tracekit.core.communication.logged import read_logged_durations, summarize_logged_durations
from tracekit.core.diagnosis import Why, explain_hang

Row = dict[str, object]
WORLD: Row = {"communicator": "0 [0, 1, 2] of 3", "communicator_name": "world", "communicator_size": 3}
WORLD |= {"member_ranks": "[0, 1, 2]"}


def logged(number: int, **more: object) -> Row:
    """A completed all-reduce of four floats."""
    row: Row = {"communication_call_id": number, "library": "NCCL", "kind": "all_reduce", "sequence": number, **WORLD}
    row |= {"state": "completed", "created_ns": 100 * number, "data_type": "float32", "message_bytes": 16}
    return row | more


def states(*logs: list[Row]) -> pl.DataFrame:
    """The states of the calls of several ranks, numbered from 0."""
    frames = []
    for rank, rows in enumerate(logs):
        numbered = [{**row, "communication_call_id": n, "rank": rank} for n, row in enumerate(rows, 1)]
        read = read_logged_states(trace(communication_calls=numbered).frame)
        frames.append(read.with_columns(rank=pl.lit(rank, pl.Int64)))
    return pl.concat(frames)


def pending(*logs: list[Row]) -> list[tuple[object, ...]]:
    found = find_pending_operations(states(*logs))
    columns = ("sequence", "problem", "entered_ranks", "missing_ranks", "unknown_ranks", "completed_ranks")
    return found.select(columns).rows()


def test_a_job_that_does_not_hang() -> None:
    assert pending([logged(1), logged(2)], [logged(1), logged(2)], [logged(1), logged(2)]) == []
    assert list_pending_sentences(find_pending_operations(states([logged(1)]))) == []


def test_a_rank_has_not_entered_a_collective() -> None:
    waiting = logged(2, state="started")
    logs = [logged(1), waiting], [logged(1)], [logged(1), waiting | {"state": "scheduled"}]
    assert pending(*logs) == [(2, "missing ranks", "0, 2", "1", None, None)]
    found = find_pending_operations(states(*logs))
    assert found["waiting_ns"].to_list() == [0]
    assert list_pending_sentences(found) == [
        "Rank 1 has not entered all_reduce #2 of world (communicator 0 [0, 1, 2] of 3), in which rank 0, 2 waits."
    ]


def test_a_rank_without_a_log_is_unknown() -> None:
    waiting = logged(2, state="started")
    assert pending([waiting], [waiting]) == [(2, "not completed", "0, 1", None, "2", None)]
    (sentence,) = list_pending_sentences(find_pending_operations(states([waiting], [waiting])))
    assert sentence.endswith(
        "has not completed all_reduce #2 of world (communicator 0 [0, 1, 2] of 3); no log of rank 2."
    )


def test_a_rank_of_which_only_later_collectives_are_logged_is_not_missing() -> None:
    logs = [logged(2, state="started")], [logged(5)], [logged(2), logged(5)]
    assert pending(*logs) == [(2, "not completed", "0, 2", None, None, "2")]


def test_ranks_that_call_different_collectives() -> None:
    logs = [logged(2, state="started")], [logged(2, kind="all_gather", state="started")], [logged(2)]
    assert pending(*logs)[0][:3] == (2, "different calls", "0, 1, 2")
    sizes = [logged(3)], [logged(3, message_bytes=32)], [logged(3)]
    assert pending(*sizes)[0][1] == "different calls"
    uneven = [logged(3, kind="all_to_all")], [logged(3, kind="all_to_all", message_bytes=32)], []
    assert pending(*uneven) == []


def test_causes_are_listed_instead_of_what_waits_for_them() -> None:
    other: Row = {"communicator": "1", "communicator_name": None, "member_ranks": None, "communicator_size": 2}
    waiting = logged(7, state="started", **other)
    message = logged(1, kind="send", peer=1, state="scheduled", **other)
    logs = [logged(2, state="started"), waiting, message], [waiting], [logged(2, state="started")]
    found = find_pending_operations(states(*logs))
    assert found["problem"].to_list() == ["missing ranks", "not completed", "not completed"]
    assert list_pending_sentences(found) == [found["sentence"][0]]
    rest = list_pending_sentences(found.filter(pl.col("problem") == "not completed"))
    assert rest == [
        "Rank 0 has not completed send #1 of communicator 1 with rank 1 of the communicator.",
        "Rank 0, 1 has not completed all_reduce #7 of communicator 1.",
    ]


def test_many_pending_operations_are_counted() -> None:
    rows = [logged(n, kind="send", peer=1, state="scheduled") for n in range(1, 26)]
    sentences = list_pending_sentences(find_pending_operations(states(rows)))
    assert (len(sentences), sentences[-1]) == (21, "5 more operations are not completed.")


def test_long_lists_of_ranks_are_cut() -> None:
    members = {"member_ranks": str(list(range(12))), "communicator_size": 12}
    found = find_pending_operations(states([logged(2, state="started", **members)], [logged(1, **members)]))
    assert found.select("missing_ranks", "unknown_ranks").row(0) == ("1", "2, 3, 4, 5, 6, 7, 8, 9, …")


def test_bandwidths_of_logged_durations() -> None:
    rows = [
        logged(1, kind=kind, duration_ns=50, message_bytes=100, communicator_size=4)
        for kind in ("all_reduce", "all_gather")
    ]
    rows += [logged(2, duration_ns=None, start_ns=10, end_ns=110, message_bytes=100, communicator_size=4)]
    rows += [logged(3, duration_ns=None), logged(4, kind=None, duration_ns=5)]
    rows += [logged(n, kind="send", duration_ns=20, message_bytes=40, communicator_size=4) for n in (5, 5)]
    numbered = [{**row, "communication_call_id": n} for n, row in enumerate(rows, 1)]
    read = read_logged_durations(trace(communication_calls=numbered).frame)
    slower = read.with_columns(pl.col("duration_ns") + 30, sequence=pl.col("sequence"))
    both = pl.concat([r.with_columns(rank=pl.lit(n, pl.Int64)) for n, r in enumerate((read, slower))])
    found = summarize_logged_durations(both)
    facts = {row["kind"]: row for row in found.iter_rows(named=True)}
    assert {k: (r["count"], r["call_count"], r["time_ns"], r["bytes"]) for k, r in facts.items()} == {
        "all_reduce": (2, 4, 150, 100),
        "all_gather": (1, 2, 50, 400),
        "send_recv": (4, 4, 140, 40),
    }
    assert facts["all_reduce"]["algorithm_gb_per_s"] == pytest.approx(200 / 150)
    assert facts["all_reduce"]["bus_gb_per_s"] == pytest.approx(200 / 150 * 1.5)
    assert facts["send_recv"]["bus_gb_per_s"] == pytest.approx(160 / 140)


def test_logged_calls_are_communication_calls_with_their_kernels() -> None:
    (row, call) = nccl_kernel(15, 40, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 12)
    computing = kernel(20, 25, name="gemm", short_name="gemm", stream_id=9)
    rows = [
        logged(1, kernel_id=1, start_ns=15, end_ns=40, **{name: row[name] for name in ("device_id", "process_id")}),
        logged(2),
        logged(3, kind=None),
    ]
    linked = trace(communication_calls=rows, kernels=[row, computing], api_calls=[call]).correlate()
    found = read_communication_calls(linked.frame)
    columns = ("kernel_id", "kernel_start_ns", "kernel_calls", "hidden_ns", "call_start_ns", "recorded_sequence")
    assert found.select(columns).sort("recorded_sequence").rows() == [
        (1, 15, 1, 5, 100, 1),
        (None, None, None, None, 200, 2),
    ]
    assert read_communication_calls(scene([], []).frame).height == 0


def test_logged_numbers_match_collectives_without_shifting_them() -> None:
    frames = []
    for rank, numbers in enumerate(([4, 5, 6], [6, 7])):
        rows = [logged(n, communicator_size=2) for n in numbers]
        read = read_communication_calls(trace(communication_calls=rows).correlate().frame)
        frames.append(read.with_columns(rank=pl.lit(rank, pl.Int64)))
    matched = match_calls(pl.concat(frames), {0: 0, 1: 0})
    assert matched.select("rank", "sequence", "status").sort("sequence", "rank").rows() == [
        (0, 4, "unmatched"),
        (0, 5, "unmatched"),
        (0, 6, "matched"),
        (1, 6, "matched"),
        (1, 7, "unmatched"),
    ]


def test_logged_calls_are_joined_with_the_calls_during_which_they_were_logged() -> None:
    def captured(rank: int, start: int | None, end: int | None, **more: object) -> Row:
        return nccl(rank, 0, 1, **{"call_start_ns": start, "call_end_ns": end, "communicator": "a"} | more)

    far = 1_000_000
    listed = [
        captured(0, 10, 20),
        captured(0, far, far + 10, communicator="b"),
        captured(0, 2 * far, 2 * far + 10),
        captured(0, None, None),
        captured(1, 10, 20),
        captured(2, 10, 20),
    ]
    columns: Row = {"kind": "all_reduce", "state": "completed", "duration_ns": 1, "algorithm": None, "protocol": None}
    columns |= {"user_stack_id": None}
    entries = [
        {"rank": 0, "communicator": "a", "sequence": 1, "created_ns": 15},
        {"rank": 0, "communicator": "a", "sequence": 2, "created_ns": far + 5},  # of another communicator
        {"rank": 0, "communicator": "hash", "sequence": 3, "created_ns": 2 * far + 5},  # named otherwise
        {"rank": 0, "communicator": "a", "sequence": 4, "created_ns": 3 * far},  # during no call
        {"rank": 1, "communicator": "a", "sequence": 5, "created_ns": 15},  # without a UTC time
    ]
    logged_calls = pl.DataFrame(
        [{**columns, **entry, "communication_call_id": n} for n, entry in enumerate(entries)],
        schema_overrides={"algorithm": pl.String, "protocol": pl.String, "user_stack_id": pl.Int64},
    )
    joined = join_logged_calls(calls(listed), {0: 100, 1: 100, 2: None}, logged_calls, {0: 100, 1: None, 2: 100})
    assert joined.select("rank", "communicator", "sequence").rows() == [
        (0, "a", 1),
        (0, "b", None),
        (0, "a", 3),
        (1, "a", None),
        (2, "a", None),
    ]


def test_a_log_alone_tells_what_its_rank_waits_for() -> None:
    waiting = trace(communication_calls=[logged(1), logged(2, state="started")]).why()
    assert waiting.status == "answered"
    assert waiting.sentence.startswith("Rank ")
    assert "has not completed all_reduce #2 of world" in waiting.sentence
    assert trace(communication_calls=[logged(1)]).why().status == "not_applicable"
    assert trace().why().status == "not_applicable"


def test_a_job_that_hangs_is_answered_by_its_logs() -> None:
    answer = Why("Nothing.", "not_applicable", notes=("a note",))
    logs = states([logged(2, state="started")], [logged(1)])
    hung = explain_hang(answer, logs)
    assert (hung.status, hung.notes) == ("answered", ("a note",))
    assert hung.sentence.startswith("Rank 1 has not entered all_reduce #2")
    assert explain_hang(answer, logs.clear()) is answer


def test_the_calls_of_a_log_by_which_it_is_joined() -> None:
    info = [{"name": "origin_utc_ns", "value": "7"}]
    rows = [logged(1, algorithm="RING"), logged(2, created_ns=None), logged(3, kind=None)]
    tables = read_log_tables(trace(communication_calls=rows, capture_info=info).frame)
    (row,) = tables["communication_calls"].rows(named=True)
    assert (row["sequence"], row["created_ns"], row["algorithm"]) == (1, 100, "RING")
    assert tables["origins"].rows() == [(7,)]
