"""A trace of nvprof in CSV with 400,000 kernels, against columns that the standard library collects."""

from __future__ import annotations

import csv
from pathlib import Path

TITLE = "nvprof CSV"
PACKAGES: tuple[str, ...] = ()
KERNELS, NAMES = 400_000, 200
HEADER = (
    '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem",'
    '"Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context","Stream","Name","Correlation_ID"\n'
    "ms,us,,,,,,,,KB,B,MB,GB/s,,,,,,,\n"
)


def write(folder: Path) -> Path:
    """Write kernels."""
    path = folder / "large.csv"
    with path.open("w") as file:
        file.write("==4242== Profiling result:\n" + HEADER)
        for n in range(KERNELS):
            file.write(
                f'{n / 100:.6f},{3 + n % 7:.6f},80,2,1,256,1,1,32,1.500000,512,,,,,"Tesla V100-SXM2-16GB (0)","1","7",'
                f'"void kernel_{n % NAMES}<float, int=4>(float*, float const *)",{n}\n'
            )
    return path


def read_with_peer(path: str) -> int:
    """Read the rows, and convert times and numbers."""
    with Path(path).open(newline="") as file:
        rows = list(csv.reader(file))[3:]
    columns = list(zip(*rows, strict=True))
    times = [[float(cell) for cell in column] for column in columns[:2]]
    numbers = [[int(cell) for cell in columns[n]] for n in (*range(2, 9), 10, 16, 17, 19)]
    return len(rows) + 0 * (len(times) + len(numbers))
