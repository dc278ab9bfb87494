"""Make a report of many CPU samples: ``python stacks.py TARGET MILLIONS [DISTINCT]``.

The samples have stacks of 20 frames of a made program: 3,000 functions that call each other, and 5,000 distinct stacks
unless another number is given. 70,000 of them are made, and their blocks are repeated.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.repeat import report
from tests.builders.nsys_rep import Parts, event, message, strings

SAMPLES, BLOCK, FRAMES, FUNCTIONS = 70_000, 7_000, 20, 3_000
BASE = 0x7F00_0000_0000


def frame(function: int, place: int) -> tuple[int, bytes]:
    """A frame of a function, at one of its places."""
    address = BASE + 4096 * function + 16 * place
    fields = [(1, function), (2, FUNCTIONS + function % 40), (4, 0), (5, 0), (6, 0), (8, address), (9, 0)]
    return 4, message(*fields)


def stacks(count: int, made: random.Random) -> list[list[tuple[int, bytes]]]:
    """Stacks whose frames call one of a few functions each."""
    found = []
    for _ in range(count):
        functions = [0]
        while len(functions) < FRAMES:
            functions.append((functions[-1] * 3 + made.randrange(1, 4)) % FUNCTIONS)
        found.append([frame(f, made.randrange(3) if n == FRAMES - 1 else 0) for n, f in enumerate(functions)][::-1])
    return found


def write(target: Path, millions: float, distinct: int) -> None:
    """Write the report."""
    made = random.Random(7)
    listed = stacks(distinct, made)
    threads = [1 << 48 | 7 << 24 | n for n in range(8, 16)]
    samples = []
    for n in range(SAMPLES):
        about = [(5, message((1, 1), (2, 1))), (6, 1), (11, made.choice(threads))]
        samples.append(event(31, 104, (1, 1000 * n), (3, n % 32), *made.choice(listed), *about))
    blocks = [b"".join(samples[n : n + BLOCK]) for n in range(0, SAMPLES, BLOCK)]
    names = [f"library::module{n % 97}::function_{n}(int, float)" for n in range(FUNCTIONS)]
    texts = strings(*names, *(f"/usr/lib/libmade{n}.so" for n in range(40)))
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.nsys-rep"
        small.write_bytes(Parts(blocks, [texts]).pack())
        report(small, target, round(millions * 1e6 / SAMPLES))


if __name__ == "__main__":
    write(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 5_000)
