"""Small functions that several tests share: limits of memory, and tables and counts that can be compared."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    import pyarrow as pa
    import tracekit as tk

Result = TypeVar("Result")
PSEUDONYM_COLUMNS = {"devices": ("uuid", "bus_location")}


@contextlib.contextmanager
def small_blocks(rows: int) -> Iterator[None]:
    """Compute on a few rows as if they were many: with blocks of a few rows, and temporary files for all arrays."""
    from tracekit.system import memory, sorting

    with pytest.MonkeyPatch.context() as patch, memory.limit_memory(0):
        patch.setattr(sorting, "BLOCK_ROWS", rows)
        yield


def run_async(function: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine function in a thread of its own, because a browser of other tests keeps a loop in this one."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        return portal.call(function)


def count_undecoded(undecoded: Mapping[str, tk.Undecoded]) -> dict[str, int]:
    """Return the number of events of each class that are in no table."""
    return {name: size.count for name, size in undecoded.items()}


def number_pseudonyms(name: str, table: pa.Table) -> pa.Table:
    """Number the values of columns that become pseudonyms: a redacted table has the same numbers as the original."""
    for column in PSEUDONYM_COLUMNS.get(name, ()):
        index = table.column_names.index(column)
        table = table.set_column(index, column, table[column].dictionary_encode().combine_chunks().indices)
    return table
