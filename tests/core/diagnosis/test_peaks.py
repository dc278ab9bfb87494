"""Peak rates by the names of devices."""

from __future__ import annotations

import pytest
from tracekit.core.diagnosis import roofline


@pytest.mark.parametrize(
    ("name", "half", "sms"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 132),
        ("NVIDIA H100 PCIe", 756, 114),
        ("NVIDIA H100 NVL", 835, 132),
        ("NVIDIA GH200 480GB", 989, 132),
        ("NVIDIA H200", 989, 132),
        ("NVIDIA B200", 2250, 148),
        ("NVIDIA A100-SXM4-80GB", 312, 108),
        ("NVIDIA A10G", 125, 72),
        ("NVIDIA A40", 149.7, 84),
        ("NVIDIA L40S", 362, 142),
        ("NVIDIA L4", 121, 58),
        ("Tesla V100-SXM2-16GB", 125, 80),
        ("Tesla T4", 65, 40),
        ("nvidia geforce rtx 4090", 165.2, 128),
    ],
)
def test_peaks_of_devices(name: str, half: float, sms: int) -> None:
    found = roofline.find_peaks(name)
    assert found is not None
    assert (found.half, found.sm_count) == (half, sms)
    assert found.fp32 <= found.tf32 <= found.half


@pytest.mark.parametrize(
    "name", [None, "", "AMD Instinct MI300X", "GPU", "NVIDIA RTX A4000", "NVIDIA RTX A1000", "NVIDIA T400"]
)
def test_unknown_devices_have_no_peaks(name: str | None) -> None:
    assert roofline.find_peaks(name) is None
