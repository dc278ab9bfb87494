"""Programs run on arrays that are allocated by name."""

from __future__ import annotations

import numpy as np
import pytest
from tracekit.native.alignment import PROGRAM
from tracekit.native.arrays import ArraySandbox


def test_arrays_are_separate_views_of_the_memory() -> None:
    sandbox = ArraySandbox(PROGRAM)
    sizes = {name: number for number, name in enumerate(PROGRAM.arrays["alignment"])}
    arrays = sandbox.allocate("alignment", **sizes)
    assert {name: len(array) for name, array in arrays.items()} == sizes
    assert {name: array.dtype.type for name, array in arrays.items()} == dict(PROGRAM.arrays["alignment"])
    for number, array in enumerate(arrays.values()):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays.values()))
    again = sandbox.allocate("alignment", **sizes)
    assert all((again[name] == array).all() for name, array in arrays.items())


def test_the_memory_grows() -> None:
    sandbox = ArraySandbox(PROGRAM)
    small = sandbox.allocate("alignment", gains=1)["gains"]
    small[:] = 1
    large = sandbox.allocate("alignment", gains=1 << 18, scales=1)
    large["gains"][:] = 2
    large["scales"][:] = 3
    assert (small.tolist(), large["gains"].min(), large["scales"].tolist()) == ([1], 2, [3])


def test_unknown_and_too_large_arrays_are_an_error() -> None:
    sandbox = ArraySandbox(PROGRAM)
    with pytest.raises(TypeError, match=r"alignment\(\) has no arrays \['gain'\], only \['item_codes', "):
        sandbox.allocate("alignment", gain=1)
    with pytest.raises(MemoryError, match=r"the arrays of alignment\(\) need 4294967\d+ bytes, and at most 4294901760"):
        sandbox.allocate("alignment", gains=1 << 29)


def test_a_program_cannot_leave_its_memory() -> None:
    sandbox = ArraySandbox(PROGRAM)
    arrays = sandbox.allocate("alignment", first_columns=2)
    arrays["first_columns"][:] = np.iinfo(np.int32).max
    with pytest.raises(MemoryError, match="the alignment left its memory"):
        sandbox.call("alignment", items=1 << 30, others=1 << 30, width=1 << 30, spacing=2)
