"""Declare the causes of slow steps: what finds each of them, what to change, and how to check the change.

The rules run in the order of ``CAUSES``. Each one claims the events that it explains, so that no event belongs to two
causes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.core.diagnosis.causes import communication, copies, host, kernels, limits, ranks
from tracekit.core.diagnosis.causes.changes import CHANGES, CHECKS, DEFAULT_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.inspection import Inspection

    CauseRule = Callable[[Inspection], Iterable[Cure]]

__all__ = ["CAUSES", "NAMES", "Cause", "find_cures", "get_change", "get_check", "register"]


@dataclass(frozen=True)
class Cause:
    """The declaration of a cause.

    Attributes:
        name: Name of the cause.
        meaning: What the cause means, as one sentence.
        changes: What to change, by framework: ``pytorch``, ``jax``, ``tensorflow`` or ``cuda``, or ``any`` otherwise.
        check: How to check that the change helped.
    """

    name: str
    meaning: str
    changes: Mapping[str, str] = field(default_factory=dict)
    check: str = ""


RULES: list[CauseRule] = [
    kernels.opaque_graph,
    kernels.serialized_streams,
    ranks.late_rank,
    ranks.imbalance,
    ranks.barrier,
    host.first_calls,
    kernels.unfused_optimizer,
    kernels.unfused_attention,
    limits.double_precision,
    kernels.precision,
    copies.memory_allocation,
    host.host_work,
    copies.small_copies,
    copies.pageable_copy,
    copies.exposed_copy,
    communication.small_messages,
    host.synchronization,
    communication.communication_exposed,
    kernels.memory_layout,
    limits.strided_access,
    kernels.unfused_pointwise,
    host.launch_overhead,
    limits.few_warps,
    limits.few_active_warps,
    kernels.low_occupancy,
    kernels.healthy_work,
]
"""The rules that find causes in one process, in the order in which they claim events."""

_MEANINGS = {
    "data_loading": "The step waits for input data that the CPU reads or prepares.",
    "cpu_work": "The program works on the CPU in the step while the GPU is idle.",
    "launch_overhead": "The CPU needs more time to launch kernels than the GPU needs to run them.",
    "synchronization": "The CPU waits for the GPU, and cannot launch further work in the meantime.",
    "host_round_trip": "Data is copied to the CPU, changed there, and copied back.",
    "blocking_io": "Files are written in the step, such as checkpoints or logs.",
    "pageable_copy": "Copies use pageable memory, so they are slow and block the CPU.",
    "small_copies": "Many small copies each need a call and often a wait.",
    "exposed_copy": "Copies run while no kernel runs.",
    "memory_allocation": "Memory is allocated and freed in the step.",
    "first_call": "Libraries are loaded, kernels compiled, or plans built at the first call of an operation.",
    "recompilation": "Code is compiled again and again.",
    "precision": "Matrix products or convolutions run in FP32 without Tensor Cores, or in FP64.",
    "unfused_attention": "Attention is computed by separate kernels that write the matrix of scores to memory.",
    "unfused_pointwise": "Chains of pointwise kernels read and write the same tensors repeatedly.",
    "memory_layout": "Tensors are converted between memory layouts, or threads access memory with a stride.",
    "unfused_optimizer": "The optimizer launches kernels for each parameter.",
    "low_occupancy": "Kernels use few of the multiprocessors of the GPU, or few of the warps that these can hold.",
    "memory_bound": "Kernels move data at nearly the bandwidth of the memory, which is healthy.",
    "compute_bound": "Kernels compute at nearly the peak rate, which is healthy.",
    "serialized_streams": "Work that may be independent runs one after another.",
    "communication_exposed": "Communication runs while no computation runs.",
    "late_rank": "Other ranks wait for a rank that arrives late.",
    "barrier": "Ranks wait for one another in barriers.",
    "small_messages": "Many collectives transfer little data each.",
    "imbalance": "Ranks have different amounts of work on the GPU.",
    "gpu_idle_unexplained": "The GPU is idle, and the capture does not show why.",
}

CAUSES: dict[str, Cause] = {
    name: Cause(name, meaning, CHANGES.get(name, {}), CHECKS.get(name, "")) for name, meaning in _MEANINGS.items()
}
"""The causes by name."""

NAMES = tuple(CAUSES)


def register(cause: Cause, rule: CauseRule) -> None:
    """Add a cause, and a rule that finds it after all others.

    Args:
        cause: The declaration of the cause.
        rule: Function that yields cures with the name of the cause, given an ``Inspection``.
    """
    CAUSES[cause.name] = cause
    RULES.append(rule)


def find_cures(inspection: Inspection) -> Iterator[Cure]:
    """Yield the cures of all causes that the rules find in a model."""
    for rule in RULES:
        yield from rule(inspection)


def get_change(name: str, framework: str) -> str:
    """Return what to change, given the name of a cause or of one of its changes, and the framework of the program."""
    changes = CAUSES[name].changes if name in CAUSES else CHANGES[name]
    return changes.get(framework) or changes.get("any", "")


def get_check(cause: str) -> str:
    """Return how to check the change, given the name of a cause, or "" if nothing has to be changed."""
    declared = CAUSES[cause]
    return declared.check or (DEFAULT_CHECK if declared.changes else "")
