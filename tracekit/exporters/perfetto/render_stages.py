"""Encode kernels, copies, sets and graph launches as GPU render stage events.

Perfetto draws these events as hardware queues of a GPU, and its panel for compute kernels lists the kernels with the
parameters of their launches. The names of the parameters are those that the panel shows.

Source: ``protos/perfetto/trace/gpu``, ``gpu_event_parser.cc`` and the user interface's plug-in ``GpuCompute`` of
https://github.com/google/perfetto.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.exporters.perfetto.events import EventArg, create_arg_fields, get_times_with_previous, require_values
from tracekit.exporters.perfetto.packets import encode_packet
from tracekit.exporters.perfetto.strings import EVENT_NAMES, LAUNCH_ARG_NAMES, STRING_VALUES
from tracekit.exporters.perfetto.wire import (
    FieldValues,
    PacketBatch,
    PacketField,
    Prefix,
    RepeatedFields,
    encode_field_tag,
    encode_fragments,
)
from tracekit.exporters.timeline import kinds
from tracekit.exporters.timeline.batches import (
    duration_expr,
    list_anomaly_args,
    list_column_names,
    select_available_args,
    value_exprs,
)
from tracekit.exporters.timeline.kinds import Arg, ArgumentValue
from tracekit.registry.tables import scan_table
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tracekit.exporters.perfetto.events import EventTimes
    from tracekit.exporters.perfetto.packets import PacketSequence
    from tracekit.exporters.perfetto.wire import Numbers
    from tracekit.exporters.timeline.blocks import RowBatch, TableRows
    from tracekit.exporters.timeline.kinds import EventKind
    from tracekit.exporters.timeline.layout import Layout
    from tracekit.exporters.timeline.tracks import LaneRegistry
    from tracekit.registry.tables import Tables
    from tracekit.system.sorting import Array

    Key = tuple[Any, ...]

_EVENT, _LAUNCH, _DIM = "GpuRenderStageEvent", "GpuRenderStageEvent.ComputeKernelLaunch", "GpuRenderStageEvent.Dim3"
_COMPUTE = 2
_CUDA, _HIP = 4, 5
_FIRST_QUEUE: Final = 16
"""Id of the queue of a lane is this number plus the number of the lane. The ids before it belong to the stages."""
_KERNELS_PER_PACKET = 1 << 12
_MAX_GPUS = 64
"""Number up to which the ids of devices are listed in the description of the machine."""
_MAX_SUBMISSION_ID = (1 << 32) - 1


class _Stage(NamedTuple):
    """A kind of activity.

    Attributes:
        iid: The interning id.
        name: The name, which programs show for activities without a name of their own.
        category: The category in Perfetto, or 0.
    """

    iid: int
    name: str
    category: int = 0


STAGES: Final[Mapping[EventKind, _Stage]] = {
    kinds.KERNELS: _Stage(1, "Kernel", _COMPUTE),
    kinds.MEMCPYS: _Stage(2, "Memcpy"),
    kinds.MEMSETS: _Stage(3, "Memset"),
    kinds.GRAPH_LAUNCHES: _Stage(4, "Graph"),
}
"""The kinds of events that can be drawn as GPU render stage events."""


def _product_expr(*columns: str) -> pl.Expr:
    """Return an expression for the product of integer columns."""
    product = pl.col(columns[0]).cast(pl.Int64)
    for column in columns[1:]:
        product *= pl.col(column).cast(pl.Int64)
    return product


_GRID, _BLOCK = ([f"{size}_{axis}" for axis in "xyz"] for size in ("grid", "block"))
_SIZES = {"grid_size": _GRID, "workgroup_size": _BLOCK, "thread_count": [*_GRID, *_BLOCK]}
_LAUNCH_SIZES = tuple(Arg(key, (ArgumentValue(kinds.INTEGER, _product_expr(*names)),)) for key, names in _SIZES.items())
_PROCESS = Arg("process_id", (ArgumentValue(kinds.INTEGER, pl.col("process_id")),))
_RENAMED = {"static_shared_bytes": "shared_mem_static", "dynamic_shared_bytes": "shared_mem_dynamic"}
_KERNEL_NAME = pl.coalesce(pl.col("name").cast(pl.String), pl.col("short_name").cast(pl.String))
_MATCH = ("ncu_launch_id", "ncu_match")
"""Columns that determine the metrics of Nsight Compute."""
_METRIC_TYPES = ("int32", "int64", "float64", "string", "dictionary")
_LAUNCH_METRIC = "launch__"
_KNOWN_LAUNCH_METRICS = frozenset(
    {
        *(f"{size}_{part}" for size in ("grid", "block") for part in ("size", "dim_x", "dim_y", "dim_z")),
        *("thread_count", "registers_per_thread", "shared_mem_per_block_static", "shared_mem_per_block_dynamic"),
        *("kernel_name", "device_id", "context_id", "stream_id"),
    }
)
"""Metrics of Nsight Compute, after their prefix, that events contain anyway."""
_PANEL_METRICS = frozenset(
    {
        *("waves_per_multiprocessor", "shared_mem_config_size", "func_cache_config"),
        *(f"occupancy_limit_{resource}" for resource in ("blocks", "registers", "shared_mem", "warps", "barriers")),
    }
)
"""Metrics that Perfetto's panel for compute kernels shows under their name without the prefix."""
_PATH = "nvtx_path"
"""The argument that may be too long to be written for each copy or set."""
_OMITTED = frozenset({"correlation_id", "grid", "block", "name", "throughput_gb_per_s"})
"""Arguments that have a field of their own, or follow from other fields."""


class RenderStages:
    """The GPU render stage events of a trace: their ids, and the queues, contexts and kernels to which they refer."""

    def __init__(
        self, tables: Tables, layout: Layout, sequence: PacketSequence, *, first_event_id: int, first_gpu: int
    ) -> None:
        """Number the events of a trace.

        Args:
            tables: The tables of the trace.
            layout: The assignment of the events to lanes.
            sequence: The packet sequence that the events are written to.
            first_event_id: Id of the first event.
            first_gpu: Number of device 0 in the file.
        """
        self.sequence = sequence
        drawn = [kind for kind in layout.lane_ids if kind in STAGES]
        ends = list(itertools.accumulate((len(layout.lane_ids[kind]) for kind in drawn), initial=first_event_id))
        self.first_ids = dict(zip(drawn, ends, strict=False))
        self.next_id = ends[-1]
        """Id that follows the ids of all events of the trace."""
        devices = scan_table(tables, "devices").select("device_id", "name", "chip", "compute_major", "compute_minor")
        self._devices = {device: about for device, *about in devices.collect().rows()}
        self._first_gpu = first_gpu
        self.next_gpu = first_gpu + max([0, *(d + 1 for d in self._devices if d < _MAX_GPUS)])
        """Number of the first GPU of the next trace in the file."""
        declared = schemas.correlated_schema("kernels").names
        joined = [column for column in tables.schema("kernels").columns if column.name not in declared]
        is_joined = set(_MATCH) <= {column.name for column in joined}
        self.metrics = [c.name for c in joined if c.type in _METRIC_TYPES] if is_joined else []
        """Names of the columns of kernels that a join with results of Nsight Compute added."""
        self._process_names = layout.lanes.names.processes
        self._lanes, self._clock = layout.lanes, layout.clock
        lane_ids = [layout.lane_ids[kind].unique() for kind in drawn]
        self._queues = _name_queues(layout.lanes, set(itertools.chain.from_iterable(lane_ids)))
        self._queue_iids = np.zeros(max(self._queues, default=-1) + 1, np.uint64)
        for lane_id, (iid, _) in self._queues.items():
            self._queue_iids[lane_id] = iid
        self._contexts: dict[Key, int] = {}
        self._context_iids: set[int] = set()
        self._last_context_iid = 0
        self._kernels: dict[Key, int] = {}
        self._described = bytearray()

    @property
    def lane_ids(self) -> frozenset[int]:
        """The lanes of the events."""
        return frozenset(self._queues)

    def begin(self) -> bytes:
        """Return the packets that describe the GPUs, the kinds of activities and the queues of the trace."""
        if not self.first_ids:
            return b""
        described = self.sequence.begin_stream()
        stages = [{"iid": s.iid, "name": s.name, "category": s.category} for s in STAGES.values()]
        queues = [{"iid": iid, "name": name} for iid, name in self._queues.values()]
        described += self._encode_interned_data(gpu_specifications=[*stages, *queues])
        if not self._first_gpu and self.next_gpu:
            gpus = [
                {"name": self._devices[n][0], "architecture": self._find_architecture(n)} if n in self._devices else {}
                for n in range(self.next_gpu)
            ]
            gpus = [{key: value for key, value in gpu.items() if value is not None} for gpu in gpus]
            described += encode_packet(trusted_packet_sequence_id=self.sequence.number, gpu_info={"gpus": gpus})
        return described

    def pop_packets(self) -> bytes:
        """Return the packets that describe the contexts and kernels that were used since the last call."""
        described, self._described = bytes(self._described), bytearray()
        return described

    def select_block(
        self, kind: EventKind, rows: TableRows, lane_ids: Array, times: EventTimes, block: slice
    ) -> PacketBatch:
        """Return consecutive events of one kind in the order of time. Their strings have been interned.

        Args:
            kind: The kind of the events.
            rows: All events of this kind.
            lane_ids: Lane id of each event.
            times: The start times of the events, and their order.
            block: Positions of the events in the order of time.
        """
        chosen = block if times.order is None else times.order[block]
        batch, lanes = rows.read_batch(chosen), lane_ids[chosen]
        strings = self.sequence.strings
        args = [*_select_args(kind, rows.columns), *_find_anomalies(kind, batch)]
        stream = [name for name in ("process_id", "context_id", "device_id") if name in rows.columns]
        names = [*stream, *list_column_names(kind.name, *value_exprs(*args))]
        if kind is kinds.KERNELS:
            names += [name for name in ("name", *_GRID, *_BLOCK, *_MATCH) if name in rows.columns]
        keys = strings.read_keys(batch, list(dict.fromkeys(names)))
        combinations = strings.find_combinations([lanes.astype(np.int64), *keys])
        examples = batch.take(combinations.first_rows)
        is_launch_arg = {arg.key: kind is kinds.KERNELS or arg.key == _PATH for arg in args}
        parts = [
            self._encode_references(kind, examples, lanes[combinations.first_rows]),
            self._encode_launch(kind, [arg for arg in args if is_launch_arg[arg.key]], examples),
            *_encode_extra_data([arg for arg in args if not is_launch_arg[arg.key]], examples),
        ]
        row_numbers = np.arange(block.start, block.stop) if times.order is None else times.order[block]
        ids = (row_numbers.astype(np.int64) + self.first_ids[kind]).view(np.uint64)
        duration = duration_expr(kind, self._clock)
        durations = batch.read_frame(list(dict.fromkeys(list_column_names(duration)))).select(duration).to_series()
        fields = [
            _build_field("event_id", ids),
            _build_field("duration", durations.to_numpy().view(np.uint64)),
            *_create_submission_fields(batch),
        ]
        with_previous = get_times_with_previous(times.starts, block.start, block.stop)
        lead = self.sequence.encode_event_lead("gpu_render_stage_event")
        return PacketBatch(lead, with_previous, fields, RepeatedFields.join(parts), combinations.codes)

    def _encode_references(self, kind: EventKind, examples: RowBatch, lane_ids: Array) -> RepeatedFields:
        """Encode the names of events, and the numbers of the stage, queue, GPU, context and kernel of each."""
        frame = examples.read_frame([n for n in ("process_id", "context_id") if n in examples.rows.columns])
        frame = frame.with_columns(
            pl.lit(None, pl.Int64).alias(n) for n in {"process_id", "context_id"} - {*frame.columns}
        )
        keys = [column.cast(pl.Int64) for column in (frame["process_id"], frame["context_id"])]
        contexts = _number_keys(keys, self._get_or_create_context)
        devices = examples.read_frame(["device_id"]).to_series().cast(pl.Int64)
        fields = [
            _build_field("context", contexts),
            _build_field("gpu_id", (devices.to_numpy() + self._first_gpu).view(np.uint64)),
            _build_field("hw_queue_iid", self._queue_iids[lane_ids]),
            _build_field("stage_iid", np.full(examples.height, STAGES[kind].iid, np.uint64)),
            _build_field("name_iid", self.sequence.strings.intern(EVENT_NAMES, examples, kind.name)),
        ]
        if kind is kinds.KERNELS and {"name", "short_name"} <= {*examples.rows.columns}:
            fields.append(_build_field("kernel_iid", self._intern_kernels(examples, devices), is_optional=True))
        return encode_fragments(fields, examples.height)

    def _encode_launch(self, kind: EventKind, args: Sequence[Arg], examples: RowBatch) -> RepeatedFields:
        """Encode the parameters with which kernels were launched, or parameters of copies and sets."""
        strings = self.sequence.strings
        fields = [*create_arg_fields([EventArg.as_launch_arg(arg, strings) for arg in args], examples, strings)]
        if kind is not kinds.KERNELS:
            return encode_fragments(fields, examples.height).wrap(encode_field_tag(_EVENT, "launch"))
        if "process_id" in examples.rows.columns:
            processes = examples.read_frame(["process_id"]).to_series().cast(pl.Int64)
            iids = _number_keys([processes], self._intern_process_name)
            prefix = EventArg.as_launch_arg(Arg("process_name", (ArgumentValue(kinds.STRING, pl.lit("")),)), strings)
            fields.append(PacketField(prefix.prefixes, FieldValues(iids, (iids != 0).astype(np.uint8))))
        parts = [encode_fragments(fields, examples.height)]
        for field, columns in (("grid_size", _GRID), ("workgroup_size", _BLOCK)):
            if set(columns) <= set(examples.rows.columns):
                sizes = [
                    _build_optional_field(_DIM, axis, column)
                    for axis, column in zip("xyz", examples.read_frame(columns), strict=True)
                ]
                parts.append(encode_fragments(sizes, examples.height).wrap(encode_field_tag(_LAUNCH, field)))
        return RepeatedFields.join(parts).wrap(encode_field_tag(_EVENT, "launch"))

    def _intern_kernels(self, examples: RowBatch, devices: pl.Series) -> Numbers:
        """Return the interning id of the kernel of each event, 0 for kernels without a name. Describe new kernels.

        A kernel with metrics is described once per launch that was measured, and kind of match.
        """
        names = self.sequence.strings.read_strings(examples, _KERNEL_NAME)
        keys = pl.DataFrame({"name": create_series(names.numbers).cast(pl.Int64), "device": devices})
        if self.metrics:
            keys = keys.with_columns(examples.read_frame(_MATCH))
        columns = keys.columns
        new = keys.with_row_index("row").filter(pl.col("name") != 0).unique(columns, keep="first", maintain_order=True)
        is_known = [key in self._kernels for key in new.select(columns).iter_rows()]
        new = new.filter(~pl.Series(is_known, dtype=pl.Boolean))
        rows = new["row"].to_numpy()
        texts, metrics = names.take(rows), [()] * len(rows)
        if self.metrics:
            metrics = examples.take(rows).read_frame(self.metrics).rows()
        entries = []
        for key, text, values in zip(new.select(columns).iter_rows(), texts, metrics, strict=True):
            iid = self._kernels[key] = len(self._kernels) + 1
            about = {"iid": iid, "demangled_name": text, "arch": self._find_architecture(key[1])}
            entry: dict[str, Any] = {name: value for name, value in about.items() if value is not None}
            entries.append({**entry, "args": [*self._encode_metrics(values)]})
        for start in range(0, len(entries), _KERNELS_PER_PACKET):
            self._described += self._encode_interned_data(compute_kernels=entries[start : start + _KERNELS_PER_PACKET])
        return _number_keys([*keys], lambda key: self._kernels.get(key, 0))

    def _encode_metrics(self, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Yield the metrics of a kernel that are not null, as arguments."""
        strings = self.sequence.strings
        for column, value in zip(self.metrics, values, strict=True):
            name = column.removeprefix(_LAUNCH_METRIC)
            if value is None or (name != column and name in _KNOWN_LAUNCH_METRICS):
                continue
            name_iid = strings.intern_name(LAUNCH_ARG_NAMES, name if name in _PANEL_METRICS else column)
            if isinstance(value, str):
                yield {"name_iid": name_iid, "string_value_iid": strings.intern_name(STRING_VALUES, value)}
            else:
                yield {"name_iid": name_iid, "int_value" if isinstance(value, int) else "double_value": value}

    def _get_or_create_context(self, key: Key) -> int:
        """Return the interning id of the context with the given process id and context id. Describe a new context."""
        if key not in self._contexts:
            process, context = key
            is_free = context is not None and context > 0 and context not in self._context_iids
            iid = self._contexts[key] = context if is_free else self._last_context_iid + 1
            self._context_iids.add(iid)
            self._last_context_iid = max(self._last_context_iid, iid)
            pid = self._lanes.get_pid(process)
            about = {"iid": self._contexts[key], "pid": pid, "api": self._find_api()}
            entry = {name: value for name, value in about.items() if value is not None}
            self._described += self._encode_interned_data(graphics_contexts=[entry])
        return self._contexts[key]

    def _intern_process_name(self, key: Key) -> int:
        """Return the interning id of the name of a process, or 0 if it has no name."""
        name = self._process_names.get(key[0])
        return self.sequence.strings.intern_name(STRING_VALUES, name) if name else 0

    def _find_architecture(self, device: int) -> str | None:
        """Return the architecture of a device, such as ``sm_90``, or its chip, or None."""
        _, chip, major, minor = self._devices.get(device, (None, None, None, None))
        architecture: str | None = chip if major is None or minor is None else f"sm_{major}{minor}"
        return architecture

    def _find_api(self) -> int | None:
        """Return the number of the API of the devices, or None if it is unknown."""
        if any(major is not None for _, _, major, _ in self._devices.values()):
            return _CUDA
        return _HIP if any((chip or "").startswith("gfx") for _, chip, *_ in self._devices.values()) else None

    def _encode_interned_data(self, **tables: Any) -> bytes:
        return encode_packet(trusted_packet_sequence_id=self.sequence.number, interned_data=tables)


def _name_queues(lanes: LaneRegistry, drawn: set[int]) -> dict[int, tuple[int, str]]:
    """Return the interning id and the name of the queue of each drawn lane. Queues of several processes name theirs."""
    groups = {process.pid: process.name for process in lanes.iterate_processes()}
    threads = [thread for thread in lanes.iterate_threads() if thread.lane_id in drawn]
    is_single = len({thread.pid for thread in threads}) == 1
    return {
        thread.lane_id: (
            _FIRST_QUEUE + thread.tid,
            str(thread.name) if is_single else f"{groups[thread.pid]} · {thread.name}",
        )
        for thread in threads
    }


def _select_args(kind: EventKind, columns: Sequence[str]) -> list[Arg]:
    """Return the arguments of the events of a kind, with the names that Perfetto's panel for compute kernels uses."""
    own = [arg for arg in (*kind.row_args, *kind.repeated_args) if arg.key not in _OMITTED]
    if kind is kinds.KERNELS:
        own = [*_LAUNCH_SIZES, _PROCESS, *(arg._replace(key=_RENAMED.get(arg.key, arg.key)) for arg in own)]
    return select_available_args(tuple(own), columns)


def _find_anomalies(kind: EventKind, batch: RowBatch) -> list[Arg]:
    """Return the additional arguments of events that were never closed or end before they start, if there are any."""
    args = list_anomaly_args(kind)
    names = list(dict.fromkeys(list_column_names(*value_exprs(*args))))
    present = batch.read_frame(names).select(
        pl.any_horizontal(*(e.is_not_null() for e in value_exprs(*args))).any().alias("present")
    )
    forms = {kinds.TRUE: kinds.INTEGER} if kind is kinds.KERNELS else {}
    numbered = [
        arg._replace(values=tuple(v._replace(form=forms.get(v.form, v.form)) for v in arg.values)) for arg in args
    ]
    return numbered if present.item() else []


def _encode_extra_data(args: Sequence[Arg], examples: RowBatch) -> Iterator[RepeatedFields]:
    """Yield the encoded arguments of events, as pairs of strings."""
    name_tag, value_tag = (encode_field_tag(f"{_EVENT}.ExtraData", field) for field in ("name", "value"))
    tag = encode_field_tag(_EVENT, "extra_data")
    for arg in args:
        names = list(dict.fromkeys(list_column_names(*value_exprs(arg))))
        value = pl.coalesce(e.cast(pl.String) for e in value_exprs(arg))
        texts = examples.read_frame(names).select(value).to_series()
        key = arg.key.encode()
        yield RepeatedFields.encode_texts(texts).wrap(value_tag).wrap(tag, lead=name_tag + bytes([len(key)]) + key)


def _create_submission_fields(batch: RowBatch) -> Iterator[PacketField]:
    """Yield the field with the correlation ids of events, if they have some that fit."""
    if "correlation_id" in batch.rows.columns:
        numbers = batch.read_frame(["correlation_id"]).to_series()
        yield _build_optional_field(
            _EVENT, "submission_id", numbers.set(~numbers.is_between(0, _MAX_SUBMISSION_ID), None)
        )


def _build_field(name: str, numbers: Numbers, *, is_optional: bool = False) -> PacketField:
    """Return a field of events. If it is optional, it is omitted from events whose number is 0."""
    values = FieldValues(numbers, (numbers != 0).astype(np.uint8)) if is_optional else require_values(numbers)
    return PacketField([Prefix(encode_field_tag(_EVENT, name))], values)


def _build_optional_field(message: str, name: str, column: pl.Series) -> PacketField:
    """Return a field of a message with the integers in a column. Null is omitted."""
    numbers = column.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64)
    return PacketField(
        [Prefix(encode_field_tag(message, name))],
        FieldValues(numbers, column.is_not_null().to_numpy().astype(np.uint8)),
    )


def _number_keys(columns: Sequence[pl.Series], get_number: Callable[[Key], int]) -> Numbers:
    """Return the number of the key in each row. The function is called once per distinct key, in the order of rows."""
    frame = pl.DataFrame([column.alias(str(n)) for n, column in enumerate(columns)])
    distinct = frame.unique(maintain_order=True)
    numbers = pl.Series("number", [get_number(key) for key in distinct.iter_rows()], pl.UInt64)
    joined = frame.join(distinct.with_columns(numbers), frame.columns, "left", nulls_equal=True, maintain_order="left")
    result: Numbers = joined["number"].to_numpy()
    return result
