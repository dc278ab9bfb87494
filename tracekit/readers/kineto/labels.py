"""Parse names that the PyTorch profiler composes, such as ``Memcpy HtoD``. Each distinct name is parsed only once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.readers.common import columns as col
from tracekit.text.makers import ACTIVITY, VENDORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RUNTIME_CATEGORY_PATTERN = r"^[a-z0-9]{1,40}_(?:runtime|driver)$"
"""Matches the categories of the calls of a runtime or driver, such as ``cuda_runtime`` and ``xpu_driver``."""
_RUNTIMES = {
    **{name: name.upper() for name in ("cuda", "hip", "xpu", "mtia", "musa")},
    "glow": "Glow",
    "privateuse1": "PrivateUse1",
}
DEVICE_CATEGORY_PATTERN = r"^(?P<device>xpu|mtia|hpu|glow|musa|privateuse1)_"
"""Matches the categories of events of a kind of device that is not a CUDA device."""
_DEVICES = {
    "xpu": ("XPU", "Intel"),
    "mtia": ("MTIA", "Meta"),
    "hpu": ("HPU", "Intel"),
    "glow": ("HPU", "Intel"),
    "musa": ("PrivateUse1", "Moore Threads"),
    "privateuse1": ("PrivateUse1", None),
}
"""Name in ``ProfilerActivity`` and maker of the devices whose categories begin with a word."""
_NAMES_OF_DEVICES = {"HPU": r"Gaudi|\bHL-[0-9]", "XPU": r"Intel|Data Center GPU Max", "MTIA": r"\bMTIA\b"}
_MEMCPY = re.compile(r"Memcpy (\w{1,100})(?: \((.{1,100}) -> (.{1,100})\))?")
_MEMSET = re.compile(r"Memset \((?:(\d{1,18}) -> )?(.+)\)")
_DIRECTION = re.compile(r"([HDAPM])(?:to|2)([HDAPM])|(HOST|DEVICE)_TO_(HOST|DEVICE)")
_MEMORY_KINDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer", "M": "Host"}
"""Kinds of memory by the letters that profilers write. ``M`` is memory of the host that is not pinned (XPU)."""
_SYNC_TYPES = {
    "Event Synchronize": "Event sync",
    "Stream Synchronize": "Stream sync",
    "Context Synchronize": "Context sync",
    "Stream Wait Event": "Stream wait sync",
}
_OVERHEAD_TYPES = {
    "Unknown": "Unknown",
    "Driver Compiler": "Driver JIT compiler (CUDA)",
    "Buffer Flush": "Buffer flush (Profiler)",
    "Instrumentation": "Instrumentation (Profiler)",
    "Resource": "Resource creation/destruction (Profiler)",
    "Runtime Triggered Module Loading": "Runtime module loading (CUDA)",
    "Lazy Function Loading": "Lazy function loading (CUDA)",
    "Command Buffer Full": "Command buffer full (CUDA)",
}
_NESTED = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
_MAX_NESTING = 64
_DIM3 = re.compile(r"\[\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\]")
_COLOR = re.compile(r"#([0-9A-Fa-f]{6})")
_THREAD = re.compile(r"(?s)thread -?\d+ \((.*)\)")


def map_strings(column: pa.Array | pa.ChunkedArray, function: Callable[[str], str | None]) -> pa.DictionaryArray:
    """Apply a function to the strings of a dictionary-encoded column, once per distinct string."""
    array = col.concatenate_chunks(column)
    if not len(array.dictionary):
        return array
    return col.compact_dictionary(
        array.indices, pa.array([function(t) for t in array.dictionary.to_pylist()], pa.string())
    )


def map_to_integers(column: pa.Array | pa.ChunkedArray, function: Callable[[str], int | None]) -> pa.Array:
    """Convert the strings of a dictionary-encoded column to integers, calling a function once per distinct string."""
    array = col.concatenate_chunks(column)
    return pa.array([function(t) for t in array.dictionary.to_pylist()], pa.int64()).take(array.indices)


def parse_copy_kind(name: str) -> str | None:
    """Return the direction of a memory copy as nsys names it, such as ``Host-to-Device`` for ``Memcpy HtoD``.

    The result is None if the name of the copy contains no known direction.
    """
    match = _MEMCPY.match(name)
    return parse_direction(match[1]) if match else None


def parse_direction(text: str) -> str | None:
    """Return a direction as nsys names it, such as ``Host-to-Device`` for ``HtoD``, ``M2D`` or ``HOST_TO_DEVICE``.

    The result is None for a string that is not a known direction.
    """
    direction = _DIRECTION.fullmatch(text)
    ends = [part for part in direction.groups() if part] if direction else []
    return "-to-".join(_MEMORY_KINDS[end[0]] for end in ends) or None


def parse_source_memory_kind(name: str) -> str | None:
    """Return the kind of memory that a memory copy reads, or None if the name of the copy does not contain it."""
    match = _MEMCPY.match(name)
    return match[2] if match else None


def parse_target_memory_kind(name: str) -> str | None:
    """Return the kind of memory that a memory copy writes, or None if the name of the copy does not contain it."""
    match = _MEMCPY.match(name)
    return match[3] if match else None


def parse_memset_memory_kind(name: str) -> str | None:
    """Return the kind of memory that a memory set writes, or None if the name of the memory set does not contain it."""
    match = _MEMSET.match(name)
    return match[2] if match else None


def parse_memset_value(name: str) -> int | None:
    """Return the value that a memory set writes, or None if the name of the memory set does not contain it."""
    match = _MEMSET.match(name)
    return int(match[1]) if match and match[1] else None


def convert_to_nsys_sync_type(kind: str) -> str:
    """Return the nsys name for a synchronization type of the profiler. Unknown types are returned unchanged."""
    return _SYNC_TYPES.get(kind, kind)


def find_nsys_overhead_type(name: str) -> str | None:
    """Return the kind of an overhead as nsys names it, or None if nsys does not distinguish this kind."""
    return _OVERHEAD_TYPES.get(name)


def describe_devices(categories: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return the entries of ``capture_info`` about the devices of a trace, unless they are GPUs of NVIDIA or AMD.

    Args:
        categories: How the categories of events begin that belong to a kind of device, such as ``xpu``.
        names: Names of the devices.

    Returns:
        ``profiler_activity``, which is the name in ``ProfilerActivity``, and ``device_vendors``, if they are known.
    """
    for category in sorted(categories):
        activity, maker = _DEVICES[category]
        return {ACTIVITY: activity} | ({VENDORS: maker} if maker else {})
    text = "\n".join(names)
    activities = [activity for activity, pattern in _NAMES_OF_DEVICES.items() if re.search(pattern, text)]
    return {ACTIVITY: activities[0]} if activities else {}


def find_api_of_category(category: str) -> str:
    """Return the API to which the calls in an event category belong, such as ``CUDA driver`` or ``XPU runtime``."""
    runtime, _, layer = category.rpartition("_")
    return f"{_RUNTIMES.get(runtime, runtime)} {layer}" if runtime else "CUDA runtime"


def find_api_of_function(function: str) -> str:
    """Return the CUDA API that a function belongs to: ``CUDA driver`` for ``cuLaunchKernel``, for example."""
    return "CUDA driver" if function[:2] == "cu" and function[2:3].isupper() else "CUDA runtime"


def shorten_function_name(name: str) -> str:
    """Return the name of a function without its return type, namespaces, template arguments and parameters."""
    short = (
        name.replace("(anonymous namespace)", "")
        .replace("{lambda", "")
        .replace("[clone", "<[")
        .replace("operator()", "call")
    )
    for _ in range(_MAX_NESTING):
        short, count = _NESTED.subn("", short)
        if not count:
            break
    words = short.rpartition("::")[2].split()
    return words[-1] if words and words[-1].isidentifier() else name


def create_dim3_parser(axis: int) -> Callable[[str], int | None]:
    """Return a function that parses the size along axis 0, 1 or 2 from a string ``[x, y, z]``.

    The function returns None for other strings, and for sizes of 2^31 or more.
    """

    def parse_size(text: str) -> int | None:
        match = _DIM3.fullmatch(text)
        value = int(match[axis + 1]) if match else None
        return value if value is not None and value < 1 << 31 else None

    return parse_size


def convert_rgb_to_argb(text: str) -> int | None:
    """Return a color ``#RRGGBB`` as an opaque ARGB number, or None if the string is not a color."""
    match = _COLOR.fullmatch(text)
    return 0xFF000000 | int(match[1], 16) if match else None


def strip_thread_number(label: str) -> str:
    """Return the name of a thread without the number that the profiler adds to it: ``name`` for ``thread 7 (name)``.

    Labels in another format are returned unchanged.
    """
    match = _THREAD.fullmatch(label.strip())
    return match[1] if match else label


def strip_process_folder(label: str) -> str:
    """Return the name of a process without folders, because folders may identify a user."""
    return re.split(r"[/\\]", label)[-1] if re.match(r"[/.~]|[A-Za-z]:[\\/]|\\\\", label) else label
