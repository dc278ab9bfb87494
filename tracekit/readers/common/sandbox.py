"""A sandbox in which bytes of others are walked through: WebAssembly text of ours, compiled when it is first needed.

Walking through bytes that say where the next ones are is a loop, which no operation on whole columns replaces. In
WebAssembly it runs at the speed of compiled code, without the interpreter's lock, on every platform, and sees nothing
but its own memory.
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

from tracekit.readers.common.damage import Damage

Octets: TypeAlias = npt.NDArray[np.uint8]

FRAME, FRAME_BYTES = 64, 64
"""Where the arguments of a call stand, and where it leaves how far it came: numbers of 32 bits."""
_PAGE = 1 << 16
_LOCK = threading.Lock()


class Sandbox:
    """Memory, and code that runs in it.

    Attributes:
        memory: All of it.
    """

    def __init__(self, package: str, size: int, beyond: str) -> None:
        """Take memory.

        Args:
            package: Where the code is, as ``walk.wat``.
            size: Bytes of memory.
            beyond: What is wrong with a file that makes the code go out of its memory.

        Raises:
            MemoryError: There is not so much.
        """
        self._beyond = beyond
        code, self._store, memory = _memory(package, -(-size // _PAGE))
        exports = wasmtime.Instance(self._store, code.module, [memory]).exports(self._store)
        self._calls: dict[str, wasmtime.Func] = {n: f for n, f in exports.items() if isinstance(f, wasmtime.Func)}
        self.memory: Octets = np.asarray(_Block(memory, self._store))

    def frame(self, *numbers: int) -> npt.NDArray[np.int32]:
        """Set the arguments of the next call; return where they stand."""
        frame = self.memory[FRAME : FRAME + FRAME_BYTES].view(np.int32)
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
            raise Damage(self._beyond) from e

    def part(self, place: int, size: int) -> Octets:
        """Look at some of the memory."""
        return self.memory[place : place + size]


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


def _memory(package: str, pages: int) -> tuple[_Code, wasmtime.Store, wasmtime.Memory]:
    """Take memory: with address space around it, so that places need no check, or where that is limited, without."""
    size = wasmtime.MemoryType(wasmtime.Limits(pages, pages))
    for guarded in (True, False):
        with _LOCK:
            code = _compiled(package, guarded=guarded)
        store = wasmtime.Store(code.engine)
        try:
            return code, store, wasmtime.Memory(store, size)
        except wasmtime.WasmtimeError:
            continue
    raise MemoryError(f"no {pages * _PAGE} bytes to decode in")


@functools.cache
def _compiled(package: str, *, guarded: bool) -> _Code:
    config = wasmtime.Config()
    config.parallel_compilation = False  # its threads would be missing in a forked process, which would wait for them
    if not guarded:
        config.memory_reservation = 0
        config.memory_reservation_for_growth = 0
        config.memory_guard_size = 0
    engine = wasmtime.Engine(config)
    text = resources.files(package).joinpath("walk.wat").read_text("utf-8")
    return _Code(engine, wasmtime.Module(engine, text))
