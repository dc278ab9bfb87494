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
    """

    fp32: float
    tf32: float
    half: float
    bandwidth: float
    sm_count: int


_PEAKS = (
    ("B200", Peaks(75, 1100, 2250, 8000, 148)),
    ("GH200", Peaks(67, 494, 989, 4000, 132)),
    ("H200", Peaks(67, 494, 989, 4800, 132)),
    ("H100 PCIe", Peaks(51, 378, 756, 2000, 114)),
    ("H100 NVL", Peaks(60, 417, 835, 3900, 132)),
    ("H100", Peaks(67, 494, 989, 3350, 132)),
    ("H800", Peaks(67, 494, 989, 3350, 132)),
    ("A100", Peaks(19.5, 156, 312, 2039, 108)),
    ("A800", Peaks(19.5, 156, 312, 2039, 108)),
    ("A40", Peaks(37.4, 74.8, 149.7, 696, 84)),
    ("A30", Peaks(10.3, 82, 165, 933, 56)),
    ("A10", Peaks(31.2, 62.5, 125, 600, 72)),
    ("L40", Peaks(90.5, 181, 362, 864, 142)),
    ("L4", Peaks(30.3, 60, 121, 300, 58)),
    ("RTX 6000 Ada", Peaks(91.1, 182, 364, 960, 142)),
    ("RTX A6000", Peaks(38.7, 77.4, 154.8, 768, 84)),
    ("RTX 5090", Peaks(104.8, 104.8, 209.5, 1792, 170)),
    ("RTX 4090", Peaks(82.6, 82.6, 165.2, 1008, 128)),
    ("RTX 3090", Peaks(35.6, 35.6, 71, 936, 82)),
    ("V100", Peaks(15.7, 15.7, 125, 900, 80)),
    ("T4", Peaks(8.1, 8.1, 65, 320, 40)),
)
"""Peak rates by a part of the name of the device. The first part that matches decides."""

DEFAULT = Peaks(67, 494, 989, 2000, 132)


def find_peaks(name: str | None) -> Peaks | None:
    """Return the peak rates of a device, given its name, or None if they are unknown."""
    text = (name or "").upper()
    return next((peaks for part, peaks in _PEAKS if re.search(rf"(?<![A-Z0-9]){part.upper()}(?![0-9])", text)), None)
