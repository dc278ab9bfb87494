"""Compute the peak rates of GPUs from what a capture recorded about them, and the rates in ``schemas/peaks.toml``.

The peak of a type is the number of multiprocessors × their clock × the operations of one of them per clock cycle.
Captures of Nsight Systems record the clock and the bandwidth of the memory. Traces of PyTorch record neither; those of
the data sheet are then used if the recorded architecture and number of multiprocessors are those of the product.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import polars as pl

from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.correlate import Frames

RECORDED, MEASURED, DATA_SHEET = "recorded", "measured", "data sheet"
"""Where the clock or the bandwidth comes from."""
COLUMNS = (
    *("device_id", "name", "compute_major", "compute_minor", "sm_count", "clock_rate_hz"),
    *("memory_bandwidth_bytes_per_s", "threads_per_warp", "max_warps_per_sm", "max_registers_per_sm"),
    *("max_shared_memory_per_sm_bytes", "peak_flop_per_s"),
)
"""The columns of ``devices`` that ``find_peaks`` reads."""
MATRIX_KINDS = ("matrix_product", "convolution", "attention")
"""The kinds of work that matrix instructions can do."""
HALF_TYPES = ("bf16", "fp16")
_CLOCK_METRIC = "GPC Clock Frequency [MHz]"
_AMD_WAVEFRONT, _AMD_NAMES = 64, r"^AMD\b|Instinct|Radeon"
_KHZ, _MIN_HZ, _MAX_HZ, _MIN_BANDWIDTH, _MAX_BANDWIDTH = 1000, 10**8, 10**10, 10**10, 10**14
"""Old captures contain clocks in kHz, and wrong bandwidths with them. Other values are implausible."""
_MAX_SMS, _LANES = 4096, 32


class Resources(NamedTuple):
    """What a multiprocessor offers to the blocks that run on it. An amount is None if it is unknown.

    Attributes:
        sm_count: Number of multiprocessors of the GPU.
        blocks: Largest number of blocks.
        warps: Largest number of warps.
        threads_per_warp: Number of threads of a warp.
        registers: Number of registers.
        shared_bytes: Size of the shared memory in bytes.
        reserved_shared_bytes: Size of the shared memory that the system takes for each block, in bytes.
    """

    sm_count: int
    blocks: int | None
    warps: int | None
    threads_per_warp: int
    registers: int | None
    shared_bytes: int | None
    reserved_shared_bytes: int


class Peaks(NamedTuple):
    """Peak rates of a GPU.

    Attributes:
        architecture: Compute capability, or name of the architecture of AMD.
        vector: Rates of the units without matrix instructions, in operations per second, by type.
        matrix: Rates of Tensor Cores or Matrix Cores, in operations per second, by type.
        bandwidth: Bandwidth of the memory in bytes per second, or None if it is unknown.
        clock_hz: Clock to which the rates belong.
        clock_source: Where the clock comes from: ``recorded``, ``measured`` or ``data sheet``. The rates of a data
            sheet belong to the clocks that it assumes, which can be lower for matrix instructions.
        bandwidth_source: Where the bandwidth comes from, or None if it is unknown.
        resources: What the multiprocessors offer to blocks.
    """

    architecture: str
    vector: Mapping[str, float]
    matrix: Mapping[str, float]
    bandwidth: float | None
    clock_hz: float
    clock_source: str
    bandwidth_source: str | None
    resources: Resources

    def get_rate(self, type_: str | None, kind: str) -> float | None:
        """Return the peak rate of work of a type and kind in operations per second, or None if it is unknown.

        Work other than matrix products, convolutions and attention runs without matrix instructions, in FP32 if its
        values are smaller, as frameworks compute it.
        """
        if type_ is None:
            return None
        if kind in MATRIX_KINDS:
            return self.matrix.get(type_, self.vector.get(type_)) if type_ != "fp32" else self.fp32 or None
        return self.vector.get(type_ if type_ in ("fp64", "int8") else "fp32")

    @property
    def fp32(self) -> float:
        """Rate of products in FP32 that do not round their inputs, in FLOP/s."""
        return max(self.vector.get("fp32", 0.0), self.matrix.get("fp32", 0.0))

    @property
    def tf32(self) -> float:
        """Rate of products of FP32 inputs on Tensor Cores, in FLOP/s. It equals ``fp32`` if there is no such mode."""
        return max(self.fp32, self.matrix.get("tf32", 0.0))

    @property
    def half(self) -> float:
        """Rate of products in BF16, or in FP16 on GPUs without BF16, in FLOP/s."""
        return max(self.fp32, *(self.matrix.get(name, 0.0) for name in HALF_TYPES))

    @property
    def fp64(self) -> float:
        """Rate of products in FP64, in FLOP/s."""
        return max(self.vector.get("fp64", 0.0), self.matrix.get("fp64", 0.0))


def find_peaks(device: Mapping[str, Any]) -> Peaks | None:
    """Return the peak rates of a device, or None if its architecture, clock or number of multiprocessors is unknown.

    Args:
        device: A row of ``devices``, with the columns ``COLUMNS``. Missing columns are unknown.
    """
    declared = schemas.load_peak_rates()
    sm_count = device.get("sm_count")
    name = device.get("name") or ""
    if not isinstance(sm_count, int) or not 0 < sm_count <= _MAX_SMS:
        return None
    architecture = _find_architecture(device, name, sm_count)
    if architecture is None:
        return None
    rates = declared["architectures"][architecture]
    sheet = _find_sheet(name, architecture, sm_count)
    clock, clock_source = _choose_clock(device, sheet)
    if clock is None:
        return None
    is_halved = re.search(declared["halved_names"], name) is not None
    halved = rates.get("halved", ()) if is_halved else ()
    per_clock = {t: r / 2 if t in halved else r for t, r in rates.get("matrix", {}).items()}
    capped = {} if sheet is None else {t: v * 1e12 for t, v in sheet.get("capped", {}).items()}
    bandwidth, bandwidth_source = _choose_bandwidth(device, sheet)
    share = 1.0 if sheet is None or clock_source != DATA_SHEET else _compare_with_sheet(sheet, rates, sm_count)
    return Peaks(
        architecture,
        _compute_rates(rates["vector"], sm_count * clock, capped),
        _compute_rates({t: r if t == "fp64" else r * share for t, r in per_clock.items()}, sm_count * clock, capped),
        bandwidth,
        clock,
        clock_source,
        bandwidth_source,
        _read_resources(device, sm_count, rates),
    )


def find_recorded_peaks(device: Mapping[str, Any]) -> Peaks | None:
    """Return the peak rate of matrix products in BF16 that a profiler recorded, as for TPUs, or None.

    Args:
        device: A row of ``devices``, with the columns ``COLUMNS``.
    """
    rate = device.get("peak_flop_per_s")
    if not rate:
        return None
    bandwidth, bandwidth_source = _choose_bandwidth(device, None)
    resources = Resources(1, None, None, _LANES, None, None, 0)
    name = device.get("name") or ""
    return Peaks(name, {}, {"bf16": float(rate)}, bandwidth, math.nan, RECORDED, bandwidth_source, resources)


def _compute_rates(
    per_clock: Mapping[str, float], clocks_per_s: float, capped: Mapping[str, float]
) -> dict[str, float]:
    return {t: min(rate * clocks_per_s, capped.get(t, math.inf)) for t, rate in per_clock.items()}


def find_sheet_peaks(device: Mapping[str, Any]) -> Peaks | None:
    """Return the peak rates that the data sheet of a device states, or None if they are unknown."""
    return find_peaks({**device, "clock_rate_hz": None, "memory_bandwidth_bytes_per_s": None})


def scale_to_clock(peaks: Peaks, clock_hz: float) -> Peaks:
    """Return the peak rates at a measured clock. The bandwidth of the memory stays."""
    share = clock_hz / peaks.clock_hz
    vector, matrix = ({t: rate * share for t, rate in rates.items()} for rates in (peaks.vector, peaks.matrix))
    return peaks._replace(vector=vector, matrix=matrix, clock_hz=clock_hz, clock_source=MEASURED)


@functools.cache
def get_default_peaks() -> Peaks:
    """Return the peak rates of an H100, as those of a current GPU where they are unknown."""
    h100 = {"name": "NVIDIA H100", "compute_major": 9, "compute_minor": 0, "sm_count": 132}
    return cast("Peaks", find_peaks(h100))


class KnownPeaks(NamedTuple):
    """The peak rates of the devices of a capture by ``device_id``, without those that are unknown.

    Attributes:
        recorded: Peak rates at the recorded clock, or those of the data sheet if no clock was recorded.
        measured: Peak rates at the median clock that was measured while kernels ran.
        sheets: Peak rates that the data sheet states.
    """

    recorded: Mapping[int, Peaks]
    measured: Mapping[int, Peaks]
    sheets: Mapping[int, Peaks]


def read_peaks(frames: Frames) -> KnownPeaks:
    """Return the peak rates of the devices of a capture."""
    devices = {device["device_id"]: device for device in frames("devices").select(COLUMNS).collect().to_dicts()}
    recorded = {
        number: peaks for number, row in devices.items() if (peaks := find_peaks(row) or find_recorded_peaks(row))
    }
    sheets = {number: peaks for number, row in devices.items() if (peaks := find_sheet_peaks(row))}
    clocks = measure_clocks(frames)
    measured = {d: scale_to_clock(peaks, clocks[d]) for d, peaks in recorded.items() if d in clocks}
    return KnownPeaks(recorded, measured, sheets)


def measure_clocks(frames: Frames) -> dict[int, float]:
    """Return the median clock of each device that was sampled while kernels ran, in Hz by ``device_id``."""
    samples = frames("gpu_metrics").filter(pl.col("metric").cast(pl.String) == _CLOCK_METRIC)
    samples = samples.select("device_id", "timestamp_ns", "value").filter(pl.col("value").is_between(_MIN_HZ, _MAX_HZ))
    rows = samples.collect()
    if rows.is_empty():
        return {}
    spans = frames("kernels").group_by("device_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).collect()
    inside = pl.col("timestamp_ns").is_between("start_ns", "end_ns")
    medians = rows.join(spans, on="device_id").filter(inside).group_by("device_id").agg(pl.col("value").median())
    return dict(medians.iter_rows())


def _find_architecture(device: Mapping[str, Any], name: str, sm_count: int) -> str | None:
    """Return the key of the architecture of a device in ``schemas/peaks.toml``, or None if it is unknown.

    If a capture of an NVIDIA GPU contains no compute capability, that of the data sheet of the product is used.
    """
    architectures = schemas.load_peak_rates()["architectures"]
    major, minor = device.get("compute_major"), device.get("compute_minor")
    version = f"{major}.{minor or 0}" if major else None
    if device.get("threads_per_warp") == _AMD_WAVEFRONT or re.search(_AMD_NAMES, name):
        return next(
            (
                key
                for key, rates in architectures.items()
                if rates.get("version", "") == version and sm_count in rates.get("sm_counts", [sm_count])
            ),
            None,
        )
    if version is None:
        sheet = next((s for s in _compile_sheets() if s[0].search(name)), None)
        return sheet[1]["architecture"] if sheet and sheet[1]["sm_count"] == sm_count else None
    return version if version in architectures else None


@functools.lru_cache(maxsize=1)
def _compile_sheets() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    return tuple((re.compile(sheet["name"]), sheet) for sheet in schemas.load_peak_rates()["sheets"])


def _find_sheet(name: str, architecture: str, sm_count: int) -> dict[str, Any] | None:
    """Return the data sheet of a product, or None if it is unknown or contradicts what was recorded."""
    sheet = next((sheet for pattern, sheet in _compile_sheets() if pattern.search(name)), None)
    if sheet is None or (sheet["architecture"], sheet["sm_count"]) != (architecture, sm_count):
        return None
    return sheet


def _choose_clock(device: Mapping[str, Any], sheet: Mapping[str, Any] | None) -> tuple[float | None, str]:
    """Return the clock of a device in Hz, or None, and where it comes from."""
    recorded = device.get("clock_rate_hz") or 0
    for clock in (recorded, recorded * _KHZ):
        if _MIN_HZ <= clock <= _MAX_HZ:
            return float(clock), RECORDED
    return (None, "") if sheet is None else (sheet["clock_mhz"] * 1e6, DATA_SHEET)


def _choose_bandwidth(device: Mapping[str, Any], sheet: Mapping[str, Any] | None) -> tuple[float | None, str | None]:
    """Return the bandwidth of a device in bytes per second, and where it comes from, or None if it is unknown."""
    recorded = device.get("memory_bandwidth_bytes_per_s") or 0
    if _MIN_BANDWIDTH <= recorded <= _MAX_BANDWIDTH:
        return float(recorded), RECORDED
    return (None, None) if sheet is None else (sheet["bandwidth_gb_per_s"] * 1e9, DATA_SHEET)


def _compare_with_sheet(sheet: Mapping[str, Any], rates: Mapping[str, Any], sm_count: int) -> float:
    """Return the matrix rates of a data sheet, apart from FP64, as a share of those at the clock of the others."""
    stated = sheet.get("bf16_tflops")
    return 1.0 if stated is None else float(stated * 1e6 / (rates["matrix"]["bf16"] * sm_count * sheet["clock_mhz"]))


def _read_resources(device: Mapping[str, Any], sm_count: int, rates: Mapping[str, Any]) -> Resources:
    return Resources(
        sm_count,
        rates.get("blocks_per_sm"),
        device.get("max_warps_per_sm") or None,
        device.get("threads_per_warp") or _LANES,
        device.get("max_registers_per_sm") or None,
        device.get("max_shared_memory_per_sm_bytes") or None,
        rates.get("reserved_shared_bytes", 0),
    )
