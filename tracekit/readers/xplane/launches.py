"""Find where the host launched the programs of TPUs, and place the ops of the programs there.

The profiler numbers what one thread hands to another, and a thread to a device: the event of the producer and that of
the consumer contain the same number. From the run of a program, these numbers lead back to the thread that called the
runtime, often through several other threads. A run that leads to no event of the host is placed on the line of its
device.

All ops of a program are launched by one event. So that each activity belongs to its op, the ops of a program become
ranges of 1 ns from the start of this event on, in the order in which they ran, each with an API call without a name
that takes no time. If there are more ops than ns until the next event of the thread, the others belong to the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.readers.xplane import cores as tpu
from tracekit.readers.xplane.thunks import STEP_PATTERN, TRACE_ME, XLA

if TYPE_CHECKING:
    from tracekit.readers.xplane.cores import CoreEvents

MAX_HANDOVERS, _MAX_SIBLINGS = 16, 16
"""Maximum number of threads between a run and the call of the runtime, and of events that are skipped on a thread."""
_LARGEST_ROOM = 1 << 40
_KEY = ("flow_type", "flow")


class Launches(NamedTuple):
    """What the host launched on TPU cores.

    Attributes:
        activities: The columns of each table of activities, by table name.
        calls: Columns ``thread_id``, ``start_ns``, ``end_ns``, ``correlation_id`` of the calls that launched them.
        ranges: Columns ``thread_id``, ``start_ns``, ``end_ns``, ``domain``, ``name``, ``payload`` of programs and ops,
            and of the other events of devices.
    """

    activities: dict[str, pl.DataFrame]
    calls: pl.DataFrame
    ranges: pl.DataFrame


def build_launches(
    cores: CoreEvents, flows: pl.DataFrame, on_host: pl.DataFrame, spans: pl.DataFrame, first_id: int
) -> Launches:
    """Return the activities of TPU cores, with their calls and ranges.

    Args:
        cores: The events of cores.
        flows: The columns of ``Hosts.flows``, and ``thread_id``.
        on_host: The ranges of the host: ``thread_id``, ``start_ns``, ``end_ns``, ``name``.
        spans: The events of devices that are no activities, with the columns of ``hosts.DEVICE_SPANS``.
        first_id: The first correlation id.
    """
    times = [
        frame.select("thread_id", time=pl.col(column))
        for frame in ((on_host, spans) if cores.runs.height else (on_host.clear(),))
        for column in ("start_ns", "end_ns")
    ]
    launches = find_launches(cores.runs, flows)
    has_steps = on_host["name"].cast(pl.String).str.contains(STEP_PATTERN).any()
    steps = cores.steps.clear() if has_steps and launches.height else cores.steps
    launches = launches if steps.is_empty() else launches.clear()
    placed = place_operations(cores, launches, pl.concat(times))
    ids = placed.select("run", "op", correlation_id=pl.col("call") + first_id)
    activities = {
        name: frame.join(ids, on=["run", "op"], how="left", nulls_equal=True, maintain_order="left")
        for name, frame in tpu.build_activities(cores).items()
    }
    no_payload = {"payload": pl.lit(None, pl.String)}
    others = spans.filter("has_duration").with_columns(name=pl.col("name").cast(pl.String))
    ranges = [
        others.with_columns(domain=pl.lit(TRACE_ME)),
        cores.outer.with_columns(domain=pl.lit(TRACE_ME), **no_payload),
        build_ranges(placed, cores.kinds).with_columns(**no_payload),
        steps.with_columns(domain=pl.lit(None, pl.String), **no_payload),
    ]
    columns = ["thread_id", "start_ns", "end_ns", "domain", "name", "payload"]
    return Launches(activities, build_calls(placed, first_id), pl.concat([frame.select(columns) for frame in ranges]))


def find_launches(runs: pl.DataFrame, flows: pl.DataFrame) -> pl.DataFrame:
    """Return the event of the host that launched each run.

    Args:
        runs: Columns ``run``, ``flow_type``, ``flow``.
        flows: The columns of ``Hosts.flows``, and ``thread_id``.

    Returns:
        Columns ``run``, ``launch_thread_id``, ``launch_ns``, with one row per run whose launch was recorded.
    """
    producers = flows.rename({"producer_type": "flow_type", "producer": "flow"}).drop_nulls("flow")
    producers = producers.unique(_KEY, keep="first", maintain_order=True).select(
        *_KEY, "thread_id", "start_ns", "end_ns"
    )
    consumers = flows.drop_nulls("consumer").select(
        "thread_id",
        "start_ns",
        outer_start_ns="start_ns",
        outer_end_ns="end_ns",
        flow_type="consumer_type",
        flow="consumer",
    )
    consumers = consumers.sort("start_ns", maintain_order=True)
    places = runs.select("run", *_KEY).join(producers, on=_KEY, maintain_order="left")
    for _ in range(MAX_HANDOVERS):
        outer = _find_consumers(places, consumers).join(producers, on=_KEY, maintain_order="left")
        if outer.is_empty():
            break
        places = pl.concat([places.join(outer.select("run"), on="run", how="anti"), outer.select(places.columns)])
    return places.select("run", launch_thread_id="thread_id", launch_ns="start_ns")


def _find_consumers(places: pl.DataFrame, consumers: pl.DataFrame) -> pl.DataFrame:
    """Return what was taken by the innermost event around each place: ``run``, ``flow_type``, ``flow``."""
    pending = places.select("run", "thread_id", "end_ns", "start_ns").sort("start_ns")
    parts = []
    for _ in range(_MAX_SIBLINGS):
        joined = pending.join_asof(consumers, on="start_ns", by="thread_id", check_sortedness=False)
        joined = joined.drop_nulls("outer_end_ns")
        is_around = pl.col("outer_end_ns") >= pl.col("end_ns")
        parts.append(joined.filter(is_around).select("run", *_KEY))
        others = joined.filter(~is_around).select("run", "thread_id", "end_ns", start_ns=pl.col("outer_start_ns") - 1)
        pending = others.sort("start_ns")
        if pending.is_empty():
            break
    return pl.concat(parts)


def place_operations(cores: CoreEvents, launches: pl.DataFrame, bounds: pl.DataFrame) -> pl.DataFrame:
    """Place the ops of each run on the thread that launched it.

    Args:
        cores: The events of cores.
        launches: Columns ``run``, ``launch_thread_id``, ``launch_ns``.
        bounds: Columns ``thread_id``, ``time``: starts and ends of all events of threads.

    Returns:
        One row per run and op, and one per run of which no op was recorded: ``run``, ``op``, ``thread_id``, ``at_ns``
        (the launch), ``is_alone`` (whether there was no place for a range of its own), ``module_start_ns``,
        ``module_end_ns`` (range of the program) and ``call`` (number of the call). Runs of one program that the
        same event launched on several devices share the range of the program.
    """
    runs = cores.runs.join(launches, on="run", how="left", maintain_order="left").with_columns(
        thread_id=pl.coalesce("launch_thread_id", "thread_id"), launch_ns=pl.coalesce("launch_ns", "start_ns")
    )
    named = cores.ops.drop_nulls("run").with_columns(cores.kinds["name"].gather(cores.ops.drop_nulls("run")["op"]))
    firsts = named.group_by("run", "op", maintain_order=True).agg(pl.col("name", "start_ns").first())
    group = ["thread_id", "launch_ns", "module", "program_id"]
    op_of_device = ["group", "device_id", "name"]
    rows = runs.select("run", "device_id", *group, run_start_ns="start_ns").join(
        firsts, on="run", how="left", maintain_order="left"
    )
    ids = rows.select(group).unique(maintain_order=True).with_row_index("group")
    rows = rows.join(ids, on=group, nulls_equal=True, maintain_order="left")
    order = pl.coalesce(pl.col("start_ns") - pl.col("run_start_ns"), pl.lit(0, pl.Int64))
    slots = rows.group_by(op_of_device).agg(order.min().alias("order"), pl.col("run").min().alias("first"))
    slots = slots.sort("group", "device_id", "order", "first", "name").with_columns(
        slot=pl.when(pl.col("name").is_null()).then(0).otherwise(pl.int_range(1, pl.len() + 1).over("group"))
    )
    sizes = slots.group_by("group", maintain_order=True).agg(size=pl.col("slot").max() + 1)
    placed = _find_room(ids, bounds).join(sizes, on="group", maintain_order="left")
    first = pl.col("size").cum_sum().over("thread_id", "launch_ns") - pl.col("size")
    placed = placed.with_columns(first=pl.min_horizontal(first, pl.col("room") - 1))
    placed = placed.with_columns(last=pl.min_horizontal(pl.col("first") + pl.col("size"), "room"))
    rows = rows.join(slots.select(*op_of_device, "slot"), on=op_of_device, nulls_equal=True, maintain_order="left")
    rows = rows.join(placed.select("group", "first", "last"), on="group", maintain_order="left")
    has_place = (pl.col("first") + pl.col("slot") < pl.col("last")) & (pl.col("slot") > 0)
    at = pl.col("launch_ns") + pl.col("first") + pl.when(has_place).then("slot").otherwise(0)
    rows = rows.with_columns(at_ns=at, is_alone=~has_place)
    calls = rows.select("group", "at_ns").unique(maintain_order=True).with_row_index("call")
    rows = rows.join(calls, on=["group", "at_ns"], maintain_order="left")
    return rows.select(
        "run",
        "op",
        "thread_id",
        "at_ns",
        "is_alone",
        "module",
        "program_id",
        "name",
        pl.col("call").cast(pl.Int64),
        module_start_ns=pl.col("launch_ns") + pl.col("first"),
        module_end_ns=pl.col("launch_ns") + pl.col("last"),
    )


def _find_room(places: pl.DataFrame, bounds: pl.DataFrame) -> pl.DataFrame:
    """Add the time from each launch to the next event of its thread, in ns, as the column ``room``."""
    times = bounds.sort("time").select("thread_id", time="time", bound="time")
    rows = places.with_columns(time=pl.col("launch_ns") + 1).sort("time", maintain_order=True)
    joined = rows.join_asof(times, on="time", by="thread_id", strategy="forward", check_sortedness=False)
    room = pl.coalesce(pl.col("bound") - pl.col("launch_ns"), pl.lit(_LARGEST_ROOM))
    return joined.with_columns(room=room).sort("group")


def build_calls(placed: pl.DataFrame, first_id: int) -> pl.DataFrame:
    """Return the calls that launched ops: ``thread_id``, ``start_ns``, ``end_ns``, ``correlation_id``."""
    calls = placed.unique("call", keep="first", maintain_order=True).sort("call")
    return calls.select("thread_id", start_ns="at_ns", end_ns="at_ns", correlation_id=pl.col("call") + first_id)


def build_ranges(placed: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of programs and ops: ``thread_id``, ``start_ns``, ``end_ns``, ``domain``, ``name``."""
    modules = placed.drop_nulls("module").unique(["thread_id", "module_start_ns", "module"], maintain_order=True)
    ops = placed.filter(~pl.col("is_alone")).unique("call", keep="first", maintain_order=True)
    ops = ops.with_columns(kinds["op_name"].gather(ops["op"]))
    values = {"name": "op_name", "hlo_op": "name", "hlo_module": "module", "program_id": "program_id"}
    parts = [pl.format(f"{name}={{}}", column) for name, column in values.items()]
    return pl.concat(
        [
            modules.select(
                "thread_id",
                start_ns="module_start_ns",
                end_ns="module_end_ns",
                name=pl.format("XlaModule:#hlo_module={}#", "module"),
            ),
            ops.select(
                "thread_id",
                start_ns="at_ns",
                end_ns=pl.col("at_ns") + 1,
                name=pl.format("Thunk:#{}#", pl.concat_str(parts, separator=",", ignore_nulls=True)),
            ),
        ]
    ).with_columns(domain=pl.lit(XLA))
