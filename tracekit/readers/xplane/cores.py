"""Read the planes of TPU cores: the programs and ops that they ran.

The line ``XLA Modules`` contains the runs of compiled programs, and ``XLA Ops`` the ops in them. An op that runs
others, such as a loop, contains their events. Only the innermost ops become kernels, so that each nanosecond counts
once. The line ``Async XLA Ops`` contains copies and collectives from their start to their end, while the core runs
other ops.

What an op is (its program, its path in the source, its cost) is stored once per op, as values of the metadata of
events.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.common.protobuf.fields import read_strings
from tracekit.readers.xplane.hosts import convert_to_frame
from tracekit.readers.xplane.values import METADATA_VALUES, EventValues
from tracekit.readers.xplane.viewer import ViewerPlane

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tracekit.readers.xplane.space import Plane

CORE = re.compile(r"/device:TPU:(\d{1,9})(?: .{1,100})?")
"""Matches the names of the planes of TPU cores, and of their sparse cores."""
STREAMS_PER_PLANE = 1 << 16
"""Distance between the numbers of the streams of two planes of one device."""
_MODULES, _OPS, _ASYNC = ("XLA Modules", "Sparse Core Modules"), ("XLA Ops", "Sparse Core Ops"), "Async XLA Ops"
STEPS = "Steps"
_DISPLAY_NAME = 4
_COPY, _CUSTOM_CALL = "copy-start", "custom-call"
_NAME_OF_OP = r"^%([^\s=(){},]{1,512}) ="
_MODULE_NAME, _MODULE_ID = r"^(.+?)(?:\(\d+\))?$", r"\((\d{1,20})\)$"
_TF_OP = r"(?s)^(.*):[^:]*$"
_NUMBER = r"(?:\.\d{1,18})+$"
_SHAPE = r"[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?"
_STEP_NUMBER = r"^(\d{1,18})$"
_SPACE = r"S\((\d{1,3})\)"
_HOST_SPACE = "5"
_GIGA, _TERA = 10**9, 10**12
_PS_PER_NS, _MAX_PS = 1000, 1 << 60
_MAX_INT64 = float((1 << 63) - 1)
_COSTS = {"flop": "flops", "model_flop": "model_flops", "accessed_bytes": "bytes_accessed"}
"""Columns of the costs of ops, and the names of their values."""
_DEVICE_CLOCK = {"device_ps": "device_offset_ps", "duration_ps": "device_duration_ps"}
_SPAN_OF_OP = {"line": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "op": pl.Int64()}
_OF_EVENTS: Mapping[str, pl.DataType] = _SPAN_OF_OP | dict.fromkeys(_DEVICE_CLOCK, pl.Int64())
_OP = {
    "name": pl.String(),
    "text": pl.String(),
    "program_id": pl.Int64(),
    "op_name": pl.String(),
    "category": pl.String(),
    "shape": pl.String(),
    **dict.fromkeys(_COSTS, pl.Int64()),
}
OPS = {"device_id": pl.Int32(), "stream_id": pl.Int64(), "run": pl.Int64(), "is_async": pl.Boolean(), **_SPAN_OF_OP}
RUNS = {
    "run": pl.Int64(),
    "device_id": pl.Int32(),
    "stream_id": pl.Int64(),
    "thread_id": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "module": pl.String(),
    "program_id": pl.Int64(),
    "flow_type": pl.Int64(),
    "flow": pl.Int64(),
}


class CoreEvents(NamedTuple):
    """The events of TPU cores.

    Attributes:
        ops: The innermost ops, and the asynchronous ones: the columns ``OPS``, with the row of the op in ``kinds``.
        kinds: What each op is: ``name``, ``text`` (of HLO), ``program_id``, ``op_name`` (path in the source),
            ``category``, ``shape``, ``flop``, ``model_flop``, ``accessed_bytes``.
        runs: The runs of programs: the columns ``RUNS``. ``thread_id`` is that of the line of the device.
        outer: The ops that contain others: ``thread_id``, ``start_ns``, ``end_ns``, ``name``.
        steps: The steps of the first core that has any: the same columns. ``thread_id`` is that of its programs.
    """

    ops: pl.DataFrame
    kinds: pl.DataFrame
    runs: pl.DataFrame
    outer: pl.DataFrame
    steps: pl.DataFrame


def list_lines_of_ops(plane: Plane) -> list[int]:
    """Return the indices of the lines of a plane whose events are ops, or none if the plane is not that of a core."""
    return [i for i, line in enumerate(plane.lines) if CORE.fullmatch(plane.name) and line.name in (*_OPS, _ASYNC)]


def read_names_of_ops(plane: Plane) -> pl.Series:
    """Return the name of the op of each name of events of a plane of a core."""
    return _Core(plane, (), 0, 0).read_kinds()["name"]


def read_cores(planes: Sequence[Plane], thread_ids: Sequence[Sequence[int]], first_device: int) -> CoreEvents:
    """Return the events of TPU cores.

    Args:
        planes: The planes of cores.
        thread_ids: For each plane, the id of the thread that stands for each of its lines.
        first_device: Number of the device of the first core.

    Raises:
        Damage: An event is invalid.
    """
    ops, kinds = [pl.DataFrame(schema=OPS)], [pl.DataFrame(schema=_OP)]
    runs, outer, steps = [pl.DataFrame(schema=RUNS)], [pl.DataFrame(schema=_SPAN)], pl.DataFrame(schema=_SPAN)
    first_run = first_kind = 0
    seen: dict[int, int] = {}
    for plane, ids in zip(planes, thread_ids, strict=True):
        device = get_device(plane)
        core = _Core(plane, ids, device + first_device, seen.get(device, 0))
        seen[device] = seen.get(device, 0) + 1
        own_kinds, own_runs = core.read_kinds(), core.read_runs().with_columns(pl.col("run") + first_run)
        own_ops = _use_device_clock(core.find_runs(core.read_ops(), own_runs))
        is_outer = _find_outer_ops(own_ops)
        outer.append(core.describe_outer_ops(own_ops.filter(is_outer), own_kinds))
        ops.append(own_ops.filter(~is_outer).with_columns(pl.col("op") + first_kind).select(*OPS))
        kinds.append(own_kinds)
        runs.append(own_runs)
        steps = core.read_steps() if steps.is_empty() else steps
        first_run, first_kind = first_run + own_runs.height, first_kind + own_kinds.height
    return CoreEvents(pl.concat(ops), pl.concat(kinds), pl.concat(runs), pl.concat(outer), steps)


_SPAN = {"thread_id": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), "name": pl.String()}


def get_device(plane: Plane) -> int:
    """Return the number of the device of a plane of a core."""
    match = CORE.fullmatch(plane.name)
    return int(match[1]) if match else 0


class _Core:
    """The plane of a TPU core, or of one of its sparse cores."""

    def __init__(self, plane: Plane, thread_ids: Sequence[int], device: int, number: int) -> None:
        self._plane = plane
        self._thread_ids = thread_ids
        self._device = device
        self._streams = [line.id + number * STREAMS_PER_PLANE for line in plane.lines]

    def read_kinds(self) -> pl.DataFrame:
        """Return what each op of the plane is, in the order of the metadata of events."""
        if isinstance(self._plane, ViewerPlane):
            return self._read_kinds_of_viewer(self._plane)
        names = self._plane.event_names
        order = np.argsort(names.metadata.starts, kind="stable")
        starts, stops = names.metadata.starts[order], names.metadata.stops[order]
        values = EventValues.of_messages(self._plane, starts, stops, METADATA_VALUES)
        display = decode(self._plane.buffer, starts, stops, {_DISPLAY_NAME})
        columns: dict[str, Any] = {
            "row": build_number_array(order),
            "text": names.texts.take(build_number_array(order)),
            "display": read_strings(self._plane.buffer, display.get(_DISPLAY_NAME), len(names.texts)),
            "program_id": build_number_array(*values.get_integers("program_id")),
            **{c: build_number_array(*values.get_integers(name)) for c, name in _COSTS.items()},
            **{
                c: values.get_strings(name).cast(pa.string())
                for c, name in (("tf_op", "tf_op"), ("category", "hlo_category"), ("shape", "shape_with_layout"))
            },
        }
        return _describe_kinds(convert_to_frame(pa.table(columns))).sort("row").select(*_OP)

    @staticmethod
    def _read_kinds_of_viewer(plane: ViewerPlane) -> pl.DataFrame:
        """Return what each op of a trace of the trace viewer is, by the number of its name."""
        ops = plane.read_ops()
        columns = {
            "text": ops["long_name"],
            "display": plane.batch.names.dictionary,
            "program_id": ops["program_id"],
            "tf_op": ops["tf_op"],
            "category": ops["hlo_category"],
            "shape": ops["shape_with_layout"],
            **{c: ops[name] for c, name in _COSTS.items()},
        }
        return _describe_kinds(convert_to_frame(pa.table(columns))).select(*_OP)

    def read_runs(self) -> pl.DataFrame:
        """Return the runs of programs in the order of their starts. They are numbered from 0."""
        lines = [i for i, line in enumerate(self._plane.lines) if line.name in _MODULES]
        parts = [pl.DataFrame(schema=RUNS)]
        for events in self._plane.iterate_events(lines):
            values = EventValues.of_events(self._plane, events)
            columns = {
                "line": build_number_array(events.lines),
                "start_ns": build_number_array(events.start_ns),
                "end_ns": build_number_array(events.end_ns),
                "name": events.names.cast(pa.string()),
                **{
                    c: build_number_array(*values.get_integers(name))
                    for c, name in (("flow_type", "_ct"), ("flow", "_c"), ("own_id", "program_id"))
                },
            }
            number = pl.col("name").str.extract(_MODULE_ID).cast(pl.UInt64, strict=False).reinterpret(signed=True)
            frame = convert_to_frame(pa.table(columns)).with_columns(
                run=pl.lit(None, pl.Int64),
                module=pl.col("name").str.extract(_MODULE_NAME),
                program_id=pl.coalesce("own_id", number),
            )
            parts.append(self._add_places(frame).select(*RUNS))
        ordered = pl.concat(parts).sort("start_ns", maintain_order=True)
        return ordered.with_columns(run=pl.int_range(pl.len(), dtype=pl.Int64))

    def read_steps(self) -> pl.DataFrame:
        """Return the steps of the core, on the thread of its programs. Their names are those of annotated steps."""
        lines = {line.name: i for i, line in reversed([*enumerate(self._plane.lines)])}
        modules = [lines[name] for name in _MODULES if name in lines]
        parts = [pl.DataFrame(schema=_SPAN)]
        for events in self._plane.iterate_events([lines[STEPS]] if STEPS in lines and modules else []):
            columns = {
                "start_ns": build_number_array(events.start_ns),
                "end_ns": build_number_array(events.end_ns),
                "number": events.names.cast(pa.string()),
            }
            number = pl.col("number").str.extract(_STEP_NUMBER)
            frame = convert_to_frame(pa.table(columns)).with_columns(
                pl.lit(self._thread_ids[modules[0]], pl.Int64).alias("thread_id"),
                name=pl.format("step#step_num={}#", number),
            )
            parts.append(frame.drop_nulls("name").select(*_SPAN))
        return pl.concat(parts)

    def read_ops(self) -> pl.DataFrame:
        """Return the events of ops: the columns ``OPS`` except ``run``, and ``thread_id``."""
        parts = [pl.DataFrame(schema=_OF_EVENTS)]
        for events in self._plane.iterate_events(list_lines_of_ops(self._plane)):
            values = EventValues.of_events(self._plane, events)
            columns = {
                "line": build_number_array(events.lines),
                "start_ns": build_number_array(events.start_ns),
                "end_ns": build_number_array(events.end_ns),
                "op": events.names.indices,
                **{c: build_number_array(*values.get_integers(name)) for c, name in _DEVICE_CLOCK.items()},
            }
            parts.append(
                convert_to_frame(pa.table(columns)).select(pl.col(c).cast(kind) for c, kind in _OF_EVENTS.items())
            )
        is_async = pl.Series([line.name == _ASYNC for line in self._plane.lines], dtype=pl.Boolean)
        ops = self._add_places(pl.concat(parts))
        return ops.with_columns(is_async.gather(ops["line"]).alias("is_async"))

    def find_runs(self, ops: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
        """Add the run of a program in which each op ran, or null."""
        spans = runs.select("run", "start_ns", run_end_ns="end_ns")
        rows = ops.with_row_index("row").sort("start_ns", maintain_order=True)
        joined = rows.join_asof(spans, on="start_ns", check_sortedness=False).sort("row").drop("row")
        inside = (pl.col("start_ns") <= pl.col("run_end_ns")).fill_null(value=False)
        return joined.with_columns(run=pl.when(inside).then("run"))

    def describe_outer_ops(self, ops: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
        """Return the spans of ops that contain others, with their names."""
        return ops.with_columns(kinds["name"].gather(ops["op"])).select(*_SPAN)

    def _add_places(self, events: pl.DataFrame) -> pl.DataFrame:
        """Add the columns ``device_id``, ``stream_id`` and ``thread_id`` to events."""
        line = events["line"]
        return events.with_columns(
            pl.lit(self._device, pl.Int32).alias("device_id"),
            pl.Series("stream_id", self._streams, pl.Int64).gather(line),
            pl.Series("thread_id", list(self._thread_ids), pl.Int64).gather(line),
        )


def _describe_kinds(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the name and the path of ops, given ``text`` (of HLO, or the name), ``display`` (name) and ``tf_op``."""
    display_name = pl.when(pl.col("display") != "").then("display")
    return frame.with_columns(
        name=pl.coalesce(pl.col("text").str.extract(_NAME_OF_OP), display_name, "text"),
        op_name=pl.coalesce(pl.col("tf_op").str.extract(_TF_OP), "tf_op").replace("", None),
    )


def _use_device_clock(ops: pl.DataFrame) -> pl.DataFrame:
    """Replace the times of ops with those of the clock of their core, if they were recorded.

    The profiler converts the times of a core to the clock of the host. The conversion changes from time to time, so
    that converted durations can differ from the real ones. Therefore, only the first op of a run of a program keeps its
    time. A run that would begin before the previous one has ended begins at its end. Runs with ops whose times on the
    device were not recorded keep all their times.
    """
    limits = (pl.col(c).is_between(0, _MAX_PS) for c in _DEVICE_CLOCK)
    known = pl.all_horizontal(*limits).fill_null(value=False)
    timed = ops.with_row_index("row").filter(pl.col("run").is_not_null() & ~pl.col("is_async"))
    timed = timed.filter(known.all().over("run"))
    first = pl.col("device_ps").min().over("run")
    end_ps = pl.col("device_ps") - first + pl.col("duration_ps")
    timed = timed.with_columns(since_ps=pl.col("device_ps") - first, until_ps=end_ps)
    runs = timed.group_by("run").agg(at=pl.col("start_ns").min(), size=pl.col("until_ps").max() // _PS_PER_NS)
    runs = runs.sort("at", "run").with_columns(before=pl.col("size").cum_sum() - pl.col("size"))
    runs = runs.select("run", at=pl.col("before") + (pl.col("at") - pl.col("before")).cum_max())
    timed = timed.join(runs, on="run", maintain_order="left")
    times = {c: pl.col("at") + pl.col(ps) // _PS_PER_NS for c, ps in (("start_ns", "since_ps"), ("end_ns", "until_ps"))}
    timed = timed.select("row", **times)
    rows = timed["row"]
    return ops.with_columns(ops[c].scatter(rows, timed[c]) for c in ("start_ns", "end_ns"))


def _find_outer_ops(ops: pl.DataFrame) -> pl.Series:
    """Return a mask of the ops that contain the next op of their run and line. Asynchronous ops contain none."""
    rows = ops.with_row_index("row").filter(~pl.col("is_async") & (pl.col("end_ns") > pl.col("start_ns")))
    descending = [False, False, False, True]
    rows = rows.sort("line", "run", "start_ns", "end_ns", descending=descending, maintain_order=True)
    start, end = (pl.col(c).shift(-1).over("line", "run") for c in ("start_ns", "end_ns"))
    outer = rows.filter(((start < pl.col("end_ns")) & (end <= pl.col("end_ns"))).fill_null(value=False))
    mask = np.zeros(ops.height, np.bool_)
    mask[outer["row"].to_numpy()] = True
    return pl.Series(pa.array(mask))


def list_distinct_kinds(cores: CoreEvents) -> pl.DataFrame:
    """Return what the ops that ran are, with one row per ``program_id`` and ``name``. ``module`` is their program."""
    used = cores.ops.select("op", "run").drop_nulls("op").unique("op", maintain_order=True)
    modules = used.join(
        cores.runs.select("run", "module", own_id="program_id"), on="run", how="left", maintain_order="left"
    )
    kinds = cores.kinds.select(pl.all().gather(modules["op"])).hstack(modules.select("module", "own_id"))
    kinds = kinds.with_columns(program_id=pl.coalesce("program_id", "own_id")).drop("own_id")
    return kinds.drop_nulls("program_id").unique(["program_id", "name"], keep="first", maintain_order=True)


def build_activities(cores: CoreEvents) -> dict[str, pl.DataFrame]:
    """Return the columns of kernels, of asynchronous copies, and of runs of programs whose ops were not recorded.

    ``run`` and ``op`` (row of the op in ``kinds``) tell the operation of an activity.
    """
    kinds, ops = cores.kinds, cores.ops
    is_copy = (kinds["category"] == _COPY).fill_null(value=False).gather(ops["op"]).fill_null(value=False)
    is_copy &= ops["is_async"]
    copies, kernels = ops.filter(is_copy), ops.filter(~is_copy)
    names = kinds.select(
        "name", short_name=pl.col("name").str.replace(_NUMBER, ""), operation=_describe_operation_expr()
    )
    names = names.cast(pl.Categorical)
    whole = cores.runs.join(ops.select("run").drop_nulls().unique(), on="run", how="anti", maintain_order="left")
    return {
        "kernels": kernels.hstack(names.select(pl.all().gather(kernels["op"]))),
        "memcpys": copies.hstack(_describe_copies(kinds).select(pl.all().gather(copies["op"]))),
        "graph_launches": whole.with_columns(graph_id="program_id", op=pl.lit(None, pl.Int64)),
    }


def _describe_operation_expr() -> pl.Expr:
    """Return an expression for the kind of operation of an op: its category, and the primitive in its path.

    It is null for custom calls, which have the name of the kernel that they call.
    """
    primitive = pl.coalesce(pl.col("op_name").str.extract(r"([^/]{1,100})$"), pl.lit(""))
    text = pl.concat_str("category", primitive, separator=" ").str.strip_chars_end()
    return pl.when(pl.col("category") != _CUSTOM_CALL).then(text)


def _describe_copies(kinds: pl.DataFrame) -> pl.DataFrame:
    """Return ``bytes``, ``copy_kind`` and the kinds of memory of ops that copy. The first shape is the destination."""
    shapes = pl.col("shape").str.extract_all(_SHAPE)
    columns = {}
    for place, column in enumerate(("dst_memory_kind", "src_memory_kind")):
        shape = shapes.list.get(place, null_on_oob=True)
        is_host = shape.str.extract(_SPACE) == _HOST_SPACE
        columns[column] = pl.when(is_host).then(pl.lit("Pinned")).when(shape.is_not_null()).then(pl.lit("Device"))
    places = kinds.select(bytes="accessed_bytes", **columns)
    names = [
        pl.when(pl.col(c) == "Pinned").then(pl.lit("Host")).otherwise(c) for c in ("src_memory_kind", "dst_memory_kind")
    ]
    text = ("copy_kind", "src_memory_kind", "dst_memory_kind")
    return places.with_columns(copy_kind=pl.format("{}-to-{}", *names)).cast(dict.fromkeys(text, pl.Categorical()))


def build_device_rows(planes: Iterable[Plane], first_device: int) -> list[dict[str, Any]]:
    """Return one row of ``devices`` per TPU core."""
    rows: dict[int, dict[str, Any]] = {}
    for plane in planes:
        values, device = EventValues.of_plane(plane), get_device(plane) + first_device
        row = {
            "device_id": device,
            "name": values.get_strings("device_type_string")[0].as_py(),
            "memory_bandwidth_bytes_per_s": _get_rate(values, "peak_hbm_bw_gigabytes_per_second", _GIGA),
            "peak_flop_per_s": _get_rate(values, "peak_teraflops_per_second", _TERA),
        }
        if row["name"] is not None or device not in rows:
            rows.setdefault(device, row)
    return [rows[device] for device in sorted(rows)]


def _get_rate(values: EventValues, name: str, unit: int) -> int | None:
    """Return a rate of a device, or None if it was not recorded."""
    rates, valid = values.get_doubles(name)
    rate = float(rates[0]) * unit
    return round(rate) if valid[0] and 0 < rate < _MAX_INT64 else None
