"""Logs of collectives: flight recorders of PyTorch, NCCL Inspector, and profiler plug-ins of NCCL."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import ALL
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning, UnknownFormatError
from tracekit.readers.nccl import lines, names
from tracekit.readers.nccl.flight_recorder import parse_rank

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nccl"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "makers" / "nccl"
DUMPS = [FIXTURES / f"stuck_rank{rank}.json" for rank in range(2)]
PICKLES = [path.with_suffix(".pickle") for path in DUMPS]
LOGS = [FIXTURES / f"inspector_{rank}.log" for rank in range(2)]
TYPES = {"Float": ("float32", 4), "BFloat16": ("bfloat16", 2)}
KINDS = {"_reduce_scatter_base": "reduce_scatter", "all_reduce_barrier": "barrier", "coalesced": None}
Row = dict[str, Any]


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    with tk.load(path) as trace:
        return trace.frame("communication_calls", names="string").select(columns).collect().rows()


def elements(shapes: list[list[int]]) -> int:
    total = 0
    for shape in shapes:
        product = 1
        for size in shape:
            product *= size
        total += product
    return total


def expected_call(entry: Row, origin: int) -> Row:
    """What an entry of a flight recorder says, read naively."""
    name = entry["profiling_name"].removeprefix("nccl:")
    kind = KINDS.get(name.split()[0], name.split()[0])
    received = kind in ("recv", "reduce_scatter")
    shapes = entry["output_sizes" if received else "input_sizes"]
    data_type, width = TYPES[entry["input_dtypes"][0]] if entry["input_dtypes"] else (None, None)
    count = elements(shapes) if shapes else None
    count = count // 2 if kind == "all_to_all" and count is not None else count
    peer = int(name.replace("<-", "->").split("->")[1]) if entry["is_p2p"] else None
    sequence = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
    return {
        "kind": kind,
        "name": entry["profiling_name"],
        "communicator_name": entry["process_group"][1],
        "sequence": None if kind is None else sequence,
        "peer": peer,
        "data_type": data_type,
        "element_count": count,
        "message_bytes": None if count is None or width is None else count * width,
        "created_ns": entry["time_created_ns"] - origin,
        "end_seen_ns": entry["time_discovered_completed_ns"] - origin
        if entry["time_discovered_completed_ns"]
        else None,
        "timeout_ns": entry["timeout_ms"] * 1_000_000,
        "thread_id": int(entry["thread_id"]),
    }


@pytest.mark.parametrize("rank", range(2))
def test_calls_of_a_flight_recorder(rank: int) -> None:
    entries = json.loads(DUMPS[rank].read_text())["entries"]
    origin = min(e["time_created_ns"] for e in entries)
    expected = [expected_call(e, origin) for e in entries]
    members = [e["is_p2p"] and e["state"] == "scheduled" for e in entries]  # their group is observed instead of them
    with tk.load(DUMPS[rank]) as trace:
        assert trace.format == "nccl"
        info = trace.info
        frame = trace.frame("communication_calls", names="string").collect()
    assert (info["distributed_rank"], info["distributed_world_size"], info["origin_utc_ns"]) == (
        str(rank),
        "2",
        str(origin),
    )
    read = frame.select(list(expected[0])).to_dicts()
    assert [r for r, m in zip(read, members, strict=True) if not m] == [
        e for e, m in zip(expected, members, strict=True) if not m
    ]
    grouped = [r for r, m in zip(frame.to_dicts(), members, strict=True) if m]
    assert {(r["state"], r["end_seen_ns"] is not None) for r in grouped} == {("completed", True)}
    assert frame["rank"].unique().to_list() == [rank]
    assert set(frame["communicator"].unique()) == {"0 [0, 1] of 2", "1 [0, 1] of 2"} | (
        {"2 [0] of 1"} if rank == 0 else set()
    )
    assert frame.filter(kind="send")["communicator_rank"].unique().to_list() == [rank]


@pytest.mark.parametrize("rank", range(2))
def test_a_pickle_reads_like_json_and_has_call_stacks(rank: int) -> None:
    entries = pickle.loads(PICKLES[rank].read_bytes())["entries"]
    with tk.load(PICKLES[rank]) as pickled, tk.load(DUMPS[rank]) as text:
        tables = [t.frame("communication_calls", names="string").collect() for t in (pickled, text)]
        assert tables[0].drop("stack_id", "user_stack_id").equals(tables[1].drop("stack_id", "user_stack_id"))
        assert pickled.info == text.info
        stacks = {row["stack_id"]: row for row in pickled.frame("stacks", names="string").collect().to_dicts()}
    for entry, stack, user in zip(entries, *(tables[0][c] for c in ("stack_id", "user_stack_id")), strict=True):
        frames = []
        while stack is not None:
            row = stacks[stack]
            frames.append((row["symbol"], row["module"], row["line"]))
            stack = row["parent_id"]
        assert frames == [(f["name"], Path(f["filename"]).name, f["line"]) for f in entry["frames"]]
        assert stacks[user]["module"] == "fr.py"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


def test_a_pickle_that_calls_something_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump(state=Evil())))
    with pytest.raises(CorruptTraceError, match="print"):
        tk.load(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x_rank_1"
    entry = {
        "duration_ms": 1.5,
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "process_group": ("0", "default_pg"),
    }
    for n, document in enumerate((dump(**entry), dump(**entry)["entries"])):  # early versions are a list
        path.write_bytes(pickle.dumps(document, protocol))
        if n:
            assert rows(path, "duration_ns", "communicator_size") == [(1_500_000, None)]
        else:
            assert rows(path, "duration_ns", "message_bytes", "communicator") == [(1_500_000, 24, "0 [0, 1] of 2")]


ODD: list[tuple[Row, bool]] = [
    ({"input_sizes": [b"x"]}, False),
    ({"input_sizes": [[10**5000]]}, True),
    ({"process_group": (1, 2)}, False),
    ({"duration_ms": "x"}, False),
    ({"frames": [1]}, False),
    ({"collective_seq_id": 2**80}, False),
    ({"profiling_name": 5}, False),
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_pickles_with_other_values(number: int, tmp_path: Path) -> None:
    entry, is_read = ODD[number]
    path = tmp_path / "x_rank_0"
    path.write_bytes(pickle.dumps(dump(**entry)))
    if is_read:
        assert rows(path, "element_count") == [(None,)]
    else:
        with pytest.raises(CorruptTraceError, match=r"\nHint: "):
            tk.load(path)


def test_shared_values_do_not_take_much_memory(tmp_path: Path) -> None:
    path = tmp_path / "x_rank_0"
    bomb: list[Any] = [1]
    for _ in range(40):
        bomb = [bomb, bomb]  # 2^40 values
    path.write_bytes(pickle.dumps(dump(input_sizes=[bomb], output_sizes=[[1, 2], [1.5]])))
    assert rows(path, "input_shapes", "output_shapes") == [("null", "null")]
    for member in ({"profiling_name": "x" * (1 << 20)}, {"input_dtypes": ["x" * (1 << 20)]}):
        path.write_bytes(pickle.dumps({"pg_config": {}, "entries": dump(**member)["entries"] * 10_000}))
        with pytest.raises(CorruptTraceError, match="the strings of 10000 rows"):
            tk.load(path)


def test_messages_of_a_group_that_is_missing(tmp_path: Path) -> None:
    message = {"is_p2p": True, "state": "scheduled"}
    send, receive, other = (
        dump(profiling_name=name, p2p_seq_id=number, **message)["entries"]
        for name, number in (("nccl:send 0->1", 2), ("nccl:recv 0<-1", 2), ("nccl:send 0->1", 3))
    )
    path = write(tmp_path / "x_rank_0.json", {**dump(), "entries": send + receive + other})
    assert rows(path, "sequence", "state") == [(2, None), (2, None), (3, "scheduled")]


def test_times_that_are_no_times(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x_rank_0.json", dump(time_created_ns=-(1 << 63), time_discovered_completed_ns=(1 << 63) - 1)
    )
    assert rows(path, "created_ns", "end_seen_ns") == [(None, 0)]


@pytest.mark.filterwarnings("ignore:.*aligned only by the UTC time")
@pytest.mark.parametrize("dumps", [DUMPS, PICKLES], ids=["json", "pickle"])
def test_the_rank_that_a_job_waits_for(dumps: list[Path]) -> None:
    with tk.load_many(dumps) as ranks:
        (row,) = ranks.recipe("comm_pending")["pending"].rows(named=True)
        answer = ranks.why()
        calls = ranks.communication().calls
    assert (row["sequence"], row["kind"], row["communicator_name"]) == (9, "all_reduce", "tensor_parallel")
    assert (row["problem"], row["entered_ranks"], row["missing_ranks"]) == ("missing ranks", "0", "1")
    sentence = (
        "Rank 1 has not entered all_reduce #9 of tensor_parallel (communicator 1 [0, 1] of 2), in which rank 0 waits."
    )
    assert (answer.sentence, answer.status) == (sentence, "answered")
    unmatched = calls.filter(pl.col("status") != "matched")
    assert unmatched.select("rank", "sequence", "kind").rows() == [(0, 9, "all_reduce")]
    with tk.load(DUMPS[0]) as alone:
        assert alone.why().sentence.endswith("tensor_parallel (communicator 1 [0, 1] of 2); no log of rank 1.")
    with tk.load(DUMPS[1]) as alone:
        assert alone.why().status == "not_applicable"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("stuck_rank0.pickle", 0),
        ("trace_3", 3),
        ("rank-7.json.gz", 7),
        ("nccl_trace", None),
        ("rank_of_host12_4", 4),
    ],
)
def test_the_rank_is_in_the_name_of_the_file(name: str, rank: int | None) -> None:
    assert parse_rank(name) == rank


def dump(**entry: Any) -> Row:
    base = {
        "process_group": ["0", "default_pg"],
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": 1,
        "state": "started",
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "entries": [base | entry]}


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_durations_and_times_of_execution(tmp_path: Path) -> None:
    entry = {"duration_ms": 0.1234567, "time_created_ns": 10**18, "time_discovered_started_ns": 10**18 + 5}
    path = write(tmp_path / "x_rank_1.json", dump(**entry))
    assert rows(path, "duration_ns", "created_ns", "start_seen_ns", "end_seen_ns", "communicator_rank") == [
        (123457, 0, 5, None, 1)
    ]


def test_a_dump_of_an_early_version(tmp_path: Path) -> None:
    entry = {"pg_name": "default_pg", "seq_id": 4, "profiling_name": "nccl:broadcast", "input_sizes": [[3, 4]]}
    entry |= {"input_dtypes": ["Half"], "time_created_ns": 10**18, "state": "strange"}
    path = write(tmp_path / "early.json", {"nccl_version": "2.20.5", "pg_config": {}, "entries": [entry]})
    columns = ("communicator", "communicator_size", "sequence", "kind", "message_bytes", "state", "rank")
    assert rows(path, *columns) == [("default_pg", None, 4, "broadcast", 24, None, None)]


@pytest.mark.parametrize(
    "ranks", ["[0, 1", "nonsense", 5, None, [True, "x"], [-1], "[[[[", {"a": 1}, [2**40]], ids=lambda r: str(r)[:9]
)
def test_ranks_of_a_group_that_are_no_ranks(ranks: object, tmp_path: Path) -> None:
    document = dump() | {"pg_config": {"0": {"ranks": ranks}, "1": 5}}
    assert rows(write(tmp_path / "x_rank_0.json", document), "communicator", "communicator_size") == [("0", None)]


@pytest.mark.parametrize(
    "sizes", [[[2**50]], [[2**40, 2**40]], [[2**47] * 2], [["x"]], ["x"], 5, {}, [[-1]], [[1.5]], [[2**47, 2**14]] * 4]
)
def test_sizes_that_are_no_sizes(sizes: object, tmp_path: Path) -> None:
    path = write(tmp_path / "x_rank_0.json", dump(input_sizes=sizes, input_dtypes=["Float"]))
    assert rows(path, "element_count", "message_bytes") == [(None, None)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl:ALLGATHER_coalesced", "all_gather"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("AllToAll", "all_to_all"),
        ("ncclSendRecv", None),
        ("nccl:_reduce_oop", "reduce"),
        ("nccl:gather", "gather"),
        ("nccl:scatter", "scatter"),
        ("Bcast", "broadcast"),
        ("nccl:something", None),
    ],
)
def test_kinds_of_calls(name: str, kind: str | None) -> None:
    assert names.find_call_kind(name) == kind


def test_names_of_data_types() -> None:
    listed = ["ncclFloat8e4m3", "Float8_e5m2", "ncclUint64", "Long", "ComplexDouble", "Bool", "Bits2x4"]
    assert [names.normalize_data_type(n) for n in listed] == [
        *("float8_e4m3", "float8_e5m2", "uint64", "int64", "complex128", "bool", "bits2x4"),
    ]
    assert [names.find_item_bytes(names.normalize_data_type(n) or "") for n in listed] == [1, 1, 8, 8, 16, 1, None]


# NCCL Inspector


@pytest.mark.parametrize("rank", range(2))
def test_calls_of_inspector(rank: int) -> None:
    records = [json.loads(line) for line in LOGS[rank].read_text().splitlines()]
    origin = min(r["coll_perf"]["event_trace_ts"]["coll_start_ts"] for r in records if "coll_perf" in r)
    expected = []
    for record in records:
        perf = record.get("coll_perf") or {k.replace("p2p", "coll", 1): v for k, v in record["p2p_perf"].items()}
        channels = perf.get("event_trace_ts", {}).get("kernel_events", [])
        times = (
            [min(c["kernel_start_ts"] for c in channels), max(c["kernel_stop_ts"] for c in channels)]
            if channels
            else []
        )
        start, end = ((t - origin) * 1000 for t in times) if times else (None, None)
        expected.append(
            {
                "rank": rank,
                "process_id": record["metadata"]["pid"],
                "name": perf["coll"],
                "communicator": str(int(record["header"]["id"], 16)),
                "communicator_name": record["header"]["comm_name"],
                "communicator_rank": rank,
                "sequence": perf["coll_sn"],
                "message_bytes": perf["coll_msg_size_bytes"],
                "duration_ns": perf["coll_exec_time_us"] * 1000,
                "start_ns": start,
                "end_ns": end,
                "recorded_bus_gb_per_s": perf["coll_busbw_gbs"],
            }
        )
    with tk.load(LOGS[rank]) as trace:
        read = trace.frame("communication_calls", names="string").select(list(expected[0])).collect().to_dicts()
        assert trace.undecoded == {}
        assert "hostname" not in str(trace["capture_info"].to_pylist())
    assert read == expected


@pytest.mark.filterwarnings("ignore:.*aligned only by the UTC time")
def test_bandwidths_are_those_of_inspector() -> None:
    with tk.load_many(LOGS) as ranks:
        logged = ranks.recipe("comm_log_sum")["logged"]
        summary = ranks.recipe("comm_sum")["summary"]
    for row in logged.iter_rows(named=True):
        shortest = [json.loads(line) for line in LOGS[1].read_text().splitlines()]  # rank 1 waits less
        perfs = [r["coll_perf"] for r in shortest if "coll_perf" in r]
        stated = [p["coll_busbw_gbs"] for p in perfs if names.find_call_kind(p["coll"]) == row["kind"]]
        if stated:
            assert row["bus_gb_per_s"] == pytest.approx(stated[0], abs=1e-3)
            (same,) = summary.filter(kind=row["kind"]).rows(named=True)
            assert (same["time_ns"], same["bus_gb_per_s"]) == (
                row["time_ns"],
                pytest.approx(row["bus_gb_per_s"], abs=1e-3),
            )


# Profiler plug-ins of NCCL


def test_events_of_a_plug_in(tmp_path: Path) -> None:
    columns = ("device_id", "communicator", "communicator_size", "communicator_rank", "sequence", "message_bytes")
    facts = [(r, "8612235153520363772", 2, r, 3, 1 << 22) for r in range(2)]
    assert rows(FIXTURES / "events.jsonl", *columns) == facts
    times = ("created_ns", "start_ns", "end_ns", "kernel_id", "algorithm", "protocol", "channel_count")
    assert rows(FIXTURES / "events.jsonl", *times) == [
        (0, 3625, 70000, 1, "RING", "SIMPLE", 24),
        (0, 5625, 71000, 2, "RING", "SIMPLE", 24),
    ]
    with tk.load(FIXTURES / "events.jsonl") as trace:
        kernels = trace.frame("kernels", names="string").collect()
        assert trace.undecoded == UNDECODED
    assert kernels["short_name"].to_list() == ["ncclDevKernel_AllReduce_Sum_f32_RING_LL"] * 2
    assert kernels.select("device_id", "correlation_id", "grid_x", "block_x").rows() == [
        (0, 77, 24, 544),
        (1, 78, 24, 544),
    ]


UNDECODED = {
    name: tk.Undecoded(2, is_auxiliary=True)
    for name in ("ProfilerLifecycle", "ncclProfileKernelLaunch", "state KernelChStop")
}


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus beside the checkout")
@pytest.mark.parametrize("number", range(2))
def test_public_logs_of_a_plug_in(number: int) -> None:
    path = sorted(CORPUS.rglob("*.jsonl"))[number]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kernels = [r for r in records if r.get("recordType") == "cuptiActivity"]
    calls = [r for r in records if r.get("type") == "ncclProfileColl"]
    with tk.load(path) as trace:
        read = trace.frame("communication_calls", names="string").collect()
        times = trace.frame("kernels").select((pl.col("end_ns") - pl.col("start_ns")).sum()).collect().item()
        assert sum(u.count for u in trace.undecoded.values()) == len(records) - len(kernels) - len(calls)
    assert times == sum(round(k["stop"]["ts"] * 1000) - round(k["start"]["ts"] * 1000) for k in kernels)
    assert read.select("sequence", "communicator_rank", "channel_count").rows() == [
        (c["details"]["seq"], c["rank"], c["details"]["channels"]) for c in calls
    ]
    of_rank = {c["rank"]: k["deviceId"] for c, k in zip(sorted(calls, key=launch_of), kernels, strict=False)}
    assert read["kernel_id"].null_count() == 0
    assert set(read["device_id"]) == {k["deviceId"] for k in kernels}
    assert len(of_rank) > 0


def launch_of(record: Row) -> float:
    return float(record["start"]["ts"])


# Files that are damaged, or something else


@pytest.mark.parametrize("path", [*DUMPS, *LOGS, FIXTURES / "events.jsonl"], ids=lambda p: p.name)
def test_gzipped_and_renamed_files_read_the_same(path: Path, tmp_path: Path) -> None:
    other = tmp_path / f"rank{path.stem[-1]}.unknown"
    other.write_bytes(gzip.compress(path.read_bytes()))
    with tk.load(path) as plain, tk.load(other) as packed:
        assert packed.format == "nccl"
        assert packed["communication_calls"].equals(plain["communication_calls"])


@pytest.mark.parametrize("path", [DUMPS[0], LOGS[0]], ids=lambda p: p.name)
def test_a_truncated_file_is_read_up_to_its_last_complete_call(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / path.name
    cut.write_bytes(data[: len(data) // 2 + 20])
    with pytest.warns(TracekitWarning, match="the file is truncated"), tk.load(cut) as trace:
        assert 0 < trace.count("communication_calls") < len(rows(path, "kind"))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('{"pg_config":{},"entries":[]}', None, ""),
        (
            '{"pg_config":{},"entries":[{"state":"started"}]}',
            CorruptTraceError,
            "no entry of the flight recorder has a name",
        ),
        ('{"pg_config":{', CorruptTraceError, "no complete records"),
        ('{"header":{"id":"0x1"},"coll_perf":{}}', CorruptTraceError, "no complete collectives"),
        ('{"answer":42}', UnknownFormatError, "not a log of collectives|JSON"),
    ],
)
def test_files_without_calls(text: str, error: type[TracekitError] | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    if error is None:
        assert rows(path, "kind") == []
    else:
        with pytest.raises(error, match=words):
            tk.load(path, format="nccl")


@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("path", [DUMPS[0], PICKLES[0], LOGS[0], FIXTURES / "events.jsonl"], ids=lambda p: p.name)
def test_damaged_files_raise_only_our_errors(path: Path, tmp_path: Path) -> None:
    data, dice = path.read_bytes(), random.Random(5)
    for case in range(300 if ALL else 25):
        harmed = bytearray(data)
        for _ in range(dice.choice((1, 3, 20))):
            at = dice.randrange(len(harmed))
            harmed[at : at + dice.choice((0, 1, 9))] = dice.choice(
                (b"", b"9" * 25, b'"', b"}", b"[", b"null", b"-1", b"\xff")
            )
        other = tmp_path / f"{case}_rank0"
        other.write_bytes(harmed)
        try:
            with tk.load(other, format="nccl") as trace:
                for name in trace.tables:
                    trace.table(name).validate(full=True)
        except TracekitError:
            continue


def test_logs_are_joined_with_captures_of_the_same_run() -> None:
    with tk.load_many(FIXTURES / "captures") as captures, tk.load_many(FIXTURES / "logs") as logs:
        joined = captures.join_logs(logs)
    assert (joined.height, joined["sequence"].null_count()) == (63, 0)
    assert joined.filter(pl.col("communicator").str.starts_with("2")).height == 3
    same = pl.col("communicator") == pl.col("log_communicator")
    assert joined.filter(~same)["log_communicator"].unique().to_list() == ["2 [0] of 1"] * (
        not joined.filter(~same).is_empty()
    )
    for rank in range(2):
        entries = pickle.loads((FIXTURES / "logs" / f"normal_nostack_rank{rank}.pickle").read_bytes())["entries"]
        last = {
            e["process_group"][0]: e["collective_seq_id"] for e in entries if e["profiling_name"] == "nccl:all_reduce"
        }
        reduced = joined.filter((pl.col("rank") == rank) & (pl.col("kind") == "all_reduce"))
        of_group = reduced.group_by(pl.col("log_communicator").str.head(1)).agg(pl.col("sequence").max())
        assert dict(of_group.iter_rows()) == last


PRIVATE = ("jdoe", "node17.example", "/home/jdoe/secret")


@pytest.mark.parametrize("kind", ["pickle", "json", "inspector"])
def test_private_values_are_redacted(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x_rank_0"
    frames = [{"name": "main", "filename": f"{PRIVATE[2]}/train.py", "line": 3}]
    if kind == "inspector":
        text = LOGS[0].read_text().replace("example-hostname", PRIVATE[1])
        path.write_text(text)
    elif kind == "json":
        write(path, dump(thread_name=f"{PRIVATE[2]}/run"))
    else:
        path.write_bytes(pickle.dumps(dump(frames=frames, input_sizes=[[4]], input_dtypes=["Float"]), 2))
    copy = tmp_path / "copy_rank_0"
    counts = tk.redact(path, copy)
    assert sum(counts.values()) > 0
    assert not any(value.encode() in copy.read_bytes() for value in PRIVATE)
    with tk.load(path) as before, tk.load(copy) as after:
        assert after["communication_calls"].equals(before["communication_calls"])
        if kind == "pickle":
            assert after["stacks"].equals(before["stacks"])


@pytest.mark.parametrize("path", [*PICKLES, *DUMPS, *LOGS, FIXTURES / "events.jsonl"], ids=lambda p: p.name)
def test_redacted_fixtures_read_the_same(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"copy_rank{path.stem[-1]}"
    tk.redact(path, copy)
    with tk.load(path) as before, tk.load(copy) as after:
        assert after["communication_calls"].equals(before["communication_calls"])


# Numbers of any size and form, and ids that many records share


def inspector_record(**members: Any) -> Row:
    """Return a record of NCCL Inspector, with other values of members that ``part__name`` names."""
    record: Row = {
        "header": {"id": "0x9e7a", "rank": 31, "n_ranks": 32},
        "metadata": {"dump_timestamp_us": 1_748_030_377_748_202, "pid": 42},
        "coll_perf": {"coll": "ReduceScatter", "coll_sn": 3, "coll_msg_size_bytes": 64, "coll_exec_time_us": 41_057},
    }
    for path, value in members.items():
        part, name = path.split("__")
        record[part][name] = value
    return record


def write_lines(path: Path, *records: Row) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("4.1057e+04", 41_057_000),
        ("41057E0", 41_057_000),
        ("4.1057e-1", 411),
        ("0.4567", 456),
        ("41057.5", 41_057_500),
        ("1e+22", None),
        ("-5", None),
        ("12345678901234567890123", None),
        ("null", None),
        ('"5 us"', None),
    ],
)
def test_durations_in_every_form_of_a_number(text: str, duration: int | None, tmp_path: Path) -> None:
    line = json.dumps(inspector_record()).replace("41057", text)
    path = tmp_path / "log.jsonl"
    path.write_text(line)
    assert rows(path, "duration_ns") == [(duration,)]


def test_times_of_kernels_in_every_form_of_a_number(tmp_path: Path) -> None:
    """A number that is too long is no time. Its first digits are none either."""
    line = json.dumps(inspector_record(coll_perf__event_trace_ts={"coll_start_ts": 0, "kernel_events": "KERNELS"}))
    kernels = '[{"kernel_start_ts":1748030377.7e6,"kernel_stop_ts":0},{"kernel_start_ts":17480303777000001234567}]'
    path = tmp_path / "log.jsonl"
    path.write_text(line.replace('"KERNELS"', kernels + ',"more":[{"kernel_stop_ts":1.7480303777e15}]'))
    ((start, end, seen),) = rows(path, "start_ns", "end_ns", "end_seen_ns")
    assert (seen - start, end - start) == (48_202_000, 0)


@pytest.mark.parametrize(
    ("member", "value", "column"),
    [
        ("header__rank", 99_999_999_999, "rank"),
        ("header__rank", -1, "communicator_rank"),
        ("header__n_ranks", -5, "communicator_size"),
        ("coll_perf__coll_msg_size_bytes", -7, "message_bytes"),
        ("coll_perf__coll_n_channels", 1 << 40, "channel_count"),
        ("coll_perf__coll_algo", None, "algorithm"),
        ("coll_perf__coll_busbw_gbs", float("nan"), "recorded_bus_gb_per_s"),
    ],
)
def test_values_that_are_none_of_their_column(member: str, value: object, column: str, tmp_path: Path) -> None:
    assert rows(write_lines(tmp_path / "log.jsonl", inspector_record(**{member: value})), column) == [(None,)]


def test_a_log_with_a_byte_order_mark(tmp_path: Path) -> None:
    for path in (LOGS[0], FIXTURES / "events.jsonl"):
        marked = tmp_path / path.name
        marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        with tk.load(path) as plain, tk.load(marked) as trace:
            assert trace["communication_calls"].equals(plain["communication_calls"])


def plug_in_records() -> tuple[Row, ...]:
    """Return the start of a profiler, a launch, a call, a state and a kernel of one rank."""
    return tuple(json.loads(line) for line in (FIXTURES / "events.jsonl").read_text().splitlines()[:5])


def test_launches_and_kernels_that_share_an_id_do_not_multiply(tmp_path: Path) -> None:
    start, launch, call, _, kernel = plug_in_records()
    path = write_lines(tmp_path / "log.jsonl", start, call, *[launch] * 5000, *[kernel] * 5000)
    assert rows(path, "kernel_id") == [(None,)]
    with tk.load(path) as trace:
        assert trace.count("kernels") == 5000


@pytest.mark.parametrize("device", [None, -1, 1 << 40])
def test_kernels_without_a_device_are_counted(device: int | None, tmp_path: Path) -> None:
    start, launch, call, _, kernel = plug_in_records()
    path = write_lines(tmp_path / "log.jsonl", start, launch, call, kernel | {"deviceId": device})
    assert rows(path, "kernel_id", "device_id", "start_ns") == [(None, None, None)]
    with tk.load(path) as trace:
        assert trace.count("kernels") == 0
        assert trace.undecoded["KERNEL"].count == 1


@pytest.mark.parametrize(("stream", "number"), [("0x3d", 61), (13, 13), ("13", 13), ("0x", None), (None, None)])
def test_streams_are_hexadecimal_only_with_a_prefix(stream: object, number: int | None, tmp_path: Path) -> None:
    start, launch, call, _, kernel = plug_in_records()
    path = write_lines(tmp_path / "log.jsonl", start, launch, call, kernel | {"stream": stream})
    with tk.load(path) as trace:
        assert trace["kernels"]["stream_id"].to_pylist() == [number]


def test_times_of_a_plug_in_with_an_exponent(tmp_path: Path) -> None:
    records = plug_in_records()
    plain = write_lines(tmp_path / "plain.jsonl", *records)
    other = tmp_path / "other.jsonl"
    other.write_text(plain.read_text().replace("8000000031.5", "8.0000000315e9"))
    with tk.load(plain) as expected, tk.load(other) as trace:
        assert trace["communication_calls"].equals(expected["communication_calls"])
    plain.write_text(plain.read_text().replace("8000000031.5", "80000000315123456789012"))
    assert rows(plain, "created_ns") == [(None,)]


def test_times_of_many_calls_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of all kernels of all calls are converted together. Calls without kernels have none."""
    converted: list[int] = []
    convert = lines.map_texts_expr
    monkeypatch.setattr(lines, "map_texts_expr", lambda *args: converted.append(1) or convert(*args))
    kernels = [{"kernel_start_ts": 3 + i, "kernel_stop_ts": 9 + i} for i in range(2)]
    traces = [{"coll_start_ts": 1, "kernel_events": kernels}, {"coll_start_ts": 1, "kernel_events": []}] * 50
    path = write_lines(tmp_path / "log.jsonl", *(inspector_record(coll_perf__event_trace_ts=trace) for trace in traces))
    assert rows(path, "start_ns", "end_ns") == [(2_000, 9_000), (None, None)] * 50
    assert len(converted) < 10
