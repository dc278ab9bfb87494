"""Build the activities of GPUs, and the table of devices, from the planes of devices.

The lines of streams contain all activities. The other lines of a plane contain events that the profiler derived from
them, such as the steps and the ops of a framework.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.readers.common.columns import build_number_array, compact_dictionary
from tracekit.readers.common.kernel_names import shorten_kernel_name
from tracekit.readers.xplane.values import EventValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.readers.common.protobuf.decoding import Int64Array, Mask
    from tracekit.readers.xplane.space import EventBatch, KnownValues, Plane

KERNELS, MEMCPYS, MEMSETS, GRAPHS = "kernels", "memcpys", "memsets", "graph_launches"
TABLES = (KERNELS, MEMCPYS, MEMSETS, GRAPHS)
GPU = re.compile(r"/device:GPU:(\d{1,9})")
"""Matches the names of the planes of GPUs."""
_STREAM = re.compile(r"Stream #")
_CONTEXT = re.compile(r"\$\$(\d{1,18})")
_KERNEL_DETAILS, _COPY_DETAILS, _SET_DETAILS = "kernel_details", "memcpy_details", "memset_details"
_OTHER_DETAILS = ("memalloc_details", "memfree_details", "memory_residency_details", "memory_details")
_COPY = re.compile(r"(?:Memcpy|Copy)([HDAP]|Host|Device)(?:2|To|to)([HDAP]|Host|Device)")
_SET = re.compile(r"Mem(?:ory)?set", re.IGNORECASE)
_PLACES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_DETAIL = re.compile(r"(\w{1,40}):(\S{1,80})")
_DIMENSIONS = re.compile(r"(\d{1,10}),(\d{1,10}),(\d{1,10})")
_MAX_INT32, _MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
_GRID = (*(f"grid_{a}" for a in "xyz"), *(f"block_{a}" for a in "xyz"))
_KERNEL_NUMBERS = (*_GRID, "registers_per_thread", "static_shared_memory_bytes", "dynamic_shared_memory_bytes")
_MAX_REGISTERS = 1 << 10
"""Maximum number of registers that is believed. Some versions of the profiler write memory that was never set."""
_NVIDIA = "nvidia"
_HERTZ_PER_KHZ = 1000
ANNOTATIONS = {
    "hlo_op": "hlo_op",
    "hlo_module": "hlo_module",
    "name": "op_name",
    "tf_op": "tf_op",
    "annotation": "annotation",
}
"""Columns for the values that say which operation launched an activity, by the names of the values."""


class GpuActivities(NamedTuple):
    """The activities of all GPUs.

    Attributes:
        tables: The columns of each table of activities, by table name.
        annotations: The correlation id of each activity, and what the profiler recorded about the operation that
            launched it.
        undecoded: Number of events that are in no table, by kind.
    """

    tables: dict[str, pa.Table]
    annotations: pa.Table
    undecoded: Counter[str]


def get_device(plane: Plane) -> int:
    """Return the number of the GPU of a plane."""
    match = GPU.fullmatch(plane.name)
    return int(match[1]) if match else 0


def is_derived(plane: Plane, line_name: str) -> bool:
    """Return whether the profiler derived the events of a line of a GPU from those of other lines."""
    return GPU.fullmatch(plane.name) is not None and not _STREAM.match(line_name)


def build_activities(planes: Iterable[Plane]) -> GpuActivities:
    """Return the activities of GPUs.

    Raises:
        Damage: An event is invalid.
    """
    batches: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
    annotations: list[pa.Table] = []
    undecoded: Counter[str] = Counter()
    for plane in planes:
        streams = [i for i, line in enumerate(plane.lines) if not is_derived(plane, line.name)]
        for events in plane.iterate_events(streams):
            values = EventValues.of_events(plane, events)
            batch = _Batch(plane, events, values)
            for name, rows in batch.split().items():
                if len(rows) and name in batches:
                    batches[name].append(batch.build_table(name, rows))
                elif len(rows):
                    undecoded[name] += len(rows)
            annotations.append(build_annotations(values))
    tables = {name: pa.concat_tables(tables) for name, tables in batches.items() if tables}
    return GpuActivities(tables, pa.concat_tables(annotations) if annotations else pa.table({}), undecoded)


def build_annotations(values: EventValues | KnownValues) -> pa.Table:
    """Return the correlation ids of events, and what the profiler recorded about the operations that launched them."""
    columns: dict[str, pa.Array] = {
        name: build_number_array(*values.get_integers(name)) for name in ("correlation_id", "program_id")
    }
    return pa.table(columns | {column: values.get_strings(name) for name, column in ANNOTATIONS.items()})


class _Batch:
    """A batch of events on the streams of a GPU."""

    def __init__(self, plane: Plane, events: EventBatch, values: EventValues | KnownValues) -> None:
        self._plane = plane
        self._events = events._replace(names=compact_dictionary(events.names.indices, events.names.dictionary))
        self._values = values

    def split(self) -> dict[str, Int64Array]:
        """Return the indices of the events of each table, and of those that are in no table, by their kind."""
        values, names = self._values, self._events.names
        is_kernel, is_copy = values.has(_KERNEL_DETAILS), values.has(_COPY_DETAILS)
        is_set, is_other = values.has(_SET_DETAILS), np.zeros(len(is_kernel), np.bool_)
        for detail in _OTHER_DETAILS:
            is_other |= values.has(detail)
        unknown = ~(is_kernel | is_copy | is_set | is_other)
        is_copy |= unknown & _match(names, _COPY.match)
        is_set |= unknown & _match(names, _SET.match)
        is_graph = unknown & values.has("cuda_graph_id") & ~values.has("cuda_graph_node_id")
        is_kernel |= unknown & ~is_copy & ~is_set & ~is_graph
        is_memory = is_other & ~(is_kernel | is_copy | is_set)
        return {
            KERNELS: np.flatnonzero(is_kernel),
            MEMCPYS: np.flatnonzero(is_copy & ~is_kernel),
            MEMSETS: np.flatnonzero(is_set & ~is_kernel & ~is_copy),
            GRAPHS: np.flatnonzero(is_graph & ~is_copy & ~is_set),
            "memory events on streams": np.flatnonzero(is_memory),
        }

    def build_table(self, name: str, rows: Int64Array) -> pa.Table:
        """Return the columns of a table for the events with the given indices."""
        build = {KERNELS: self._build_kernels, MEMCPYS: self._build_copies, MEMSETS: self._build_sets}.get(name)
        columns = self._build_common_columns() | ({} if build is None else build())
        return pa.table(columns).take(build_number_array(rows))

    def _build_common_columns(self) -> dict[str, pa.Array]:
        events, values = self._events, self._values
        device = get_device(self._plane)
        streams = np.array([line.id for line in self._plane.lines], np.int64)
        contexts = values.get_strings("context_id")
        numbers = [(m := _CONTEXT.fullmatch(c)) and int(m[1]) for c in contexts.dictionary.to_pylist()]
        graph_node = values.get_integers("cuda_graph_node_id")
        return {
            "start_ns": build_number_array(events.start_ns),
            "end_ns": build_number_array(events.end_ns),
            "device_id": build_number_array(np.full(len(events.lines), device, np.int32)),
            "stream_id": build_number_array(streams[events.lines]),
            "context_id": pa.array(numbers, pa.int64()).take(contexts.indices),
            "correlation_id": build_number_array(*values.get_integers("correlation_id")),
            "graph_id": build_number_array(*values.get_integers("cuda_graph_id")),
            "graph_node_id": build_number_array(*graph_node),
        }

    def _build_kernels(self) -> dict[str, pa.Array]:
        names = self._events.names
        short = pa.array([shorten_kernel_name(name) for name in names.dictionary.to_pylist()], pa.string())
        details = self._values.get_strings(_KERNEL_DETAILS)
        parsed = [parse_kernel_details(text) for text in details.dictionary.to_pylist()]
        numbers = {c: pa.array([p.get(c) for p in parsed], pa.int32()).take(details.indices) for c in _KERNEL_NUMBERS}
        return {"name": names, "short_name": compact_dictionary(names.indices, short), **numbers}

    def _build_copies(self) -> dict[str, pa.Array]:
        names = self._events.names
        kinds = pa.array([_parse_copy_kind(name) for name in names.dictionary.to_pylist()], pa.string())
        return {
            "copy_kind": compact_dictionary(names.indices, kinds),
            **self._parse_sizes(_COPY_DETAILS),
            **{
                column: self._parse_strings(_COPY_DETAILS, key)
                for column, key in (("src_memory_kind", "kind_src"), ("dst_memory_kind", "kind_dst"))
            },
        }

    def _build_sets(self) -> dict[str, pa.Array]:
        return {**self._parse_sizes(_SET_DETAILS), "memory_kind": self._parse_strings(_SET_DETAILS, "kind")}

    def _parse_sizes(self, name: str) -> dict[str, pa.Array]:
        details = self._values.get_strings(name)
        sizes = [_parse_number(dict(_DETAIL.findall(t)).get("size", ""), _MAX_INT64) for t in _list(details)]
        return {"bytes": pa.array(sizes, pa.int64()).take(details.indices)}

    def _parse_strings(self, name: str, key: str) -> pa.DictionaryArray:
        details = self._values.get_strings(name)
        kinds = [dict(_DETAIL.findall(text)).get(key) for text in _list(details)]
        known = [None if kind is None or kind.lower() == "unknown" else kind.capitalize() for kind in kinds]
        return compact_dictionary(details.indices, pa.array(known, pa.string()))


def _list(strings: pa.DictionaryArray) -> list[str]:
    texts: list[str] = strings.dictionary.to_pylist()
    return texts


def _match(strings: pa.DictionaryArray, match: Callable[[str], object]) -> Mask:
    """Return a mask of the strings that a function accepts, which is called once per distinct string."""
    accepted = pa.array([match(text) is not None for text in _list(strings)], pa.bool_())
    result: Mask = pc.fill_null(accepted.take(strings.indices), False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return result


def parse_kernel_details(text: str) -> dict[str, int]:
    """Return the numbers in the details of a kernel, by column. Numbers that a kernel cannot have are omitted.

    Examples:
        >>> parse_kernel_details("regs:16 static_shared:0 dynamic_shared:8 grid:4,1,1 block:128,1,1 occ_pct:100")
        {'registers_per_thread': 16, 'static_shared_memory_bytes': 0, 'dynamic_shared_memory_bytes': 8, \
'grid_x': 4, 'grid_y': 1, 'grid_z': 1, 'block_x': 128, 'block_y': 1, 'block_z': 1}
    """
    details = dict(_DETAIL.findall(text))
    keys = {"regs": "registers_per_thread", "static_shared": "static_shared_memory_bytes"}
    keys |= {"dynamic_shared": "dynamic_shared_memory_bytes", "group_mem": "static_shared_memory_bytes"}
    numbers = {column: _parse_number(details[key], _MAX_INT64) for key, column in keys.items() if key in details}
    for key in ("grid", "block"):
        if match := _DIMENSIONS.fullmatch(details.get(key, "")):
            numbers |= {
                f"{key}_{axis}": _parse_number(n, _MAX_INT32) for axis, n in zip("xyz", match.groups(), strict=True)
            }
    is_set = "regs" not in details or (numbers["registers_per_thread"] or 0) <= _MAX_REGISTERS
    known = {column: n for column, n in numbers.items() if n is not None and n <= _MAX_INT32}
    return {column: n for column, n in known.items() if is_set or column in _GRID}


def _parse_number(text: str, largest: int) -> int | None:
    number = int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else None  # noqa: PLR2004
    return number if number is not None and number <= largest else None


def _parse_copy_kind(name: str) -> str | None:
    """Return the direction of a memory copy, such as ``Host-to-Device`` for ``MemcpyH2D``."""
    match = _COPY.match(name)
    return f"{_PLACES.get(match[1], match[1])}-to-{_PLACES.get(match[2], match[2])}" if match else None


def build_device_rows(planes: Iterable[Plane]) -> list[dict[str, Any]]:
    """Return one row of ``devices`` per GPU."""
    rows: dict[int, dict[str, Any]] = {}
    for plane in planes:
        values = EventValues.of_plane(plane)
        vendor = values.get_strings("device_vendor")[0].as_py()
        device = get_device(plane)
        clock = _get_number(values, "clock_rate", _MAX_INT32)
        row = {
            "device_id": device,
            "name": values.get_strings("gpu_device_name")[0].as_py(),
            "sm_count": _get_number(values, "core_count", _MAX_INT32),
            "clock_rate_hz": clock and clock * _HERTZ_PER_KHZ,
            "memory_bytes": _get_number(values, "memory_size", _MAX_INT64),
            "memory_bandwidth_bytes_per_s": _get_number(values, "memory_bandwidth", _MAX_INT64),
        }
        if vendor is None or vendor.lower() == _NVIDIA:
            row |= {
                "cuda_device_id": device,
                "compute_major": _get_number(values, "compute_cap_major", _MAX_INT32),
                "compute_minor": _get_number(values, "compute_cap_minor", _MAX_INT32),
            }
        rows.setdefault(device, row)
    return [rows[device] for device in sorted(rows)]


def read_vendors(planes: Iterable[Plane]) -> list[str]:
    """Return the names of the vendors of GPUs."""
    vendors = (EventValues.of_plane(plane).get_strings("device_vendor")[0].as_py() for plane in planes)
    return sorted({vendor for vendor in vendors if vendor})


def _get_number(values: EventValues, name: str, largest: int) -> int | None:
    numbers, valid = values.get_integers(name)
    return int(numbers[0]) if valid[0] and 0 <= numbers[0] <= largest else None
