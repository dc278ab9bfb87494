"""Read the render stages and counters of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import decode, find_occurrences
from tracekit.readers.common.protobuf.fields import read_integers, read_spans
from tracekit.readers.pftrace.interning import EVENT_NAMES, read_text_codes
from tracekit.readers.pftrace.packets import GPU_COUNTERS, RENDER_STAGE
from tracekit.readers.pftrace.strings import NO_STRING

if TYPE_CHECKING:
    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.protobuf.decoding import Int64Array
    from tracekit.readers.pftrace.events import TrackEventDecoder
    from tracekit.readers.pftrace.packets import DecodedPackets
    from tracekit.readers.pftrace.strings import TraceStrings

_EVENT_ID, _DURATION, _QUEUE_ID, _STAGE_ID, _CONTEXT, _SPECIFICATIONS = 1, 2, 3, 4, 5, 7
_SUBMISSION, _GPU, _QUEUE_IID, _STAGE_IID, _NAME, _NAME_IID = 10, 11, 13, 14, 17, 20
_FIELDS = frozenset(
    (_EVENT_ID, _DURATION, _QUEUE_ID, _STAGE_ID, _CONTEXT, _SUBMISSION, _GPU, _QUEUE_IID, _STAGE_IID, _NAME, _NAME_IID)
)
_HW_QUEUES, _STAGES, _TEXT = 2, 3, 1
_DESCRIPTOR, _COUNTERS, _COUNTER_GPU = 1, 2, 3
_SPECS, _COUNTER_ID, _COUNTER_NAME = 1, 1, 2
_INTEGER, _REAL = 2, 3
_STAGE_BYTES, _COUNTER_BYTES = 128, 64
_MAX_DURATION = 1 << 60
_FEW_ROWS = 1 << 10
_SOURCE = "GPU"
_STREAM = r"^stream (\d{1,18})\b"
_EXPORTED_STAGES = {
    "Kernel": ("kernels", "kernel_id"),
    "Memcpy": ("memcpys", "memcpy_id"),
    "Memset": ("memsets", "memset_id"),
    "Graph": ("graph_launches", "graph_launch_id"),
}
"""Table and id of the activities of each stage in traces that tracekit wrote."""


class GpuEvents:
    """Collector of the events of GPUs."""

    def __init__(self, decoder: TrackEventDecoder, budget: Budget) -> None:
        self._decoder = decoder
        self._budget = budget
        self._stages, self._counters = TableBuilder(_FEW_ROWS), TableBuilder(_FEW_ROWS)
        self._queue_names: list[int] = []
        self._stage_names: list[int] = []
        self._counter_names: dict[tuple[int, int], int] = {}

    def add(self, batch: DecodedPackets) -> None:
        """Add the events in a batch of packets.

        Raises:
            Damage: An event is invalid, or the events exceed the memory budget.
        """
        self._add_stages(batch)
        self._add_counters(batch)

    def _add_stages(self, batch: DecodedPackets) -> None:
        rows, starts, stops = batch.find(RENDER_STAGE)
        if not len(rows):
            return
        self._add_specifications(batch, starts, stops)
        timed = batch.is_timed[rows] & batch.has_state[rows]
        fields = decode(batch.buffer, starts, stops, _FIELDS)
        columns = {number: read_integers(fields, number, len(rows)) for number in _FIELDS - {_NAME}}
        durations, has_duration = columns[_DURATION]
        if (durations < 0).any() or durations.max() > _MAX_DURATION:
            raise Damage("the duration of a render stage is out of range")
        keep = timed & has_duration  # packets without a duration contain only specifications
        self._decoder.undecoded["render stages without a known time"] += int((~timed & has_duration).sum())
        states, interned = batch.states[rows], self._decoder.interned
        stage = interned.stage_names.look_up(states, *columns[_STAGE_IID])
        stage = np.where(stage != NO_STRING, stage, _pick_names(self._stage_names, *columns[_STAGE_ID]))
        name = interned.texts[EVENT_NAMES].look_up(states, *columns[_NAME_IID])
        inline = read_text_codes(self._decoder.pool, batch.buffer, fields, _NAME, len(rows))
        queue_iid, has_queue_iid = columns[_QUEUE_IID]
        queue = interned.stage_names.look_up(states, queue_iid, has_queue_iid)
        queue = np.where(queue != NO_STRING, queue, _pick_names(self._queue_names, *columns[_QUEUE_ID]))
        process = interned.contexts.look_up(states, *columns[_CONTEXT])
        self._budget.reserve(int(keep.sum()), _STAGE_BYTES, "render stages")
        submission, has_submission = columns[_SUBMISSION]
        values = {
            "start_ns": build_number_array(batch.times[rows]),
            "duration": build_number_array(durations),
            "device_id": build_number_array(columns[_GPU][0]),
            "process_id": build_number_array(process, process != NO_STRING),
            "context_id": build_number_array(*columns[_CONTEXT]),
            "queue": build_number_array(queue),
            "stage": build_number_array(stage),
            "queue_id": build_number_array(
                np.where(columns[_QUEUE_IID][1], columns[_QUEUE_IID][0], columns[_QUEUE_ID][0])
            ),
            "submission": build_number_array(submission, has_submission),
            "name": build_number_array(np.where(inline != NO_STRING, inline, np.where(name != NO_STRING, name, stage))),
        }
        chosen = build_number_array(np.flatnonzero(keep))
        if len(chosen):
            self._stages.append({column: array.take(chosen) for column, array in values.items()})

    def _add_specifications(self, batch: DecodedPackets, starts: Int64Array, stops: Int64Array) -> None:
        """Add the names of stages and queues that events contain, which older drivers write."""
        fields = decode(batch.buffer, starts, stops, {_SPECIFICATIONS})
        inner_starts, inner_stops, valid = read_spans(fields, _SPECIFICATIONS, len(starts))
        chosen = np.flatnonzero(valid)
        if not len(chosen):
            return
        parts = find_occurrences(batch.buffer, inner_starts[chosen], inner_stops[chosen], (_HW_QUEUES, _STAGES))
        for names, entries in zip((self._queue_names, self._stage_names), parts, strict=True):
            self._budget.reserve(len(entries), _STAGE_BYTES, "names of render stages")
            decoded = decode(batch.buffer, entries.starts, entries.stops, {_TEXT})
            names.extend(read_text_codes(self._decoder.pool, batch.buffer, decoded, _TEXT, len(entries)).tolist())

    def _add_counters(self, batch: DecodedPackets) -> None:
        rows, starts, stops = batch.find(GPU_COUNTERS)
        if not len(rows):
            return
        fields = decode(batch.buffer, starts, stops, {_DESCRIPTOR, _COUNTER_GPU})
        gpus, _ = read_integers(fields, _COUNTER_GPU, len(rows))
        self._add_counter_names(batch, *read_spans(fields, _DESCRIPTOR, len(rows)), gpus)
        (values,) = find_occurrences(batch.buffer, starts, stops, (_COUNTERS,))
        self._budget.reserve(len(values), _COUNTER_BYTES, "values of GPU counters")
        decoded = decode(batch.buffer, values.starts, values.stops, {_COUNTER_ID, _INTEGER, _REAL})
        is_timed = batch.is_timed[rows][values.rows]
        self._decoder.undecoded["GPU counters without a known time"] += int((~is_timed).sum())
        real, is_real = read_integers(decoded, _REAL, len(values))
        columns = {
            "time": build_number_array(batch.times[rows][values.rows]),
            "gpu": build_number_array(gpus[values.rows]),
            "counter": build_number_array(read_integers(decoded, _COUNTER_ID, len(values))[0]),
            "whole": build_number_array(*read_integers(decoded, _INTEGER, len(values))),
            "real": build_number_array(real.view(np.float64), is_real),
        }
        chosen = build_number_array(np.flatnonzero(is_timed))
        if len(chosen):
            self._counters.append({name: array.take(chosen) for name, array in columns.items()})

    def _add_counter_names(
        self, batch: DecodedPackets, starts: Int64Array, stops: Int64Array, valid: np.ndarray, gpus: Int64Array
    ) -> None:
        chosen = np.flatnonzero(valid)
        if not len(chosen):
            return
        (specs,) = find_occurrences(batch.buffer, starts[chosen], stops[chosen], (_SPECS,))
        self._budget.reserve(len(specs), _STAGE_BYTES, "names of GPU counters")
        decoded = decode(batch.buffer, specs.starts, specs.stops, {_COUNTER_ID, _COUNTER_NAME})
        ids, _ = read_integers(decoded, _COUNTER_ID, len(specs))
        names = read_text_codes(self._decoder.pool, batch.buffer, decoded, _COUNTER_NAME, len(specs))
        keys = zip(gpus[chosen][specs.rows].tolist(), ids.tolist(), strict=True)
        self._counter_names |= dict(zip(keys, names.tolist(), strict=True))

    def build_exported_tables(self, strings: TraceStrings, shift_ns: int) -> dict[str, pl.DataFrame]:
        """Return the activities of a trace in which tracekit wrote them as render stages only.

        The stage determines the table, and the name of the queue contains the number of the stream.

        Args:
            strings: The strings of the trace.
            shift_ns: What was added to all times.
        """
        stages = self._stages.finish()
        if not stages:
            return {}
        frame = pl.DataFrame({name: pl.Series(values) for name, values in stages.items()})
        texts = {name: pl.Series(strings.build(frame[name].to_numpy())) for name in ("queue", "stage", "name")}
        start = pl.col("start_ns") - shift_ns
        submission = pl.col("submission")
        frame = frame.select(
            "process_id",
            pl.col("device_id").clip(0, (1 << 31) - 1),
            start_ns=start,
            end_ns=start + pl.col("duration"),
            stream_id=texts["queue"].cast(pl.String).str.extract(_STREAM, 1).cast(pl.Int64, strict=False),
            correlation_id=pl.when(submission > 0).then(submission),
            stage=texts["stage"].cast(pl.String),
            name=texts["name"],
            short_name=texts["name"],
            context_id=pl.lit(None, pl.Int64),
        )
        tables: dict[str, pl.DataFrame] = {}
        for stage, (table, key) in _EXPORTED_STAGES.items():
            rows = frame.filter(pl.col("stage") == stage).drop("stage")
            if rows.height:
                numbered = rows.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(key))
                tables[table] = numbered if table == "kernels" else numbered.drop("name", "short_name")
        return tables

    def build_tables(self, strings: TraceStrings) -> dict[str, pl.DataFrame]:
        """Return the tables of kernels, which are the render stages, and of GPU metrics and counters."""
        tables: dict[str, pl.DataFrame] = {}
        stages, counters = self._stages.finish(), self._counters.finish()
        if stages:
            frame = pl.DataFrame({name: pl.Series(values) for name, values in stages.items()})
            names = pl.Series(strings.build(frame["name"].to_numpy()))
            tables["kernels"] = frame.select(
                *("start_ns", "process_id", "context_id"),
                pl.col("device_id").clip(0, (1 << 31) - 1),
                end_ns=pl.col("start_ns") + pl.col("duration"),
                stream_id="queue_id",
                name=names,
                short_name=names,
            )
            streams = frame.select("process_id", "context_id", stream_id="queue_id", queue="queue").unique(
                ["process_id", "context_id", "stream_id"], maintain_order=True
            )
            named = pl.Series(strings.build(streams["queue"].to_numpy()))
            tables["streams"] = streams.with_columns(name=named).drop("queue").drop_nulls(["process_id", "context_id"])
            tables["devices"] = frame.select(pl.col("device_id").clip(0, (1 << 31) - 1)).unique().sort("device_id")
        if counters:
            tables |= self._build_counters(counters, strings)
        return tables

    def _build_counters(self, columns: dict[str, object], strings: TraceStrings) -> dict[str, pl.DataFrame]:
        frame = pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})  # type: ignore[arg-type]
        keys, _codes = list(self._counter_names), list(self._counter_names.values())
        known = pl.DataFrame(
            {
                "gpu": pl.Series([gpu for gpu, _ in keys], dtype=pl.Int64),
                "counter": pl.Series([counter for _, counter in keys], dtype=pl.Int64),
                "label": pl.Series(strings.build(np.array(list(self._counter_names.values()), np.int64))).cast(
                    pl.String
                ),
            }
        )
        frame = frame.join(known, on=["gpu", "counter"], how="left", maintain_order="left")
        label = pl.coalesce("label", pl.format("counter {}", "counter"))
        is_whole = pl.col("real").is_null().all().over("gpu", "counter")
        frame = frame.with_columns(label=label, is_whole=is_whole)
        metrics = frame.filter(pl.col("is_whole") & pl.col("whole").is_not_null())
        others = frame.filter(~pl.col("is_whole"))
        tables: dict[str, pl.DataFrame] = {}
        if metrics.height:
            tables["gpu_metrics"] = metrics.select(
                timestamp_ns="time",
                device_id=pl.col("gpu").clip(0, (1 << 31) - 1),
                metric_id="counter",
                metric="label",
                value="whole",
            )
        if others.height:
            tables["counters"] = others.select(
                timestamp_ns="time",
                event_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
                source=pl.lit(_SOURCE),
                name=pl.format("GPU {}", "gpu"),
                field="label",
                value_type=pl.lit("double"),
                value_float=pl.coalesce("real", pl.col("whole").cast(pl.Float64)),
            )
        return tables


def _pick_names(names: list[int], numbers: Int64Array, valid: np.ndarray) -> Int64Array:
    """Return the code of the name with each number, or ``NO_STRING``."""
    known = np.array([*names, NO_STRING], np.int64)
    is_known = valid & (numbers >= 0) & (numbers < len(names))
    return known[np.where(is_known, numbers, len(names))]
