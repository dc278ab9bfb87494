"""How much memory a file may take, by its size: a small file never becomes a large table.

Compressed and repeated values take almost no room in a file: a kilobyte can announce a billion rows. So rows are
counted before memory is allocated for them, against a fixed amount and a multiple of the size of the file. The largest
multiple seen in real files is 22; ``docs/errors.md`` lists what the worst files cost.
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
"""Memory of a value in a column."""
OBJECT_ROW_BYTES = 1 << 10
"""Memory of a row that is made of Python objects."""
_AT_ONCE = 128


class Budget:
    """Memory that one file may take; several threads may count at once.

    Attributes:
        most: Bytes in all.
        taken: Bytes that are counted so far.
    """

    def __init__(self, file_bytes: int, per_byte: int = BYTES_PER_BYTE, taken: int = 0) -> None:
        """Set the budget.

        Args:
            file_bytes: Size of the file.
            per_byte: Bytes of memory that each byte of the file may take beyond the fixed amount.
            taken: Bytes that are taken already.
        """
        self.most = START_BYTES + per_byte * file_bytes
        self.taken = taken
        self._file_bytes = file_bytes
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return self.most - self.taken

    def take(self, rows: int, row_bytes: int, what: str) -> None:
        """Count memory that is going to be allocated and kept.

        Args:
            rows: Number of rows.
            row_bytes: Memory of each.
            what: What they are, for the error: "rows of kernels".

        Raises:
            Damage: There is not so much left.
        """
        with self._lock:
            self._check(rows, row_bytes, what, self.left)
            self.taken += rows * row_bytes

    def check(self, rows: int, row_bytes: int, what: str) -> None:
        """Check memory that is going to be allocated for a moment.

        Raises:
            Damage: It is more than there is in all.
        """
        self._check(rows, row_bytes, what, self.most)

    def counted(self, items: Iterable[Item], what: str, row_bytes: int = OBJECT_ROW_BYTES) -> Iterator[Item]:
        """Yield items that become Python objects, counting their memory.

        Raises:
            Damage: There are too many.
        """
        for nth, item in enumerate(items):
            if nth % _AT_ONCE == 0:
                self.take(_AT_ONCE, row_bytes, what)
            yield item

    def _check(self, rows: int, row_bytes: int, what: str, available: int) -> None:
        if rows * row_bytes > available:
            raise Damage(
                f"{rows:,} {what} would take {rows * row_bytes:,} bytes of memory; "
                f"a file of {self._file_bytes:,} bytes may take {self.most:,}, of which {available:,} are left"
            )


class Ledger:
    """What all that was read of one file, or of one folder, takes in memory, for as long as it is open.

    What is read another time is counted once.
    """

    def __init__(self, file_bytes: int) -> None:
        """Begin with nothing read.

        Args:
            file_bytes: Size of the file, or of all files of the folder.
        """
        self._file_bytes = file_bytes
        self._kept: dict[tuple[int, Hashable], int] = {}

    def budget(self) -> Budget:
        """Return a budget for something that is not kept."""
        return Budget(self._file_bytes)

    @contextlib.contextmanager
    def reading(self, what: Hashable, per_byte: int = BYTES_PER_BYTE) -> Iterator[Budget]:
        """Lend a budget for reading something; what it takes is kept when that is done.

        Args:
            what: What is read.
            per_byte: Bytes of memory that each byte of the file may take. What is read with another number has a budget
                of its own.
        """
        others = sum(size for key, size in list(self._kept.items()) if key[0] == per_byte and key[1] != what)
        budget = Budget(self._file_bytes, per_byte, others)
        yield budget
        self._kept[per_byte, what] = budget.taken - others
