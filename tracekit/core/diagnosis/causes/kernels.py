"""Find causes in the kernels of a program: precision, attention, pointwise chains, layouts, optimizers, small grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.core.diagnosis.cures import Cure
from tracekit.core.diagnosis.kinds import COMPUTE, NUMBERS, select_classes
from tracekit.core.diagnosis.rates import MOVING
from tracekit.core.diagnosis.recording import GRAPH_NODES, RECORD_NODES, find_command
from tracekit.core.ncu.roofline import NEAR_PEAK
from tracekit.core.work.roofline import AT_ROOFLINE, GOOD_SHARE
from tracekit.registry.analyses import REPORT, get_analysis

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.diagnosis.inspection import Inspection

    Int64s = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]
    Durations = tuple[Int64s, Int64s, Int64s]

MATMULS = ("matmul", "matmul_fp32")
POINTWISE = ("pointwise", "cast_or_copy")
_SMALL_KERNEL_NS, _SHORT_KERNEL_NS = 20_000, 3_000
SIMILAR_SIZE = 4.5
"""Ratio of the numbers of blocks of two pointwise kernels up to which one kernel may compute both."""
_MIN_SMALL_KERNELS, _SMALL_SHARE, _LONG_RUN = 60, 0.7, 150
_ATTENTION_SPAN = 16
_LEAST_PRODUCTS_NS = (8_000, 4_000, 2_500)
"""Least durations of products and convolutions on Tensor Cores in the low, the likely and the high case."""
_BEST_HALF_SHARE = 0.75
"""Share of the peak rate of Tensor Cores that good kernels reach in BF16."""
_HEALTHY_RATE = 0.5
"""Share of the peak rate that kernels reach if they are limited by it, in case that it was measured."""
_MIN_STREAMS, _FED_SHARE, _FEW_THREADS = 3, 0.9, 64
_ON_TENSOR_CORES = ("matmul", "convolution", "fused_attention")
MIN_CHAIN, MIN_LIKELY_CHAIN = 3, 5
"""Lengths of chains from which on they may be fused, and from which on fusing them likely saves time."""
LEAST_BY_HAND, LEAST_KERNELS = 0.55, 2.75
"""Share of the time of a chain that likely stays if no compiler fuses it: that of its inputs and results, which take as
long as at most a few of its kernels."""
_DIRECT_CONVOLUTION = r"(?i)depthwise|grouped_direct"
"""Convolutions that move more data than they compute, so that half the bytes take half the time at best."""
CHAIN_STAYS = (2.5, 1.2, 1.0)
"""How often the duration of the longest kernel of a chain a fused kernel takes."""
_CHAIN_STAYS_AT_PEAK = (1.6, 1.1, 1.0)
"""The same for kernels that Nsight Compute measured near the peak of DRAM, so that only bytes count."""
FUSED_NAMES = r"^(loop_|wrapped_|input_)|_fusion|triton_"
"""Regular expression that matches the names of pointwise kernels that a compiler has fused."""
_LOG_SOFTMAX = r"LogSoftMax|log_softmax|softmax_warp_(for|back)ward<[^>]*\d+, (\(bool\)1|true)"
_SOFTMAX_SPAN = 3
_EXPONENTIAL, _LOGARITHM = (
    r"(?i)(^|[^a-z])exp_kernel|cupy_exp__|exponential",
    r"(?i)(^|[^a-z])log_kernel|cupy_log__|_log_",
)
_OPTIMIZER_KERNELS = r"addcdiv|addcmul|lerp_|sqrt_kernel"


def unfused_optimizer(inspection: Inspection) -> Iterator[Cure]:
    """Find an optimizer that launches many small kernels, one or more for each parameter."""
    model, n = inspection.model, inspection.step_count
    ops = model.operations
    is_small = (ops.duration < _SMALL_KERNEL_NS) & model.find_class(
        *POINTWISE, "reduction", "other_kernel", "embedding"
    )
    labels = np.flatnonzero(model.match_labels(r"(?i)optim|adam|sgd|lamb|^step$|update_params|apply_grad"))
    for label in labels.tolist():
        rows = np.flatnonzero(inspection.label_of_operation == label)
        small = int(is_small[rows].sum())
        if small > _MIN_SMALL_KERNELS * n and small > _SMALL_SHARE * len(rows):
            items = np.flatnonzero((model.items.label == label) & (model.items.lane == 0))
            yield _create_optimizer_cure(inspection, rows, items, model.labels.names[label])
            return
    is_own = model.match_names(_OPTIMIZER_KERNELS) & is_small
    if int(is_own.sum()) > _MIN_SMALL_KERNELS // 2 * n:
        rows = _extend_to_blocks(inspection, np.flatnonzero(is_own), is_small)
    elif inspection.is_training:
        rows = _find_long_runs(inspection, is_small)
    else:
        return
    if len(rows) > _MIN_SMALL_KERNELS * n:
        yield _create_optimizer_cure(inspection, rows, inspection.find_launch_items(rows), "")


def _find_long_runs(inspection: Inspection, is_small: Mask) -> Int64s:
    """Return the small kernels in runs that are too long for a model: those of an optimizer without a range.

    A run ends at the first kernel of another class, except for pointwise kernels of large parameters.
    """
    fits = is_small | inspection.model.find_class(*POINTWISE, "reduction")
    number = np.cumsum(~fits)
    length = np.bincount(number[is_small], minlength=int(number[-1]) + 1 if len(number) else 1)
    return np.flatnonzero(is_small & (length[number] > _LONG_RUN))


def _extend_to_blocks(inspection: Inspection, rows: Int64s, is_small: Mask) -> Int64s:
    """Return the small kernels between the first and the last of some operations of each step."""
    steps = inspection.step_of_operation
    first = np.full(inspection.step_count, len(steps))
    last = np.full(inspection.step_count, -1)
    np.minimum.at(first, steps[rows], rows)
    np.maximum.at(last, steps[rows], rows)
    number = np.arange(len(steps))
    return np.flatnonzero(is_small & (number >= first[steps]) & (number <= last[steps]))


def _create_optimizer_cure(inspection: Inspection, rows: Int64s, items: Int64s, place: str) -> Cure:
    cure = Cure("unfused_optimizer", place)
    cure.example = inspection.show_operation(rows)
    cure.items = [(inspection.claims.take_items(items), (0.35, 0.15, 0.05))]
    cure.operations = [inspection.claims.scale_operations(rows, (0.8, 0.4, 0.15))]
    total = inspection.describe_time(float(inspection.model.operations.duration[rows].sum()))
    kernels = inspection.describe_count(len(rows), "small kernel|small kernels")
    cure.evidence = f"the optimizer launches {kernels}, which take {total} on the GPU"
    return cure


def unfused_attention(inspection: Inspection) -> Iterator[Cure]:
    """Find a softmax between two matrix products, which one fused kernel can compute."""
    model, n, claims = inspection.model, inspection.step_count, inspection.claims
    ops, order = model.operations, inspection.by_start
    cls = ops.cls[order]
    is_product = select_classes(cls, MATMULS)
    is_softmax = (cls == NUMBERS["softmax"]) & ~model.match_names(_LOG_SOFTMAX)[order]
    is_softmax |= _find_written_softmax(inspection)
    stops = select_classes(cls, ("fused_attention", "convolution", "convolution_fp32", "nccl"))
    stops |= is_softmax | (cls == NUMBERS["softmax"])
    backward = model.match_names(r"(?i)backward|bwd")[order]
    positions = np.flatnonzero(is_softmax)
    if not len(positions):
        return
    first = _find_neighbors(positions, is_product, stops, backward)
    last = (
        len(cls)
        - 1
        - _find_neighbors(len(cls) - 1 - positions[::-1], is_product[::-1], stops[::-1], backward[::-1])[::-1]
    )
    is_between = (first >= 0) & (last < len(cls))
    if is_between.sum() < n:
        return
    inside = _cover(first[is_between], last[is_between] + 1, len(cls))
    between, products = order[inside & ~is_product], order[inside & is_product]
    half_products = products[ops.cls[products] == NUMBERS["matmul"]]
    cure = Cure("unfused_attention", inspection.find_main_label(ops.item[between], ops.duration[between]))
    cure.example = inspection.show_operation(between)
    launches = inspection.find_launch_items(between)
    cure.operations = [
        claims.scale_operations(between, (0.15, 0.03, 0.0)),
        claims.scale_operations(half_products, (0.9, 0.5, 0.25)),
    ]
    cure.items = [(claims.take_items(launches), (0.5, 0.15, 0.05))]
    single = products[ops.cls[products] == NUMBERS["matmul_fp32"]]
    duration = ops.duration[single]
    cure.shared = [(single, (duration, (0.8 * duration).astype(np.int64), duration // 2))]
    count = inspection.describe_count(int(is_between.sum()), "softmax operation|softmax operations", "lies|lie")
    cure.evidence = (
        f"{count} between matrix products, with "
        f"{inspection.describe_time(float(ops.duration[between].sum()))} of work that a fused kernel does not do"
    )
    yield cure


def _find_written_softmax(inspection: Inspection) -> Mask:
    """Return which operations in order of start compute exponentials between reductions: a softmax without a kernel."""
    model, order = inspection.model, inspection.by_start
    reductions = np.flatnonzero(model.find_class("reduction")[order])
    logarithms = np.flatnonzero(model.match_names(_LOGARITHM)[order])
    result = np.zeros(len(order), np.bool_)
    rows = np.flatnonzero(model.match_names(_EXPONENTIAL)[order])
    for distance in (-_SOFTMAX_SPAN, _SOFTMAX_SPAN):
        ends = np.sort(np.stack([rows, rows + distance]), axis=0)
        inside = np.searchsorted(reductions, ends[1], side="right") - np.searchsorted(reductions, ends[0], side="left")
        rows = rows[inside > 0]
    following = np.searchsorted(logarithms, rows + 2 * _SOFTMAX_SPAN) - np.searchsorted(logarithms, rows)
    result[rows[following == 0]] = True
    return result


def _find_neighbors(positions: Int64s, is_product: Mask, stops: Mask, backward: Mask) -> Int64s:
    """Return the matrix product before each position, or the second one before a backward pass, or -1."""
    products = np.flatnonzero(is_product)
    stop_rows = np.flatnonzero(stops)
    before = np.searchsorted(products, positions, side="left") - 1
    before -= backward[positions].astype(np.int64)
    last_stop = np.searchsorted(stop_rows, positions, side="left") - 1
    stop = np.where(last_stop >= 0, stop_rows[np.maximum(last_stop, 0)] if len(stop_rows) else -1, -1)
    product = np.where(before >= 0, products[np.maximum(before, 0)] if len(products) else -1, -1)
    return np.where((product > stop) & (positions - product <= _ATTENTION_SPAN), product, -1)


def _cover(first: Int64s, stop: Int64s, size: int) -> Mask:
    """Return which positions lie in one of the ranges ``[first, stop)``."""
    change = np.zeros(size + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, stop, -1)
    return np.cumsum(change)[:-1] > 0


def precision(inspection: Inspection) -> Iterator[Cure]:
    """Find matrix products and convolutions in FP32 that do not use Tensor Cores."""
    model, ops, peak = inspection.model, inspection.model.operations, inspection.peaks
    if peak.half <= peak.fp32:
        return
    rate = 0.76 * peak.fp32
    of_products = (rate / (0.5 * peak.tf32), rate / (0.62 * peak.half), rate / (_BEST_HALF_SHARE * peak.half))
    cure = Cure("precision")
    rows = []
    measured = np.flatnonzero(inspection.find_measured("precision"))
    if len(measured):
        cure.operations.append(inspection.claim_measured(measured))
        rows.append(measured)
    is_direct = model.match_names(_DIRECT_CONVOLUTION)
    refuted = inspection.refutes("precision")
    is_product = model.find_class("matmul_fp32")
    for chosen, stays in (
        (is_product, of_products),
        (model.find_class("convolution_fp32") & ~is_direct, (1 / 2.5, 1 / 5, 1 / 10)),
        (model.find_class("convolution_fp32") & is_direct, (1.0, 0.6, 0.5)),
    ):
        is_long = chosen & (ops.duration > _SHORT_KERNEL_NS) & ~refuted
        own = np.flatnonzero(is_long & inspection.claims.free_operations)
        if len(own):
            limited = (min(stays[0], 1.0), min(stays[1], 1.0), min(stays[2], 1.0))
            claimed, durations = inspection.claims.scale_operations(own, limited, _LEAST_PRODUCTS_NS)
            durations = _apply_known_work(inspection, claimed, durations, is_product[claimed])
            cure.operations.append((claimed, durations))
            rows.append(own)
    if not rows:
        return
    own = np.concatenate(rows)
    cure.shared = [_halve_memory_traffic(inspection)]
    cure.example = inspection.show_operation(own)
    cure.place = inspection.find_main_label(ops.item[own], ops.duration[own])
    noun = "matrix product or convolution|matrix products and convolutions"
    cure.evidence = (
        f"{inspection.describe_count(len(own), noun, 'runs|run')} in FP32 without Tensor Cores, for "
        f"{inspection.describe_time(float(ops.duration[own].sum()))}{inspection.cite_measurements(own)}"
    )
    yield cure


def _apply_known_work(inspection: Inspection, rows: Int64s, durations: Durations, is_product: Mask) -> Durations:
    """Return the durations that stay of products and convolutions in FP32, as far as their work is known.

    In the high case, the operations of matrix products take the time that good kernels need. None is shorter than
    moving its data takes: TF32 moves as many bytes as FP32, and BF16 half of them.
    """
    duration = inspection.model.operations.duration[rows]
    rates, peaks = inspection.rates, inspection.peaks
    computing = rates.compute_share[rows] * duration * peaks.fp32 / (_BEST_HALF_SHARE * peaks.half)
    best = np.maximum(np.nan_to_num(computing), _LEAST_PRODUCTS_NS[2]).astype(np.int64)
    is_known = is_product & ~np.isnan(computing)
    durations = (durations[0], durations[1], np.where(is_known, np.minimum(best, durations[1]), durations[2]))
    moving = np.nan_to_num(rates.memory_share[rows]) * duration
    low, likely, high = (
        np.minimum(duration, np.maximum(stays, (moving * share).astype(np.int64)))
        for stays, share in zip(durations, (1 / AT_ROOFLINE, 0.5 / GOOD_SHARE, 0.5), strict=True)
    )
    return low, likely, high


def _halve_memory_traffic(inspection: Inspection) -> tuple[Int64s, tuple[Int64s, Int64s, Int64s]]:
    """Return the kernels in FP32 that move half the bytes in BF16, and the durations that stay."""
    model = inspection.model
    moves = model.find_class(*POINTWISE, "normalization", "pooling", "reduction", "layout_conversion")
    rows = np.flatnonzero(moves & model.match_names("float|fp32|f32") & ~model.match_names("BFloat16|Half|half|bf16"))
    duration = model.operations.duration[rows]
    return rows, (duration, (0.6 * duration).astype(np.int64), duration // 2)


def unfused_pointwise(inspection: Inspection) -> Iterator[Cure]:
    """Find chains of pointwise kernels of similar size, each of which reads and writes its tensors again."""
    model, ops, claims = inspection.model, inspection.model.operations, inspection.claims
    order = inspection.by_start
    fits = model.find_class(*POINTWISE) & claims.free_operations & (ops.duration > _SHORT_KERNEL_NS)
    fits &= ~model.match_names(FUSED_NAMES)
    fits = fits[order]
    blocks = np.maximum(model.blocks[order], 1)
    step = inspection.step_of_operation[order]
    first = np.concatenate([[True], ~fits[:-1] | (step[1:] != step[:-1])]) & fits
    start = np.maximum.accumulate(np.where(first, np.arange(len(fits)), 0))
    ratio = blocks / blocks[start]
    breaks = fits & ~first & ((ratio * SIMILAR_SIZE <= 1) | (ratio >= SIMILAR_SIZE))
    first |= breaks
    chain = np.where(fits, np.cumsum(first), 0)
    length = np.bincount(chain, minlength=1)
    length[0] = 0
    is_long = (length >= MIN_CHAIN)[chain] & fits
    positions = np.flatnonzero(is_long)
    if not len(positions):
        return
    rows, numbers = order[positions], chain[positions]
    duration = ops.duration[rows]
    total = np.bincount(numbers, weights=duration)
    longest = np.zeros(len(total))
    np.maximum.at(longest, numbers, duration)
    share = (longest[numbers] / np.maximum(total[numbers], 1)).clip(0, 1)
    by_row = np.argsort(rows, kind="stable")
    claimed_rows = claims.take_operations(rows)
    share, duration = share[by_row], ops.duration[claimed_rows]
    is_short = (length[numbers] < MIN_LIKELY_CHAIN)[by_row]
    least = np.minimum(LEAST_BY_HAND, LEAST_KERNELS / length[numbers])[by_row]
    least = least if model.events.framework == "cuda" else 0.0 * least
    factors = CHAIN_STAYS if inspection.measure_rate(claimed_rows, "memory_share") < NEAR_PEAK else _CHAIN_STAYS_AT_PEAK
    stays = (factors[0] * share, np.maximum(factors[1] * share, least), factors[2] * share)
    durations = [(duration * np.minimum(1, s)).astype(np.int64) for s in stays]
    durations[:2] = (np.where(is_short, duration, d) for d in durations[:2])
    cure = Cure("unfused_pointwise", inspection.find_main_label(ops.item[rows], ops.duration[rows]))
    cure.operations = [(claimed_rows, (durations[0], durations[1], durations[2]))]
    is_first = np.concatenate([[True], chain[positions][1:] != chain[positions][:-1]])
    cure.items = [(claims.take_items(inspection.find_launch_items(rows[~is_first])), (0.5, 0.1, 0.02))]
    cure.example = inspection.show_operation(rows)
    chains = int(is_first.sum())
    cure.evidence = (
        f"{inspection.describe_count(chains, 'chain|chains')} of {MIN_CHAIN} or more pointwise kernels, the longest "
        f"with {int(length.max())}, for {inspection.describe_time(float(duration.sum()))}"
        f"{inspection.cite_measurements(claimed_rows)}"
    )
    yield cure


def memory_layout(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels that convert the layout of images, and batch normalization in the layout that needs this."""
    model, ops, claims = inspection.model, inspection.model.operations, inspection.claims
    rows = np.flatnonzero(model.find_class("layout_conversion") & claims.free_operations)
    if not len(rows):
        return
    is_norm = model.match_names("batch_norm") & ~model.match_names("channels_last") & claims.free_operations
    norms = np.flatnonzero(is_norm)
    cure = Cure("memory_layout", inspection.find_main_label(ops.item[rows], ops.duration[rows]))
    cure.example = inspection.show_operation(rows)
    cure.operations = [
        claims.scale_operations(rows, (0.3, 0.0, 0.0)),
        claims.scale_operations(norms, (1.0, 0.45, 0.35)),
    ]
    cure.items = [(claims.take_items(inspection.find_launch_items(rows)), (0.5, 0.1, 0.0))]
    conversions = inspection.describe_time(float(ops.duration[rows].sum()))
    count = inspection.describe_count(len(rows), "layout conversion|layout conversions", "takes|take")
    cure.evidence = f"{count} {conversions}"
    if len(norms):
        others = inspection.describe_time(float(ops.duration[norms].sum()))
        cure.evidence += f", and batch normalization of images in NCHW takes {others}"
    yield cure


def low_occupancy(inspection: Inspection) -> Iterator[Cure]:
    """Find long kernels whose grids are smaller than the GPU."""
    model, ops, claims = inspection.model, inspection.model.operations, inspection.claims
    sms = find_sm_count(inspection)
    library = model.find_class(
        *MATMULS, "matrix_vector", "convolution", "convolution_fp32", "fused_attention", "reduction"
    )
    is_small = claims.free_operations & (model.blocks > 0)
    if model.events.framework == "cuda":
        # Reductions without a framework are kernels of the program, except for those of libraries.
        library &= ~model.find_class("reduction") | model.match_names("cublas|cudnn|cub::")
    is_small &= ~model.find_class("nccl", "opaque_graph", "memset", "copy_h2d", "copy_d2h", "copy_d2d")
    measured = np.flatnonzero(inspection.find_measured("low_occupancy"))
    is_long = is_small & ~library & (model.blocks < sms // 2) & (ops.duration > 3 * _SHORT_KERNEL_NS)
    is_long[measured] = False
    unmeasured = np.flatnonzero(is_long & ~inspection.refutes("low_occupancy"))
    own = np.concatenate([measured, unmeasured])
    if ops.duration[own].sum() > 0.05 * model.duration_ns:
        rows = claims.take_operations(unmeasured)
        duration, share = ops.duration[rows], np.clip(model.blocks[rows] / sms, 1 / sms, 1)
        stays = [(duration * np.minimum(1, f)).astype(np.int64) for f in (0.3 + 0.7 * share, 0.6 * share, 0.25 * share)]
        cure = Cure("low_occupancy", inspection.find_main_label(ops.item[own], ops.duration[own]))
        cure.operations = [(rows, (stays[0], stays[1], stays[2])), inspection.claim_measured(measured)]
        cure.example = inspection.show_operation(own)
        blocks = int(np.median(model.blocks[own]))
        cure.evidence = (
            f"{inspection.describe_count(len(own), 'kernel|kernels', 'has|have')} fewer blocks (median {blocks}) than "
            f"half of the {sms} multiprocessors, for {inspection.describe_time(float(ops.duration[own].sum()))}"
            f"{inspection.cite_measurements(own)}"
        )
        yield cure
    threads = model.blocks * model.sizes["threads"].fill_null(0).to_numpy()
    fills_few = (model.blocks < sms // 2) | ((threads > 0) & (threads < sms * _FEW_THREADS))
    own = np.flatnonzero(is_small & library & fills_few & claims.free_operations)
    if ops.duration[own].sum() > 0.3 * model.duration_ns:
        is_alone = len(own) <= inspection.step_count
        cause = "low_occupancy" if is_alone else "serialized_streams"
        cure = Cure(cause, inspection.find_main_label(ops.item[own], ops.duration[own]), is_unsure=True)
        cure.operations = [claims.scale_operations(own, (1.0, 0.5, 0.3))]
        cure.example = inspection.show_operation(own)
        total = inspection.describe_time(float(ops.duration[own].sum()))
        cure.evidence = (
            f"{inspection.describe_count(len(own), 'kernel|kernels', 'uses|use')} less than half of the {sms} "
            f"multiprocessors, for {total}"
        )
        cure.missing = "the same step with larger inputs, which shows whether more blocks are possible"
        if not is_alone:
            cure.evidence += "; the capture does not show which of them, one after another, are independent"
            cure.missing = "whether the branches of the model depend on one another"
        yield cure


def serialized_streams(inspection: Inspection) -> Iterator[Cure]:
    """Find kernels of several streams that run one after another, although no event orders them."""
    model, ops = inspection.model, inspection.model.operations
    waits = (ops.dependency >= 0) & model.find_class(*COMPUTE)
    rows = np.flatnonzero(waits & inspection.claims.free_operations)
    lanes = np.flatnonzero(np.bincount(ops.lane[rows])) if len(rows) else rows
    busy = int(ops.duration[rows].sum())
    if len(lanes) < _MIN_STREAMS or len(rows) < 2 * inspection.step_count or busy < 0.2 * model.duration_ns:
        return
    if model.find_kind("wait_event").any():
        return
    cure = Cure("serialized_streams", inspection.find_main_label(ops.item[rows], ops.duration[rows]), is_unsure=True)
    rows = inspection.claims.take_operations(rows)
    duration = ops.duration[rows]
    cure.operations = [(rows, (duration, duration, duration))]
    cure.independent = rows
    cure.example = inspection.show_operation(rows)
    cure.evidence = (
        f"{inspection.describe_count(len(rows), 'kernel|kernels', 'starts|start')} in {len(lanes)} streams when a "
        "kernel of another stream ends; work in the default stream, for example, orders all others"
    )
    cure.missing = "whether the kernels of different streams depend on one another"
    yield cure


def healthy_work(inspection: Inspection) -> Iterator[Cure]:
    """Find what limits kernels that keep the GPU busy: computation or memory. Nothing has to be changed."""
    model, ops = inspection.model, inspection.model.operations
    exposed = inspection.exposed_ns
    busy = int(exposed[model.find_class(*COMPUTE)].sum())
    if not model.duration_ns or busy < _FED_SHARE * model.duration_ns:
        return
    for cause, classes in (("compute_bound", _ON_TENSOR_CORES), ("memory_bound", MOVING)):
        rows = np.flatnonzero(model.find_class(*classes) & inspection.claims.free_operations)
        time = int(exposed[rows].sum())
        rate = inspection.measure_rate(rows, "memory_share" if cause == "memory_bound" else "math_share")
        if time < busy / 2 or 0 <= rate < _HEALTHY_RATE:
            continue
        cure = Cure(cause, inspection.find_main_label(ops.item[rows], ops.duration[rows]), is_healthy=True)
        cure.example = inspection.show_operation(rows)
        what = "matrix products" if cause == "compute_bound" else "kernels that mostly move data"
        cure.evidence = (
            f"kernels keep the GPU busy for {busy / model.duration_ns:.0%} of the step; {time / busy:.0%} of their "
            f"time is spent in {what}; {_describe_rates(inspection)}{inspection.cite_measurements(rows)}"
        )
        if not inspection.rates.known.any() and inspection.known_peaks is not None:
            cure.missing = get_analysis("op_roofline", REPORT).recording_hint.removeprefix("record ")
        yield cure


def _describe_rates(inspection: Inspection) -> str:
    """Return which share of the step kernels run at the roofline, as far as it is known."""
    if inspection.known_peaks is None:
        return "the peak rates of the GPU are unknown"
    known, share = inspection.roofline
    if not known:
        return "their rates are unknown, because shapes were not recorded"
    return (
        f"kernels run at {AT_ROOFLINE:.0%} of the peak rate or more for {share:.0%} of the step, "
        f"and {known:.0%} of the time of kernels has known shapes"
    )


def find_sm_count(inspection: Inspection) -> int:
    """Return the number of multiprocessors of the GPU."""
    counts = inspection.model.events.frames("devices").select("sm_count").collect()["sm_count"].drop_nulls()
    return int(counts[0]) if len(counts) and counts[0] else inspection.peaks.resources.sm_count


def opaque_graph(inspection: Inspection) -> Iterator[Cure]:
    """Find CUDA graphs that were recorded as a whole, in which nothing can be explained."""
    model, ops = inspection.model, inspection.model.operations
    rows = np.flatnonzero(model.find_class("opaque_graph"))
    total = int(inspection.exposed_ns[rows].sum())
    if total <= 0.2 * model.duration_ns:
        return
    cure = Cure("serialized_streams", inspection.find_main_label(ops.item[rows], ops.duration[rows]), is_unsure=True)
    cure.operations = [inspection.claims.scale_operations(rows, (1.0, 1.0, 0.5))]
    cure.example = inspection.show_operation(rows)
    cure.evidence = (
        f"{total / model.duration_ns:.0%} of the step is spent in CUDA graphs that were recorded as a whole, so their "
        "kernels are unknown"
    )
    cure.missing = find_command(inspection.model.events.frames, GRAPH_NODES, RECORD_NODES)
    yield cure
