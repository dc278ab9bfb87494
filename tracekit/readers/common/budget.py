"""Limit the memory for reading a file in proportion to its size, so that a small file cannot become a huge table.

Compressed and repeated values take almost no space in a file: a file of one kilobyte can declare a billion rows.
Therefore, memory is reserved from a budget before it is allocated. The budget is a fixed amount plus
``MEMORY_PER_FILE_BYTE`` times the file size. Real files need at most 22 times their size. ``docs/errors.md`` lists the
memory that hostile files take.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

Item = TypeVar("Item")

START_BYTES = 64 << 20
MEMORY_PER_FILE_BYTE = 256
CELL_BYTES = 8
"""Bytes of memory to reserve for one value of a column."""
OBJECT_ROW_BYTES = 1 << 10
"""Bytes of memory to reserve for one row of Python objects."""
_ITEMS_AT_ONCE = 128


class Budget:
    """A thread-safe limit on the memory that reading a file may allocate.

    Attributes:
        limit: Maximum number of bytes that may be reserved.
        reserved: Number of bytes reserved so far.
    """

    def __init__(self, file_bytes: int, memory_per_file_byte: int = MEMORY_PER_FILE_BYTE, reserved: int = 0) -> None:
        """Create a budget for a file.

        Args:
            file_bytes: Size of the file in bytes.
            memory_per_file_byte: Bytes of memory allowed per byte of the file, in addition to ``START_BYTES``.
            reserved: Number of bytes that other reads of the file have already reserved.
        """
        self.limit = START_BYTES + memory_per_file_byte * file_bytes
        self.reserved = reserved
        self._file_bytes = file_bytes
        self._lock = threading.Lock()

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes that can still be reserved."""
        return self.limit - self.reserved

    def reserve(self, rows: int, row_bytes: int, plural_noun: str) -> None:
        """Reserve memory for rows that are about to be read. The memory remains reserved as long as the budget exists.

        Args:
            rows: Number of rows.
            row_bytes: Memory of one row in bytes.
            plural_noun: Plural noun for the rows in the error message, such as "rows of kernels".

        Raises:
            Damage: The memory exceeds the remaining budget.
        """
        with self._lock:
            self._check_memory(rows, row_bytes, plural_noun, self.remaining_bytes)
            self.reserved += rows * row_bytes

    def check_temporary_memory(self, rows: int, row_bytes: int, plural_noun: str) -> None:
        """Check that memory for temporary data does not exceed the limit of the budget, without reserving it.

        Memory that is already reserved does not count towards the limit. The parameters are those of ``reserve``.

        Raises:
            Damage: The memory exceeds the limit of the budget.
        """
        self._check_memory(rows, row_bytes, plural_noun, self.limit)

    def reserve_each(
        self, items: Iterable[Item], plural_noun: str, object_bytes: int = OBJECT_ROW_BYTES
    ) -> Iterator[Item]:
        """Yield items, reserving memory for the Python object that the caller creates from each item.

        Args:
            items: The items.
            plural_noun: Plural noun for the items in the error message.
            object_bytes: Memory of one object in bytes.

        Raises:
            Damage: The memory for the items exceeds the remaining budget.
        """
        for i, item in enumerate(items):
            if i % _ITEMS_AT_ONCE == 0:
                self.reserve(_ITEMS_AT_ONCE, object_bytes, plural_noun)
            yield item

    def _check_memory(self, rows: int, row_bytes: int, plural_noun: str, available_bytes: int) -> None:
        if rows * row_bytes > available_bytes:
            raise Damage(
                f"{rows:,} {plural_noun} would take {rows * row_bytes:,} bytes of memory; "
                f"tracekit allows {self.limit:,} bytes for a file of {self._file_bytes:,} bytes, "
                f"and {available_bytes:,} bytes of this limit are left"
            )


class Ledger:
    """A record of the memory reserved for all data read so far from an open file or folder.

    Data that is read again is counted only once.
    """

    def __init__(self, file_bytes: int) -> None:
        """Create an empty ledger.

        Args:
            file_bytes: Size of the file, or of all files of the folder, in bytes.
        """
        self._file_bytes = file_bytes
        self._reserved: dict[tuple[int, Hashable], int] = {}

    def create_temporary_budget(self) -> Budget:
        """Return a new budget for temporary data. The ledger does not record memory reserved from this budget."""
        return Budget(self._file_bytes)

    @contextlib.contextmanager
    def open_budget_for_read(
        self, data_key: Hashable, memory_per_file_byte: int = MEMORY_PER_FILE_BYTE
    ) -> Iterator[Budget]:
        """Return a context manager that provides the memory budget for one read, and records how much was reserved.

        Args:
            data_key: Key that identifies the data to read, so that reading the same data again is not counted twice.
            memory_per_file_byte: Bytes of memory allowed per byte of the file. All reads with the same value share one
                limit. Reads with another value have a separate limit.
        """
        others = sum(
            size for key, size in list(self._reserved.items()) if key[0] == memory_per_file_byte and key[1] != data_key
        )
        budget = Budget(self._file_bytes, memory_per_file_byte, others)
        yield budget
        self._reserved[memory_per_file_byte, data_key] = budget.reserved - others
