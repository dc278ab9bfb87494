"""Names that the profiler puts together, taken apart: once for each different one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.readers.common import columns as col

if TYPE_CHECKING:
    from collections.abc import Callable

_COPY = re.compile(r"Memcpy (\w{1,100})(?: \((.{1,100}) -> (.{1,100})\))?")
_SET = re.compile(r"Memset \((.+)\)")
_DIRECTION = re.compile(r"([HDAP])to([HDAP])")
_ENDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_WAITS = {
    "Event Synchronize": "Event sync",
    "Stream Synchronize": "Stream sync",
    "Context Synchronize": "Context sync",
    "Stream Wait Event": "Stream wait sync",
}
_NESTED = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
_MOST_NESTED = 64
_TRIPLE = re.compile(r"\[\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\]")
_COLOR = re.compile(r"#([0-9A-Fa-f]{6})")
_THREAD = re.compile(r"(?s)thread -?\d+ \((.*)\)")


def mapped(column: pa.Array | pa.ChunkedArray, function: Callable[[str], str | None]) -> pa.DictionaryArray:
    """Apply a function to each different text: n texts in, n texts out."""
    whole = col.whole(column)
    if not len(whole.dictionary):
        return whole
    return col.compact(whole.indices, pa.array([function(t) for t in whole.dictionary.to_pylist()], pa.string()))


def numbered(column: pa.Array | pa.ChunkedArray, function: Callable[[str], int | None]) -> pa.Array:
    """Make a number of each different text: n texts in, n numbers out."""
    whole = col.whole(column)
    return pa.array([function(t) for t in whole.dictionary.to_pylist()], pa.int64()).take(whole.indices)


def copy_kind(name: str) -> str | None:
    """Return the direction of a copy as nsys calls it."""
    found = _COPY.match(name)
    way = _DIRECTION.fullmatch(found[1]) if found else None
    return f"{_ENDS[way[1]]}-to-{_ENDS[way[2]]}" if way else None


def copied_from(name: str) -> str | None:
    """Return the kind of memory that is copied from."""
    found = _COPY.match(name)
    return found[2] if found else None


def copied_to(name: str) -> str | None:
    """Return the kind of memory that is copied to."""
    found = _COPY.match(name)
    return found[3] if found else None


def memory_set(name: str) -> str | None:
    """Return the kind of memory that is set."""
    found = _SET.match(name)
    return found[1] if found else None


def wait(kind: str) -> str | None:
    """Return what is waited for as nsys calls it."""
    return _WAITS.get(kind, kind)


def api(category: str) -> str | None:
    """Return the interface that a category of calls belongs to."""
    return {"cuda_driver": "CUDA driver"}.get(category, "CUDA runtime")


def interface(function: str) -> str:
    """Return the interface that a function belongs to by its name: ``cuLaunchKernel`` is the driver's."""
    return "CUDA driver" if function[:2] == "cu" and function[2:3].isupper() else "CUDA runtime"


def base_name(name: str) -> str:
    """Return the name of a function without its namespaces, template and call arguments and type."""
    short = (
        name.replace("(anonymous namespace)", "")
        .replace("{lambda", "")
        .replace("[clone", "<[")
        .replace("operator()", "call")
    )
    for _ in range(_MOST_NESTED):
        short, count = _NESTED.subn("", short)
        if not count:
            break
    words = short.rpartition("::")[2].split()
    return words[-1] if words and words[-1].isidentifier() else name


def axis(number: int) -> Callable[[str], int | None]:
    """Return a function that takes a size in x, y or z out of ``[x, y, z]``."""

    def size(text: str) -> int | None:
        found = _TRIPLE.fullmatch(text)
        value = int(found[number + 1]) if found else None
        return value if value is not None and value < 1 << 31 else None

    return size


def color(text: str) -> int | None:
    """Return ``#RRGGBB`` as ARGB."""
    found = _COLOR.fullmatch(text)
    return 0xFF000000 | int(found[1], 16) if found else None


def thread_name(label: str) -> str:
    """Return the name of a thread without its number."""
    found = _THREAD.fullmatch(label.strip())
    return found[1] if found else label


def process_name(label: str) -> str:
    """Return the name of a process; of a path without the folder, which may name a user."""
    return re.split(r"[/\\]", label)[-1] if re.match(r"[/.~]|[A-Za-z]:[\\/]|\\\\", label) else label
