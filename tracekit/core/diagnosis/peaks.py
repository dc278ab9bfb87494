"""Peak rates of GPUs, from the public data sheets of their makers: dense rates, without sparsity.

Captures of PyTorch contain no peak rates, and those of Nsight Systems only the bandwidth of the memory.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Peaks(NamedTuple):
    """Peak rates of a GPU.

    Attributes:
        fp32: Rate of FP32 without Tensor Cores, in TFLOP/s.
        tf32: Rate of FP32 inputs on Tensor Cores, in TFLOP/s. It equals ``fp32`` if there is no such mode.
        half: Rate of BF16, or of FP16 on GPUs without BF16, in TFLOP/s.
        bandwidth: Bandwidth of the memory, in GB/s.
        sm_count: Number of streaming multiprocessors.
        fp64: Rate of FP64 in TFLOP/s, on Tensor Cores if there is such a mode.
    """

    fp32: float
    tf32: float
    half: float
    bandwidth: float
    sm_count: int
    fp64: float


_PEAKS = (
    ("B200", Peaks(75, 1100, 2250, 8000, 148, 37)),
    ("GH200", Peaks(67, 494, 989, 4000, 132, 67)),
    ("H200", Peaks(67, 494, 989, 4800, 132, 67)),
    ("H100 PCIe", Peaks(51, 378, 756, 2000, 114, 51)),
    ("H100 NVL", Peaks(60, 417, 835, 3900, 132, 60)),
    ("H100", Peaks(67, 494, 989, 3350, 132, 67)),
    ("H800", Peaks(67, 494, 989, 3350, 132, 1)),
    ("A100", Peaks(19.5, 156, 312, 2039, 108, 19.5)),
    ("A800", Peaks(19.5, 156, 312, 2039, 108, 9.7)),
    ("A40", Peaks(37.4, 74.8, 149.7, 696, 84, 0.6)),
    ("A30", Peaks(10.3, 82, 165, 933, 56, 10.3)),
    ("A10", Peaks(31.2, 62.5, 125, 600, 72, 0.5)),
    ("L40", Peaks(90.5, 181, 362, 864, 142, 1.4)),
    ("L4", Peaks(30.3, 60, 121, 300, 58, 0.5)),
    ("RTX 6000 Ada", Peaks(91.1, 182, 364, 960, 142, 1.4)),
    ("RTX A6000", Peaks(38.7, 77.4, 154.8, 768, 84, 0.6)),
    ("RTX 5090", Peaks(104.8, 104.8, 209.5, 1792, 170, 1.6)),
    ("RTX 4090", Peaks(82.6, 82.6, 165.2, 1008, 128, 1.3)),
    ("RTX 3090", Peaks(35.6, 35.6, 71, 936, 82, 0.6)),
    ("V100", Peaks(15.7, 15.7, 125, 900, 80, 7.8)),
    ("T4", Peaks(8.1, 8.1, 65, 320, 40, 0.25)),
)
"""Peak rates by a part of the name of the device. The first part that matches decides."""

DEFAULT = Peaks(67, 494, 989, 2000, 132, 67)


def find_peaks(name: str | None) -> Peaks | None:
    """Return the peak rates of a device, given its name, or None if they are unknown."""
    text = (name or "").upper()
    return next((peaks for part, peaks in _PEAKS if re.search(rf"(?<![A-Z0-9]){part.upper()}(?![0-9])", text)), None)
