"""Communication calls of one trace: ranges of NCCL with their payloads and kernels, and calls of MPI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.communication import nccl_kernel, nccl_range, payload, scene
from tests.exporters.test_chrome_trace import QUEUE, kernel, push, trace
from tracekit.core.communication import read_communication_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXTURES = Path(__file__).parents[3] / "fixtures"
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
BIG = 2**63 + 5


def read(linked: tk.Trace, *columns: str) -> list[tuple[object, ...]]:
    return read_communication_calls(linked.frame).select(columns).rows()


def test_a_call_has_the_facts_of_its_payload_and_the_times_of_its_kernel() -> None:
    text = payload(BIG, 4096, Reduction_operation="Sum")
    linked = scene([nccl_range(10, 20, "ncclAllReduce", text)], [nccl_kernel(15, 40, RING, 12)])
    row = read_communication_calls(linked.frame).row(0, named=True)
    assert (row["library"], row["kind"], row["name"]) == ("NCCL", "all_reduce", "ncclAllReduce")
    assert (row["communicator"], row["message_bytes"], row["reduction"]) == (str(BIG), 4096, "Sum")
    assert (row["data_type"], row["communicator_size"], row["communicator_rank"]) == ("float32", None, None)
    assert (row["call_id"], row["call_start_ns"], row["call_end_ns"]) == (1, 10, 20)
    assert (row["kernel_id"], row["kernel_start_ns"], row["kernel_end_ns"], row["kernel_calls"]) == (1, 15, 40, 1)
    assert (row["start_ns"], row["end_ns"], row["device_id"], row["stream_id"]) == (15, 40, 0, QUEUE["stream_id"])


def test_a_call_without_a_kernel_has_its_own_times() -> None:
    linked = scene([nccl_range(10, 20, "ncclBroadcast", payload(1, 8, Root=2))], [])
    columns = ("kind", "root", "start_ns", "end_ns", "kernel_id", "kernel_calls", "hidden_ns")
    assert read(linked, *columns) == [("broadcast", 2, 10, 20, None, None, None)]


def test_kernels_outside_of_calls_are_calls_of_unknown_communicators() -> None:
    launched = [nccl_kernel(30, 40, RING, 12), nccl_kernel(50, 60, "ncclKernel_AllGather_RING_LL_Sum_int8_t", 13)]
    launched += [nccl_kernel(70, 80, "ncclDevKernel_Generic", 14)]
    columns = ("kind", "name", "communicator", "data_type", "call_id", "start_ns")
    assert read(scene([], launched), *columns) == [
        ("all_reduce", RING, None, "float32", None, 30),
        ("all_gather", "ncclKernel_AllGather_RING_LL_Sum_int8_t", None, None, None, 50),
        ("unknown", "ncclDevKernel_Generic", None, None, None, 70),
    ]


@pytest.mark.parametrize(
    ("name", "kind", "data_type"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter", "bfloat16"),
        ("ncclKernel_Reduce_RING_LL_Sum_half", "reduce", "float16"),
        ("ncclDevKernel_SendRecv", "send_recv", None),
        ("ncclDevKernel_AllReduce_Max_u8_TREE_LL", "all_reduce", "uint8"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast", None),
    ],
)
def test_kernels_are_known_by_name(name: str, kind: str, data_type: str | None) -> None:
    assert read(scene([], [nccl_kernel(30, 40, name, 12)]), "kind", "data_type") == [(kind, data_type)]


def grouped(calls: Sequence[str], names: Sequence[str], start: int = 0) -> tuple[list[object], list[object]]:
    """A group with calls whose kernels are launched at its end."""
    ranges = [nccl_range(start, start + 1, "ncclGroupStart")]
    ranges += [nccl_range(start + 2 + n, start + 3 + n, c, payload(1, n, Peer_rank=n)) for n, c in enumerate(calls)]
    ranges += [nccl_range(start + 50, start + 90, "ncclGroupEnd")]
    launched = [
        nccl_kernel(start + 100 * n + 100, start + 100 * n + 150, k, start + 55 + n) for n, k in enumerate(names)
    ]
    return ranges, launched  # type: ignore[return-value]


def test_calls_of_a_group_share_its_kernel() -> None:
    linked = scene(*grouped(["ncclSend", "ncclRecv", "ncclRecv"], ["ncclDevKernel_SendRecv"]))  # type: ignore[arg-type]
    columns = ("kind", "peer", "kernel_id", "kernel_calls", "start_ns", "end_ns")
    expected = [("send", 0, 1, 3, 100, 150), ("recv", 1, 1, 3, 100, 150), ("recv", 2, 1, 3, 100, 150)]
    assert read(linked, *columns) == expected


def test_as_many_calls_as_kernels_of_one_kind_are_paired_in_order() -> None:
    names = ["ncclDevKernel_AllGather_RING_LL", RING, "ncclDevKernel_AllGather_RING_LL"]
    linked = scene(*grouped(["ncclAllGather", "ncclAllGather", "ncclAllReduce"], names))  # type: ignore[arg-type]
    columns = ("kind", "message_bytes", "kernel_id", "kernel_calls")
    assert read(linked, *columns) == [("all_gather", 0, 1, 1), ("all_reduce", 2, 2, 1), ("all_gather", 1, 3, 1)]


def test_calls_that_no_kernel_names_share_all_kernels_of_the_group() -> None:
    linked = scene(*grouped(["ncclAllGather", "ncclAllReduce"], ["ncclDevKernel_Generic"]))  # type: ignore[arg-type]
    assert read(linked, "kind", "kernel_id", "kernel_calls") == [("all_gather", 1, 2), ("all_reduce", 1, 2)]


def test_two_kernels_of_several_calls_are_one_interval() -> None:
    linked = scene(*grouped(["ncclAllReduce"] * 3, [RING, RING]))  # type: ignore[arg-type]
    assert read(linked, "kernel_id", "start_ns", "end_ns", "kernel_calls") == [(1, 100, 250, 3)] * 3


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.sampled_from(["start", "end", "call"]), max_size=12))
def test_a_call_belongs_to_the_outermost_end_of_its_group(events: list[str]) -> None:
    names = {"start": "ncclGroupStart", "end": "ncclGroupEnd", "call": "ncclAllReduce"}
    ranges = [nccl_range(100 * n, 100 * n + 50, names[e], payload(1, n)) for n, e in enumerate(events)]
    launched = [nccl_kernel(100_000 + 10 * n, 100_005 + 10 * n, RING, 100 * n + 10) for n in range(len(events))]
    expected = {}
    for n, event in enumerate(events):
        if event != "call":
            continue
        depth = 0
        for before in events[:n]:
            depth = max(depth + (before == "start") - (before == "end"), 0)
        ends = (later for later in range(n, len(events)))
        closing = n
        while depth > 0 and (later := next(ends, None)) is not None:
            depth += (events[later] == "start") - (events[later] == "end")
            closing = later
        expected[n] = 100_000 + 10 * (closing if depth == 0 else n)
    rows = read_communication_calls(scene(ranges, launched).frame).drop_nulls("call_id")
    assert dict(rows.select("message_bytes", "start_ns").iter_rows()) == expected


def test_the_capture_may_begin_inside_a_group() -> None:
    ranges = [nccl_range(0, 5, "ncclGroupEnd"), nccl_range(10, 20, "ncclAllReduce", payload(1, 8))]
    linked = scene(ranges, [nccl_kernel(100, 110, RING, 12)])
    assert read(linked, "call_id", "kernel_id") == [(2, 1)]


def test_initialized_communicators_have_a_size_and_a_rank() -> None:
    init = nccl_range(0, 5, "ncclCommInitRank", payload(9, None, **{"No._of_ranks": 4, "Rank": 3}))
    linked = scene([init, nccl_range(10, 20, "ncclReduce", payload(9, 8, Root=0))], [])
    assert read(linked, "kind", "communicator_size", "communicator_rank") == [("reduce", 4, 3)]


def test_calls_without_kernels_are_on_the_only_gpu_of_their_process() -> None:
    ranges = [nccl_range(10, 20, "ncclAllReduce", payload(1, 8)), nccl_range(30, 31, "ncclAllReduce", payload(1, 8))]
    linked = scene(ranges, [nccl_kernel(15, 40, RING, 12, device_id=3)])
    assert read(linked, "kernel_id", "device_id") == [(1, 3), (None, 3)]


interval = st.tuples(st.integers(0, 40), st.integers(0, 15)).map(lambda t: (t[0], t[0] + t[1]))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(interval, max_size=6), st.lists(st.tuples(interval, st.integers(0, 1)), max_size=6))
def test_hidden_time_is_the_time_in_which_other_kernels_run(
    exchanges: list[tuple[int, int]], others: list[tuple[tuple[int, int], int]]
) -> None:
    rows = [nccl_kernel(*times, RING, n, device_id=1) for n, times in enumerate(exchanges)]
    compute = [(kernel(*times, device_id=device), None) for times, device in others]
    kernels = [k for k, _ in rows] + [k for k, _ in compute]
    linked = trace(kernels=kernels).correlate()
    busy = {t for (start, end), device in others if device == 1 for t in range(start, end)}
    expected = sorted((start, end, len(busy & set(range(start, end)))) for start, end in exchanges)
    assert sorted(read(linked, "start_ns", "end_ns", "hidden_ns")) == expected


def mpi_call(start: int, name: str, kind: str, **more: object) -> dict[str, object]:
    row = {"start_ns": start, "end_ns": start + 5, "kind": kind, "name": name, "process_id": 1, "communicator": 100}
    return {**row, **more}


def mpi(*rows: dict[str, object], size: int = 2, **more: object) -> tk.Trace:
    communicator = {"rank": 0, "communicator": 100, "local_rank": 1, "size": size, **more}
    ranks = [{"process_id": 1, "thread_id": 1, "rank": 0}]
    return trace(mpi_calls=list(rows), mpi_ranks=ranks, mpi_communicators=[communicator]).correlate()


def test_calls_of_mpi_are_collectives_and_messages() -> None:
    linked = mpi(
        mpi_call(0, "MPI_Allgatherv", "collectives", size_bytes=8, receive_size_bytes=16),
        mpi_call(10, "MPI_Ireduce_scatter", "collectives", size_bytes=8, request=5),
        mpi_call(20, "MPI_Issend", "p2p", remote_rank=1, tag=7, size_bytes=4, request=6),
        mpi_call(30, "MPI_Wait", "start-wait", communicator=None, request=5),
        mpi_call(40, "MPI_Probe", "p2p", remote_rank=1),
        mpi_call(50, "MPI_Iprobe", "other"),
    )
    columns = (
        "library",
        "kind",
        "communicator",
        "communicator_rank",
        "peer",
        "tag",
        "message_bytes",
        "start_ns",
        "end_ns",
    )
    assert read(linked, *columns) == [
        ("MPI", "all_gather", "world", 1, None, None, 16, 0, 5),
        ("MPI", "reduce_scatter", "world", 1, None, None, 8, 10, 35),
        ("MPI", "send", "world", 1, 1, 7, 4, 20, 25),
    ]


def test_communicators_of_mpi_have_names_that_all_ranks_share() -> None:
    barrier = mpi_call(0, "MPI_Ibarrier", "collectives")
    assert read(mpi(barrier, group_root=2, group_root_id=5), "kind", "communicator") == [("barrier", "2:5")]
    assert read(mpi(barrier, size=1, group_root=2, group_root_id=5), "communicator") == [("2:5 of rank 0",)]
    unknown = mpi_call(0, "MPI_Barrier", "collectives", communicator=3)
    assert read(mpi(unknown), "communicator", "communicator_size") == [(None, None)]


def test_a_capture_of_two_gpus() -> None:
    with tk.load(FIXTURES / "ddp2.sqlite") as loaded:
        rows = read_communication_calls(loaded.correlate().frame)
        kernels = loaded.frame("kernels").filter(pl.col("short_name").cast(pl.String) == RING).collect()
    by_gpu = rows.group_by("process_id", "device_id").len().sort("process_id")["len"].to_list()
    assert by_gpu == [8, 8]
    times = ("kernel_start_ns", "kernel_end_ns")
    assert rows.select(times).rows() == kernels.select("start_ns", "end_ns").sort("start_ns").rows()


def torch_call(start: int, collective: str, **facts: object) -> list[dict[str, object]]:
    """A call of PyTorch with the range in which its kernel is launched."""
    listed = [f'"{k.replace("_", " ")}": {json.dumps(v)}' for k, v in {"Collective_name": collective, **facts}.items()]
    outer = push(
        start,
        start + 90,
        "record_param_comms",
        domain="cpu_op",
        domain_id=1,
        payload_text="{" + ", ".join(listed) + "}",
    )
    inner = push(start + 10, start + 80, f"nccl:{collective}", domain="user_annotation", domain_id=2, payload_text="{}")
    return [outer, inner]


GROUP = {"Process_Group_Name": "3", "Process_Group_Ranks": "[0, 4]", "Group_size": 2}


def test_calls_of_the_profiler_of_pytorch() -> None:
    ranges = [
        *torch_call(0, "allreduce", dtype="BFloat16", In_msg_nelems=100, Out_msg_nelems=100, **GROUP),
        *torch_call(100, "_reduce_scatter_base", dtype="Float", In_msg_nelems=100, Out_msg_nelems=50, **GROUP),
        *torch_call(200, "alltoall_base", dtype="Long", In_msg_nelems=100, Out_msg_nelems=100, **GROUP),
        *torch_call(300, "send", dtype="Byte", In_msg_nelems=7, Dst_Rank=1, Process_Group_ID=0),
        *torch_call(400, "wait", dtype="Byte", In_msg_nelems=0),
        *torch_call(500, "broadcast", dtype="Unheard", In_msg_nelems=5),
    ]
    launched = [
        nccl_kernel(1000, 1100, RING, 20),
        nccl_kernel(1200, 1300, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 130),
    ]
    launched += [nccl_kernel(1400, 1500, "ncclDevKernel_SendRecv", 305)]
    columns = ("kind", "name", "communicator", "communicator_size", "data_type", "message_bytes", "peer", "start_ns")
    group = "3 [0, 4] of 2"
    assert sorted(read(scene(ranges, launched), *columns), key=str) == sorted(
        [
            ("all_reduce", "allreduce", group, 2, "bfloat16", 200, None, 1000),
            ("reduce_scatter", "_reduce_scatter_base", group, 2, "float32", 200, None, 1200),
            ("all_to_all", "alltoall_base", group, 2, "int64", 400, None, 200),
            ("send", "send", "0", None, "uint8", 7, 1, 1400),
            ("broadcast", "broadcast", None, None, None, None, None, 500),
        ],
        key=str,
    )


def test_calls_that_pytorch_combines_share_a_later_kernel() -> None:
    """A send and a receive whose kernel is launched after both, and a call whose kernel was not recorded."""
    facts = {"dtype": "Byte", "In_msg_nelems": 8, "Out_msg_nelems": 8, **GROUP}
    listed = [torch_call(0, "barrier", Rank=1, **GROUP), torch_call(100, "send", Dst_Rank=0, Rank=0, **facts)]
    listed += [torch_call(200, "recv", Src_Rank=0, Rank=0, **facts)]
    combined = push(300, 350, "nccl:coalesced", domain="user_annotation", domain_id=2)
    later = torch_call(400, "broadcast", Rank=1, **facts)
    launched = [nccl_kernel(1000, 1100, RING, 30), nccl_kernel(1200, 1300, "ncclDevKernel_SendRecv", 310)]
    ranges = [*listed[0], *(outer for outer, _ in listed[1:]), combined, *later]
    columns = ("kind", "peer", "root", "communicator_rank", "kernel_id", "kernel_calls")
    assert read(scene(ranges, launched), *columns) == [
        ("broadcast", None, 1, 1, None, None),
        ("barrier", None, None, 1, 1, 1),
        ("send", 0, None, 1, 2, 2),
        ("recv", 0, None, 1, 2, 2),
    ]


def test_the_backend_of_pytorch_is_the_library() -> None:
    ranges = torch_call(0, "barrier", **GROUP)
    for backend, library in (("gloo", "gloo"), ("cpu:gloo,cuda:nccl", "NCCL"), (None, "NCCL")):
        info = [{"name": "distributed_backend", "value": backend}]
        assert read(trace(nvtx_ranges=ranges, capture_info=info).correlate(), "library") == [(library,)]
