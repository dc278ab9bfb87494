"""A sandbox in which bytes of others are walked through: its code is ``walk.wat``, compiled when it is first needed.

Walking through messages is a loop over bytes, which no operation on whole columns replaces. In WebAssembly it runs at
the speed of compiled code, without the interpreter's lock, on every platform, and sees nothing but its own memory.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from importlib import resources
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import wasmtime

from tracekit.readers.damage import Damage

Octets: TypeAlias = npt.NDArray[np.uint8]

SLACK = 32
FRAME, SLOTS, COUNTS, KINDS, SCRATCH, OCTETS = 64, 4096, 8192, 12288, 16384, 1 << 22
ROOM = OCTETS - SCRATCH
"""Bytes of scratch: what a call is given, and what it finds."""
MAX_SLOTS, FIELDS = 255, 2048
BEYOND, UNKNOWN_FIELD, UNKNOWN_KIND, BROKEN, LONG_EVENT, MANY, AGAIN = range(1, 8)
_PAGE = 1 << 16
_LOCK = threading.Lock()
_SAID = {
    BEYOND: "a field reaches beyond its message",
    UNKNOWN_FIELD: "a field has a number beyond all known ones",
    UNKNOWN_KIND: "a field is of no known kind",
    LONG_EVENT: "an event reaches beyond its end",
}


class _Code(NamedTuple):
    engine: wasmtime.Engine
    module: wasmtime.Module


class Sandbox:
    """Memory for some bytes, and the code that walks through them.

    Attributes:
        octets: The bytes; zeros follow the last.
    """

    __slots__ = ("_calls", "_memory", "_store", "octets")

    def __init__(self, size: int) -> None:
        pages = -(-(OCTETS + size + SLACK) // _PAGE)
        code, self._store, memory = _memory(pages)
        exports = wasmtime.Instance(self._store, code.module, [memory]).exports(self._store)
        self._calls: dict[str, wasmtime.Func] = {n: f for n, f in exports.items() if isinstance(f, wasmtime.Func)}
        self._memory: Octets = np.asarray(_Block(memory, self._store))
        self.octets: Octets = self._memory[OCTETS : OCTETS + size + SLACK]

    def frame(self, *numbers: int) -> npt.NDArray[np.int32]:
        """Set the arguments of the next call; return where they stand."""
        frame = self._memory[FRAME : FRAME + 64].view(np.int32)
        frame[: len(numbers)] = numbers
        return frame

    def call(self, name: str) -> int:
        """Run some code; return its result.

        Raises:
            Damage: It went out of its memory.
        """
        try:
            return int(self._calls[name](self._store))
        except wasmtime.Trap as e:
            raise Damage(_SAID[BEYOND]) from e

    def at(self, place: int, size: int) -> Octets:
        """Look at the memory outside the bytes."""
        return self._memory[place : place + size]


def complain(result: int) -> None:
    """Say what the result of a call means.

    Raises:
        Damage: It is not 0.
    """
    if result:
        raise Damage(_SAID[result])


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
        code = _code(guarded=guarded)
        store = wasmtime.Store(code.engine)
        try:
            return code, store, wasmtime.Memory(store, size)
        except wasmtime.WasmtimeError:
            continue
    raise MemoryError(f"no {pages * _PAGE} bytes to decode in")


def _code(*, guarded: bool) -> _Code:
    """Return the compiled code; other threads wait for the one that compiles."""
    with _LOCK:
        return _compiled(guarded=guarded)


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
