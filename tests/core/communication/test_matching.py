"""Calls of several ranks are matched as the ranks made them, whatever part of them each capture contains."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.communication import Row, calls, nccl
from tracekit.core.communication import match_calls

NO_ORIGINS = dict.fromkeys(range(8), 0)


def matched(rows: list[Row], *columns: str) -> list[tuple[object, ...]]:
    return match_calls(calls(rows), NO_ORIGINS).select(columns).rows()


def at(number: int) -> int:
    """An irregular time of the n-th collective."""
    return 1_000_000 * number + 1000 * (number * number * 7919 % 977)


@given(st.data())
def test_collectives_match_in_the_order_of_each_communicator(data: st.DataObject) -> None:
    """Captures begin and end at different collectives, and their clocks differ."""
    kinds = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2)), min_size=24, max_size=40))
    rows: list[Row] = []
    truth: dict[tuple[int, int], int] = {}
    for rank in range(data.draw(st.integers(2, 4))):
        first, last = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        clock = data.draw(st.integers(-(10**9), 10**9))
        for n, (communicator, size) in list(enumerate(kinds))[first : len(kinds) - last]:
            end = at(n) + clock + data.draw(st.integers(0, 900))
            truth[rank, end] = n
            rows.append(nccl(rank, end - 1000, end, communicator=communicator, message_bytes=size))
    found = match_calls(calls(data.draw(st.permutations(rows))), NO_ORIGINS)
    groups: dict[int, set[int]] = {}
    for group, rank, end in found.select("collective_id", "rank", "end_ns").rows():
        groups.setdefault(group, set()).add(truth[rank, end])
    assert found.height == len(rows)
    long = [c for c in "ab" if sum(k == c for k, _ in kinds) > 12]
    of_long = found.filter(pl.col("communicator").is_in(long))
    for group in of_long["collective_id"].unique():
        assert len(groups[group]) == 1
    assert of_long["collective_id"].n_unique() == len({n for (_, _), n in truth.items() if kinds[n][0] in long})


def test_members_and_status() -> None:
    rows = [nccl(0, 0, 10), nccl(1, 1, 11), nccl(2, 2, 12), nccl(0, 100, 110), nccl(1, 100, 110)]
    rows += [nccl(3, 500, 510, communicator="8")]
    rows[0]["communicator_size"] = rows[5]["communicator_size"] = 4
    expected = [(1, 3, "incomplete", 0)] * 3 + [(2, 2, "incomplete", 1)] * 2 + [(3, 1, "unmatched", 0)]
    assert matched(rows, "collective_id", "rank_count", "status", "sequence") == expected
    for row in rows:
        row["communicator_size"] = None
    assert matched(rows[:3], "status", "communicator_size", "communicator_rank") == [
        ("matched", 3, n) for n in range(3)
    ]


def test_different_kinds_or_sizes_are_not_one_collective() -> None:
    rows = [nccl(0, 0, 10), nccl(1, 0, 10, message_bytes=65), nccl(0, 50, 60), nccl(1, 50, 60, kind="reduce")]
    assert matched(rows, "collective_id", "rank", "sequence", "status") == [
        (1, 0, 0, "unmatched"),
        (2, 1, 0, "unmatched"),
        (3, 0, 1, "unmatched"),
        (4, 1, 1, "unmatched"),
    ]


def test_an_equal_number_of_calls_may_still_be_shifted() -> None:
    """One capture lacks the first collective and the other one the last. Only times show that."""
    first = [nccl(0, at(n) - 10, at(n)) for n in range(11)]
    second = [nccl(1, at(n) - 10 + 5, at(n) + 5) for n in range(1, 12)]
    found = match_calls(calls([*first, *second]), NO_ORIGINS)
    assert found["sequence"].to_list() == [0, *(n for n in range(1, 11) for _ in (0, 1)), 11]
    assert found["rank_count"].to_list() == [1] + [2] * 20 + [1]


def test_times_of_the_cpu_do_not_tell_that_equally_many_calls_differ() -> None:
    """The ranks send at different times, and the times of the kernels are unknown."""
    first = [nccl(0, at(n), at(n) + 10, kernel_id=None) for n in range(12)]
    second = [nccl(1, at(n + 1), at(n + 1) + 10, kernel_id=None) for n in range(12)]
    found = match_calls(calls([*first, *second]), NO_ORIGINS)
    assert found["sequence"].to_list() == [n for n in range(12) for _ in (0, 1)]


def test_a_capture_of_a_small_part_is_matched_by_time() -> None:
    whole = [nccl(0, at(n) - 10, at(n)) for n in range(400)]
    part = [nccl(1, at(n) - 10, at(n) + 3) for n in range(200, 206)]
    found = match_calls(calls([*whole, *part]), NO_ORIGINS).filter(rank=1)
    assert found["sequence"].to_list() == list(range(200, 206))


def test_of_equally_good_shifts_the_nearest_one_counts() -> None:
    whole = [nccl(0, 1000 * n, 1000 * n + 10) for n in range(400)]
    part = [nccl(1, 1000 * n, 1000 * n + 13) for n in range(200, 300)]
    found = match_calls(calls([*whole, *part]), NO_ORIGINS).filter(rank=1)
    assert found["sequence"].to_list() == list(range(200, 300))


def test_streams_replace_unknown_communicators_if_ends_agree() -> None:
    def rows(delays: list[int]) -> list[Row]:
        unknown: Row = {"communicator": None, "message_bytes": None}
        pairs = [
            (nccl(0, at(n), at(n) + 10, **unknown), nccl(1, at(n), at(n) + d, **unknown)) for n, d in enumerate(delays)
        ]
        return [row for pair in pairs for row in pair]

    columns = ("communicator", "communicator_by", "status")
    assert set(matched(rows([10, 30, 20]), *columns)) == {("stream 17", "stream", "matched")}
    found = {(f"stream 17 of ranks {rank}", "stream", "unmatched") for rank in (0, 1)}
    assert set(matched(rows([10, 3_000_000, 10, 9_000_000]), *columns)) == found
    lonely = nccl(0, 0, 10, communicator=None, stream_id=None)
    assert matched([lonely], *columns) == [(None, None, "unmatched")]


def test_one_stream_may_be_several_communicators() -> None:
    """Two groups of two ranks, and a rank of its own, which all use the same number of a stream."""
    facts: Row = {"communicator": None, "message_bytes": None}
    delays = {0: 0, 1: 0, 2: 200_000, 3: 200_000, 4: 900_000}
    rows = [
        nccl(rank, at(n), at(n) + 10 + rank + (n * n * 31 % 7) * delay, **facts)
        for rank, delay in delays.items()
        for n in range(20)
    ]
    found = match_calls(calls(rows), NO_ORIGINS)
    columns = ("communicator", "communicator_size", "rank_count", "status")
    assert found.group_by(columns).len().sort("communicator").rows() == [
        ("stream 17 of ranks 0, 1", 2, 2, "matched", 40),
        ("stream 17 of ranks 2, 3", 2, 2, "matched", 40),
        ("stream 17 of ranks 4", None, 1, "unmatched", 20),
    ]


def message(rank: int, start: int, kind: str, peer: int, **more: object) -> Row:
    return nccl(rank, start, start + 10, kind=kind, peer=peer, **more)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3)), max_size=12))
def test_messages_match_in_the_order_of_each_pair_of_ranks(sent: list[tuple[int, int, int]]) -> None:
    rows = []
    for n, (source, target, size) in enumerate(sent):
        start = at(n)
        rows.append(message(source, start, "send", target, message_bytes=size, communicator_rank=source))
        rows.append(message(target, start + 1, "recv", source, message_bytes=size, communicator_rank=target))
    found = match_calls(calls(rows), NO_ORIGINS)
    pairs = found.sort("start_ns").partition_by("collective_id", maintain_order=True)
    assert [p["start_ns"].to_list() for p in pairs] == [[at(n), at(n) + 1] for n in range(len(sent))]
    assert set(found["status"]) <= {"matched"}


def test_the_rank_in_a_communicator_is_its_position() -> None:
    rows = [message(4, 0, "send", 1, communicator="9"), message(6, 0, "recv", 0, communicator="9")]
    assert matched(rows, "rank", "communicator_rank", "status") == [(4, 0, "matched"), (6, 1, "matched")]


def mpi_row(rank: int, start: int, kind: str, **more: object) -> Row:
    row: Row = {"rank": rank, "library": "MPI", "kind": kind, "communicator": "world", "communicator_rank": rank}
    times = {"call_start_ns": start, "call_end_ns": start + 5, "start_ns": start, "end_ns": start + 5}
    return {**row, **times, "communicator_size": 2, "process_id": rank, **more}


def test_messages_of_mpi_have_tags() -> None:
    rows = [mpi_row(0, 0, "send", peer=1, tag=5), mpi_row(0, 10, "send", peer=1, tag=6)]
    rows += [mpi_row(1, 20, "recv", peer=0, tag=6), mpi_row(1, 30, "recv", peer=0, tag=5, message_bytes=99)]
    assert matched(rows, "collective_id", "start_ns") == [(1, 0), (1, 30), (2, 10), (2, 20)]


def test_messages_of_mpi_that_are_uncertain_do_not_match() -> None:
    rows = [mpi_row(0, 0, "send", peer=1, tag=5), mpi_row(1, 20, "recv", peer=-2, tag=5)]
    rows += [mpi_row(1, 40, "send", peer=0, tag=7), mpi_row(0, 40, "recv", peer=1, tag=7)]
    rows += [mpi_row(1, 60, "send_recv", peer=0, tag=7)]
    assert {status for (status,) in matched(rows, "status")} == {"unmatched"}


def test_collectives_of_mpi_need_not_have_equal_sizes() -> None:
    rows = [mpi_row(0, 0, "broadcast", root=0, message_bytes=8), mpi_row(1, 1, "broadcast", root=0)]
    rows += [mpi_row(0, 50, "barrier"), mpi_row(1, 51, "barrier")]
    assert matched(rows, "collective_id", "status", "bytes") == [
        (1, "matched", 8),
        (1, "matched", None),
        (2, "matched", None),
        (2, "matched", None),
    ]


def test_sizes_of_nccl_become_those_of_nccl_tests() -> None:
    kinds = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce", "broadcast")
    rows = [nccl(rank, at(n), at(n) + 10, kind=kind) for n, kind in enumerate(kinds) for rank in range(3)]
    found = dict(zip(*match_calls(calls(rows), NO_ORIGINS).select("kind", "bytes"), strict=True))
    assert found == {"all_gather": 192, "reduce_scatter": 192, "all_to_all": 192, "all_reduce": 64, "broadcast": 64}


def test_ranks_of_one_trace_are_numbered_by_gpu() -> None:
    rows = [nccl(0, n, 10 + n, process_id=process, device_id=n) for n, process in enumerate((30, 20))]
    rows += [nccl(1, 3, 13, process_id=9)]
    found = match_calls(calls(rows), NO_ORIGINS).select("rank", "trace_rank", "process_id", "device_id")
    assert found.rows() == [(0, 0, 30, 0), (1, 0, 20, 1), (2, 1, 9, 0)]
    for row, own in zip(rows, (1, 0, 2), strict=True):
        row |= {"communicator_rank": own, "communicator_size": 3}
    assert match_calls(calls(rows), NO_ORIGINS).select("rank", "process_id").rows() == [(0, 20), (1, 30), (2, 9)]


def test_ranks_of_traces_are_kept() -> None:
    found = match_calls(calls([nccl(5, 0, 10), nccl(7, 0, 10)]), {5: 0, 7: None})
    assert found.select("rank", "trace_rank").rows() == [(5, 5), (7, 7)]


def test_origins_place_a_lonely_call() -> None:
    rows = [nccl(0, at(n) - 5, at(n)) for n in range(12)]
    rows += [nccl(1, at(7) - 5 - 10**9, at(7) - 10**9)]
    found = match_calls(calls(rows), {0: 50, 1: 10**9 + 50}).filter(rank=1)
    assert found["sequence"].to_list() == [7]


def test_no_calls() -> None:
    assert match_calls(calls([]), {}).height == 0
