"""Messages and collective operations of MPI are matched as a simulation of the ranks sends and receives them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_rep import SHARED
from tests.exporters.test_chrome_trace import trace

MORE = SHARED / "captures" / "h200_more"
WORLD, SELF = 100, 500
"""Handles in the first process; those of process n are n larger."""


def call(process: int, start: int, name: str, **more: object) -> dict[str, object]:
    kind = more.pop("kind", "p2p")
    row = {"process_id": process, "start_ns": start, "end_ns": start + 1, "kind": kind, "name": f"MPI_{name}"}
    return {**row, "communicator": WORLD + process, **more}


def messages(calls: list[dict[str, object]], size: int = 3, **more: list[dict[str, object]]) -> list[int | None]:
    """The call that sent the message of each call."""
    return columns(calls, size, **more)["sender_call_id"].to_list()


def columns(calls: list[dict[str, object]], size: int = 3, **more: list[dict[str, object]]) -> pl.DataFrame:
    world = [
        {"rank": n, "communicator": WORLD + n, "local_rank": n, "size": size, "parent_communicator": 0}
        for n in range(size)
    ]
    own = [{"rank": n, "communicator": SELF + n, "local_rank": 0, "size": 1} for n in range(size)]
    ranks = [{"process_id": n, "thread_id": n, "rank": n} for n in range(size)]
    communicators = more.get("communicators", [*world, *own])
    linked = trace(mpi_calls=calls, mpi_ranks=ranks, mpi_communicators=communicators).correlate()
    return pl.DataFrame(linked.table("mpi_calls", ["sender_call_id", "collective_id"]))


@given(st.data())
def test_messages_arrive_in_the_order_in_which_they_were_sent(data: st.DataObject) -> None:
    channel = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1))
    sent = data.draw(st.lists(channel, max_size=10))
    received = data.draw(st.permutations(sent[: data.draw(st.integers(0, len(sent)))]))
    calls = [call(source, n, "Send", remote_rank=target, tag=tag) for n, (source, target, tag) in enumerate(sent)]
    calls += [
        call(target, 50 + n, "Recv", remote_rank=source, tag=tag) for n, (source, target, tag) in enumerate(received)
    ]
    order = data.draw(st.permutations(range(len(calls))))
    queues: dict[tuple[int, int, int], list[int]] = {}
    for n, key in enumerate(sent):
        queues.setdefault(key, []).append(n)
    expected: list[int | None] = [None] * len(sent) + [queues[key].pop(0) for key in received]
    place = {n: at for at, n in enumerate(order, 1)}
    found = messages([calls[n] for n in order])
    assert found == [None if expected[n] is None else place[expected[n]] for n in order]  # type: ignore[index]


def test_a_wait_completes_a_receive() -> None:
    wait = {"kind": "start-wait", "communicator": None}
    calls = [
        call(0, 1, "Isend", remote_rank=1, tag=5, request=9),
        call(1, 2, "Irecv", remote_rank=0, tag=5, request=9),
        call(1, 1, "Wait", request=9, **wait),
        call(1, 3, "Start", request=9, **wait),
        call(1, 4, "Waitall", request=8, **wait),
        call(1, 4, "Waitall", request=9, **wait),
        call(1, 6, "Wait", request=9, **wait),
        call(0, 4, "Wait", request=9, **wait),
    ]
    assert messages(calls) == [None, None, None, None, None, 1, None, None]
    assert messages(calls[:3]) == [None, 1, None]


def test_receives_from_any_source_make_messages_unsure() -> None:
    calls = [
        call(0, 1, "Send", remote_rank=1, tag=5),
        call(0, 2, "Send", remote_rank=2, tag=5),
        call(1, 3, "Recv", remote_rank=0, tag=5),
        call(2, 3, "Recv", remote_rank=0, tag=5),
        call(1, 4, "Recv", remote_rank=-1, tag=5),
    ]
    assert messages(calls) == [None, None, None, 2, None]
    assert messages([*calls[:4], call(1, 4, "Recv", remote_rank=0, tag=-1)]) == [None, None, None, 2, None]
    assert messages([*calls[:4], call(1, 4, "Probe", remote_rank=-1, tag=-1)]) == [None, None, 1, 2, None]


def test_transfers_that_are_not_recorded_make_messages_unsure() -> None:
    calls = [
        call(0, 1, "Send", remote_rank=1, tag=5),
        call(1, 3, "Recv", remote_rank=0, tag=5),
        call(0, 4, "Send", remote_rank=2, tag=6),
        call(0, 5, "Send", remote_rank=2, tag=6),
        call(2, 6, "Recv", remote_rank=0, tag=6),
        call(0, 4, "Send", remote_rank=2, tag=7),
        call(2, 6, "Recv", remote_rank=0, tag=7),
    ]
    assert messages(calls) == [None, 1, None, None, 3, None, 6]
    assert messages([*calls, call(1, 9, "Sendrecv", remote_rank=2, tag=7)]) == [None, 1, *[None] * 6]
    elsewhere = call(1, 9, "Sendrecv", remote_rank=0, tag=7, communicator=SELF + 1)
    assert messages([*calls, elsewhere]) == [None, 1, None, None, 3, None, 6, None]


def test_communicators_are_told_apart() -> None:
    calls = [
        call(0, 1, "Send", remote_rank=0, tag=5, communicator=SELF),
        call(1, 2, "Recv", remote_rank=0, tag=5, communicator=SELF + 1),
        call(0, 3, "Recv", remote_rank=0, tag=5, communicator=SELF),
        call(1, 4, "Send", remote_rank=0, tag=5, communicator=77),
    ]
    assert messages(calls) == [None, None, 1, None]
    split = {"size": 2, "group_root": 0}
    listed = [
        {"rank": 0, "communicator": 9, "local_rank": 0, "group_root_id": 1, "timestamp_ns": 0, **split},
        {"rank": 1, "communicator": 9, "local_rank": 1, "group_root_id": 1, "timestamp_ns": 0, **split},
        {"rank": 0, "communicator": 9, "local_rank": 0, "group_root_id": 2, "timestamp_ns": 50, **split},
        {"rank": 2, "communicator": 9, "local_rank": 1, "group_root_id": 2, "timestamp_ns": 50, **split},
    ]
    calls = [
        call(0, 10, "Send", remote_rank=1, tag=5, communicator=9),
        call(1, 20, "Recv", remote_rank=0, tag=5, communicator=9),
        call(0, 60, "Send", remote_rank=1, tag=5, communicator=9),
        call(2, 70, "Recv", remote_rank=0, tag=5, communicator=9),
    ]
    assert messages(calls, communicators=listed) == [None, 1, None, 3]


def test_collective_operations_are_called_in_the_same_order() -> None:
    calls = [
        call(process, start, name, kind="collectives")
        for process, start, name in [
            (0, 1, "Bcast"), (1, 2, "Bcast"), (1, 3, "Barrier"), (0, 4, "Barrier"), (2, 5, "Bcast"), (2, 6, "Reduce"),
        ]
    ]  # fmt: skip
    made = columns([*calls, call(0, 9, "Bcast", kind="collectives", communicator=77), call(0, 9, "Send", tag=1)])
    assert made["collective_id"].to_list() == [1, 1, None, None, 1, None, None, None]
    assert columns(calls[:5])["collective_id"].to_list() == [1, 1, 2, 2, 1]


def test_two_ranks_of_a_real_program() -> None:
    calls = two_ranks().correlate().frame("mpi_calls").collect()
    named = pl.col("name").cast(pl.String)
    sent = calls.select(named.alias("sent"), sender_call_id="mpi_call_id", sent_ns="start_ns", sender="process_id")
    pairs = calls.join(sent, on="sender_call_id")
    kinds = pairs.group_by(named, "sent").len().sort("name")
    assert kinds.rows() == [("MPI_Recv", "MPI_Send", 9), ("MPI_Waitall", "MPI_Isend", 10)]
    assert pairs.filter(pl.col("sent_ns") >= pl.col("end_ns")).height == 0
    assert pairs.filter(pl.col("sender") == pl.col("process_id")).height == 0
    collectives = calls.drop_nulls("collective_id").group_by("collective_id").agg(named.n_unique(), pl.len())
    assert set(collectives.select("name", "len").rows()) == {(1, 2)}
    assert collectives.height == 32


def two_ranks() -> tk.Trace:
    """The reports of two ranks, as if both had been recorded in one. One message has the tag of ``MPI_Sendrecv``."""
    if not MORE.is_dir():
        pytest.skip("no captures beside the checkout")
    with tk.load(MORE / "mpi_rank0.nsys-rep") as one, tk.load(MORE / "mpi_rank1.nsys-rep") as other:
        shift = int(other.info["origin_utc_ns"]) - int(one.info["origin_utc_ns"])
        names = ("mpi_calls", "mpi_ranks", "mpi_communicators")
        return tk.Trace.from_tables({name: joined(one[name], other[name], shift) for name in names})


def joined(first: pa.Table, second: pa.Table, shift: int) -> pa.Table:
    for nth, name in enumerate(second.column_names):
        if name.endswith("_ns"):
            second = second.set_column(nth, second.schema.field(nth), pc.add(second[name], shift))
    both = pa.concat_tables([first, second]).unify_dictionaries()
    key = both.schema.field(0)
    return both if key.name == "process_id" else both.set_column(0, key, pa.array(range(1, len(both) + 1)))


def test_a_capture_of_one_rank_has_no_senders() -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "mpi_rank0.sqlite"
    with tk.load(fixture) as one:
        found = one.correlate().frame("mpi_calls").collect()
        assert found["sender_call_id"].null_count() == found.height > 0
        assert found["collective_id"].drop_nulls().n_unique() == 32
