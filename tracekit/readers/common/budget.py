"""Limit the memory for reading a file in proportion to its size, so that a small file cannot become a huge table.

Compressed and repeated values take almost no space in a file: a kilobyte can declare a billion rows. So the memory of
rows is counted before it is allocated, against a fixed amount plus a multiple of the file size. The largest multiple
that real files need is 22. ``docs/errors.md`` lists what the worst files cost.
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
BYTES_PER_BYTE = 256
CELL_BYTES = 8
"""Bytes of memory counted for one value of a column."""
OBJECT_ROW_BYTES = 1 << 10
"""Bytes of memory counted for one row of Python objects."""
_AT_ONCE = 128


class Budget:
    """A limit on the memory that reading a file may allocate. It is thread-safe.

    Attributes:
        most: Limit in bytes.
        taken: Number of bytes counted so far.
    """

    def __init__(self, file_bytes: int, per_byte: int = BYTES_PER_BYTE, taken: int = 0) -> None:
        """Create a budget for a file.

        Args:
            file_bytes: Size of the file in bytes.
            per_byte: Bytes of memory allowed per byte of the file, beyond the fixed amount.
            taken: Number of bytes that are already allocated.
        """
        self.most = START_BYTES + per_byte * file_bytes
        self.taken = taken
        self._file_bytes = file_bytes
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Number of bytes that may still be allocated."""
        return self.most - self.taken

    def take(self, rows: int, row_bytes: int, what: str) -> None:
        """Count memory that is about to be allocated and that stays allocated.

        Args:
            rows: Number of rows.
            row_bytes: Memory of one row in bytes.
            what: Plural noun for the rows in the error message, such as "rows of kernels".

        Raises:
            Damage: The memory exceeds the remaining budget.
        """
        with self._lock:
            self._check(rows, row_bytes, what, self.left)
            self.taken += rows * row_bytes

    def check(self, rows: int, row_bytes: int, what: str) -> None:
        """Check memory that is about to be allocated and will soon be released, without counting it.

        Raises:
            Damage: The memory exceeds the whole budget.
        """
        self._check(rows, row_bytes, what, self.most)

    def counted(self, items: Iterable[Item], what: str, row_bytes: int = OBJECT_ROW_BYTES) -> Iterator[Item]:
        """Yield items that the caller turns into Python objects, counting the memory of these objects.

        Raises:
            Damage: The items exceed the budget.
        """
        for i, item in enumerate(items):
            if i % _AT_ONCE == 0:
                self.take(_AT_ONCE, row_bytes, what)
            yield item

    def _check(self, rows: int, row_bytes: int, what: str, available: int) -> None:
        if rows * row_bytes > available:
            raise Damage(
                f"{rows:,} {what} would take {rows * row_bytes:,} bytes of memory; "
                f"a file of {self._file_bytes:,} bytes may take {self.most:,}, of which {available:,} are left"
            )


class Ledger:
    """A record of the memory of everything that was read from an open file or folder.

    Data that is read repeatedly is counted only once.
    """

    def __init__(self, file_bytes: int) -> None:
        """Create an empty ledger.

        Args:
            file_bytes: Size of the file, or of all files of the folder, in bytes.
        """
        self._file_bytes = file_bytes
        self._kept: dict[tuple[int, Hashable], int] = {}

    def budget(self) -> Budget:
        """Return a separate budget for data that is discarded after use."""
        return Budget(self._file_bytes)

    @contextlib.contextmanager
    def reading(self, what: Hashable, per_byte: int = BYTES_PER_BYTE) -> Iterator[Budget]:
        """Return a context manager that provides the budget for reading some data and records what it used.

        Args:
            what: Key that identifies the data.
            per_byte: Bytes of memory allowed per byte of the file. Data with different values has separate budgets.
        """
        others = sum(size for key, size in list(self._kept.items()) if key[0] == per_byte and key[1] != what)
        budget = Budget(self._file_bytes, per_byte, others)
        yield budget
        self._kept[per_byte, what] = budget.taken - others
