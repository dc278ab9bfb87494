"""A sandbox that parses untrusted bytes with WebAssembly programs.

In many formats, each value determines where the next value begins. Such formats must be parsed in a loop, because no
operation on whole columns can find the values. In WebAssembly, the loop runs at the speed of compiled code and without
the global interpreter lock (GIL). It can access no memory except that of the sandbox.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import wasmtime

from tracekit.native.program import MAX_PARAMETERS, PARAMETERS, Program

if TYPE_CHECKING:
    from collections.abc import Callable

Bytes: TypeAlias = npt.NDArray[np.uint8]
_Number = TypeVar("_Number", bound=np.generic)

_PAGE_BYTES = 1 << 16
_LOCK = threading.Lock()


class Sandbox:
    """An instance of a WebAssembly program with separate memory. Only one thread at a time may use it.

    Attributes:
        memory: The memory of the program, as a NumPy array of bytes.
    """

    def __init__(self, program: Program, size: int, out_of_bounds: Callable[[], Exception]) -> None:
        """Compile the program unless it is compiled already, and allocate memory.

        Args:
            program: Program to run in the sandbox.
            size: Size of the memory in bytes.
            out_of_bounds: Function that returns the exception to raise if the program accesses an offset outside its
                memory.

        Raises:
            MemoryError: The memory cannot be allocated.
        """
        self._out_of_bounds = out_of_bounds
        code, self._store, memory = _compile_and_allocate_memory(program, -(-size // _PAGE_BYTES))
        exports = wasmtime.Instance(self._store, code.module, [memory]).exports(self._store)
        self._functions: dict[str, wasmtime.Func] = {n: f for n, f in exports.items() if isinstance(f, wasmtime.Func)}
        self._names = program.parameters
        self.memory: Bytes = np.asarray(_ArrayInterface(memory, self._store))
        self._parameters = self.array(PARAMETERS, MAX_PARAMETERS, np.uint32)

    def call(self, function: str, **parameters: int) -> int:
        """Call a function of the program and return its result.

        Args:
            function: Name of the function.
            **parameters: Parameters of the function. Omitted parameters are 0. If all parameters are omitted, the
                function gets the values that the parameters had at the end of the last call.
        """
        if parameters:
            names = self._names[function]
            self._parameters[: len(names)] = [parameters.pop(name, 0) for name in names]
            if parameters:
                raise TypeError(f"{function}() has no parameters {sorted(parameters)}, only {list(names)}")
        try:
            return int(self._functions[function](self._store))
        except wasmtime.Trap as e:
            raise self._out_of_bounds() from e

    def parameter(self, function: str, name: str) -> int:
        """Return the value that a parameter of a function has after a call. Functions may change their parameters."""
        return int(self._parameters[self._names[function].index(name)])

    def bytes(self, offset: int, size: int) -> Bytes:
        """Return a view of a range of bytes in the memory."""
        return self.memory[offset : offset + size]

    def array(self, offset: int, count: int, dtype: type[_Number]) -> npt.NDArray[_Number]:
        """Return a view of an array of numbers in the memory."""
        return self.memory[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)


class _CompiledProgram(NamedTuple):
    """A program that wasmtime has compiled, and the engine that compiled it."""

    engine: wasmtime.Engine
    module: wasmtime.Module


class _ArrayInterface:
    """The array interface through which NumPy accesses the memory of a sandbox.

    The object refers to the store, which owns the memory. Therefore, the memory exists as long as an array uses it.
    """

    def __init__(self, memory: wasmtime.Memory, store: wasmtime.Store) -> None:
        self.owner = store
        address = ctypes.addressof(memory.data_ptr(store).contents)
        size = memory.data_len(store)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False)}


def _compile_and_allocate_memory(
    program: Program, pages: int
) -> tuple[_CompiledProgram, wasmtime.Store, wasmtime.Memory]:
    """Compile a program and allocate its memory. Return the compiled program, the store and the memory.

    By default, gigabytes of address space around the memory are reserved as guard pages, so that the processor detects
    accesses outside the memory. If this fails, the program is compiled again with explicit bounds checks.
    """
    size = wasmtime.MemoryType(wasmtime.Limits(pages, pages))
    for guarded in (True, False):
        with _LOCK:
            code = _compile_program(program, guarded=guarded)
        store = wasmtime.Store(code.engine)
        try:
            return code, store, wasmtime.Memory(store, size)
        except wasmtime.WasmtimeError:
            continue
    raise MemoryError(f"cannot allocate {pages * _PAGE_BYTES} bytes of memory for decoding")


@functools.cache
def _compile_program(program: Program, *, guarded: bool) -> _CompiledProgram:
    """Return a program that is compiled for guard pages, or with explicit bounds checks if ``guarded`` is False."""
    config = wasmtime.Config()
    config.parallel_compilation = False  # threads of a compiler pool would not exist after a fork
    if not guarded:
        config.memory_reservation = 0
        config.memory_reservation_for_growth = 0
        config.memory_guard_size = 0
    engine = wasmtime.Engine(config)
    return _CompiledProgram(engine, wasmtime.Module(engine, program.read_bytes()))
