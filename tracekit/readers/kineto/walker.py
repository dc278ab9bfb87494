"""Events taken apart in a sandbox, whose code is ``walk.wat``: for each event and wanted key a number or a text.

Walking through JSON is a loop over bytes, which no operation on whole columns replaces. In WebAssembly it runs at the
speed of compiled code, without the interpreter's lock, and sees nothing but its own memory.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import wasmtime

from tracekit.readers.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Mapping

Octets: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]

SLOTS, ROWS = 64, 1 << 14
ENDED, MORE, FULL, STRANGE = range(4)
CAPACITY = 1 << 24
"""Bytes of JSON in memory at most: no event is longer."""
INPUT = 0xC00000
THOUSANDTHS, AS_TEXT = 1 << 8, 1 << 9
_FRAME, _KEYS, _KEY_COUNT, _TEXTS, _STARTS, _SIZES = 64, 1024, 512, 0x4000, 0xC4000, 0x104000
_CELLS, _MARKS = 0x150000, 0x950000
_SLACK = 64
_PIECES = INPUT + CAPACITY + _SLACK
_MOST = 1 << 16
_ENDS = _PIECES + 8 * _MOST
_OUT = _ENDS + 4 * _MOST
_PAGE = 1 << 16
_LOCK = threading.Lock()


class Walker:
    """Memory for some JSON and for what is found in it.

    Attributes:
        octets: The JSON.
        at: Place of what is not taken yet.
        end: End of the JSON.
        rows: Events found.
        far: Place up to which what is no event was looked at.
    """

    def __init__(self, keys: Mapping[tuple[int, str], int]) -> None:
        """Set it up.

        Args:
            keys: Slots by level (0 the event's own members, 1 its arguments) and key; 256 is added where numbers are
                counted in thousandths, 512 where they are left as text.
        """
        code, store, memory = _memory(-(-(_OUT + CAPACITY) // _PAGE))
        exports = wasmtime.Instance(store, code.module, [memory]).exports(store)
        self._store = store
        self._calls: dict[str, Any] = {n: f for n, f in exports.items() if isinstance(f, wasmtime.Func)}
        self._memory: Octets = np.asarray(_Block(memory, store))
        self.octets = self._memory[INPUT : INPUT + CAPACITY + _SLACK]
        self.at = self.end = self.rows = self.far = self._codes = 0
        for (level, key), slot in keys.items():
            self._want(level, key.encode(), slot)

    @property
    def values(self) -> Numbers:
        """Cells, by slot and row."""
        return self._words(_CELLS, SLOTS * ROWS).reshape(SLOTS, ROWS)

    @property
    def marks(self) -> Octets:
        """Marks of the cells, by slot and row: 1 a number, 2 a text, 3 another value as text."""
        return self._memory[_MARKS : _MARKS + SLOTS * ROWS].reshape(SLOTS, ROWS)

    def put(self, data: bytes) -> None:
        """Add JSON behind what is not taken yet, which moves to the front. There must be no rows."""
        rest = self.end - self.at
        self.octets[:rest] = self.octets[self.at : self.end].copy()
        self.octets[rest : rest + len(data)] = np.frombuffer(data, np.uint8)
        self.at, self.end = 0, rest + len(data)
        self.octets[self.end : self.end + _SLACK] = 0

    @property
    def room(self) -> int:
        """Bytes that can be added."""
        return CAPACITY - (self.end - self.at)

    def clear(self) -> None:
        """Forget the rows."""
        self.rows = self._codes = 0
        self._memory[_TEXTS : _TEXTS + 4 * _MOST] = 0
        self._memory[_MARKS : _MARKS + SLOTS * ROWS] = 0

    def events(self) -> int:
        """Take events apart, as many as are whole and as there is room for: why it ended."""
        frame = self._frame(INPUT + self.at, INPUT + self.end, self.rows, ROWS, self._codes, 0)
        result = self._call("events")
        self.at, self.rows, self._codes = int(frame[0]) - INPUT, int(frame[2]), int(frame[4])
        self.far = max(int(frame[5]) - INPUT, self.at)
        return result

    def skip(self, depth: int = 0, *, inside: bool = False) -> tuple[bool, int, bool]:
        """Go through a nested value or a text: whether it goes on, how deep it is there, and whether in a text."""
        frame = self._frame(INPUT + self.at, INPUT + self.end, depth, int(inside))
        on = bool(self._call("pass"))
        self.at = int(frame[0]) - INPUT
        return on, int(frame[2]), bool(frame[3])

    def texts(self) -> tuple[Octets, npt.NDArray[np.int32]]:
        """Return the numbered texts: their bytes end to end, and where each ends."""
        starts, sizes = (self._memory[p : p + 4 * self._codes].view(np.int32) for p in (_STARTS, _SIZES))
        return self.gather(starts.astype(np.int64) | ((starts + sizes).astype(np.int64) << 32))

    def gather(self, pieces: Numbers) -> tuple[Octets, npt.NDArray[np.int32]]:
        """Copy pieces together: n places (and above 32 bits the places behind) in; bytes, and n ends out."""
        self._words(_PIECES, len(pieces))[:] = pieces
        self._frame(len(pieces), _PIECES, _ENDS, _OUT)
        size = self._call("gather")
        ends = self._memory[_ENDS : _ENDS + 4 * len(pieces)].view(np.int32)
        return self._memory[_OUT : _OUT + size].copy(), ends.copy()

    def _want(self, level: int, key: bytes, slot: int) -> None:
        self.octets[: len(key)] = np.frombuffer(key, np.uint8)
        self._frame(INPUT, len(key), level, _OUT)
        self._call("hash")
        found = int(self._memory[_OUT : _OUT + 8].view(np.uint64)[0])
        table = self._memory[_KEYS : _KEYS + 16 * _KEY_COUNT].view(np.uint32).reshape(_KEY_COUNT, 4)
        row = found % _KEY_COUNT
        while table[row, 3]:
            row = (row + 1) % _KEY_COUNT
        table[row] = (found & 0xFFFFFFFF, found >> 32, len(key), slot + 1)

    def _words(self, place: int, count: int) -> Numbers:
        return self._memory[place : place + 8 * count].view(np.int64)

    def _frame(self, *numbers: int) -> npt.NDArray[np.int32]:
        frame = self._memory[_FRAME : _FRAME + 32].view(np.int32)
        frame[: len(numbers)] = numbers
        return frame

    def _call(self, name: str) -> int:
        try:
            return int(self._calls[name](self._store))
        except wasmtime.Trap as e:
            raise Damage("an event reaches beyond its bytes") from e


class _Code(NamedTuple):
    engine: wasmtime.Engine
    module: wasmtime.Module


class _Block:
    """The memory of an instance as numpy takes it; the store that owns it lives as long."""

    def __init__(self, memory: wasmtime.Memory, store: wasmtime.Store) -> None:
        self.owner = store
        address = ctypes.addressof(memory.data_ptr(store).contents)
        size = memory.data_len(store)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False)}


def _memory(pages: int) -> tuple[_Code, wasmtime.Store, wasmtime.Memory]:
    """Take memory: with address space around it, so that places need no check, or where that is limited, without."""
    size = wasmtime.MemoryType(wasmtime.Limits(pages, pages))
    for guarded in (True, False):
        with _LOCK:
            code = _compiled(guarded=guarded)
        store = wasmtime.Store(code.engine)
        try:
            return code, store, wasmtime.Memory(store, size)
        except wasmtime.WasmtimeError:
            continue
    raise MemoryError(f"no {pages * _PAGE} bytes to decode in")


@functools.cache
def _compiled(*, guarded: bool) -> _Code:
    config = wasmtime.Config()
    if not guarded:
        config.memory_reservation = 0
        config.memory_reservation_for_growth = 0
        config.memory_guard_size = 0
    engine = wasmtime.Engine(config)
    text = resources.files(__package__).joinpath("walk.wat").read_text("utf-8")
    return _Code(engine, wasmtime.Module(engine, text))
