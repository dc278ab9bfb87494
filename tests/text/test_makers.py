"""Makers of GPUs follow from names, chips and what the profiler states; GPUs without a name are named by them."""

from __future__ import annotations

import pytest
from tracekit.text.makers import is_without_cuda, list_makers_of_capture, name_gpu


@pytest.mark.parametrize(
    ("info", "gpus", "makers"),
    [
        ({"device_vendors": "AMD"}, [{"name": None, "chip": None}], ("AMD",)),
        ({"device_vendors": "Nvidia"}, [], ("NVIDIA",)),
        ({}, [{"name": None, "chip": "gfx942"}], ("AMD",)),
        ({"device_vendors": "Huawei"}, [{"name": None, "chip": None}], ("Huawei",)),
        ({}, [{"name": "NVIDIA H200", "chip": "GH100"}], ("NVIDIA",)),
        ({}, [{"name": None, "chip": None}], ()),
    ],
)
def test_makers_follow_from_all_that_a_capture_states(
    info: dict[str, str], gpus: list[dict[str, str | None]], makers: tuple[str, ...]
) -> None:
    assert list_makers_of_capture(info, gpus) == makers
    assert is_without_cuda(makers) == (bool(makers) and makers != ("NVIDIA",))


def test_gpus_without_a_name_are_named_by_chip_or_maker() -> None:
    assert name_gpu("AMD Instinct MI300X", "gfx942", ["AMD"]) == "AMD Instinct MI300X"
    assert name_gpu(None, "gfx942", ["AMD"]) == "gfx942"
    assert name_gpu(None, None, ["AMD"]) == "unknown AMD GPU"
    assert name_gpu("", "", ["AMD", "NVIDIA"]) == name_gpu(None, None, []) == "unknown GPU"
