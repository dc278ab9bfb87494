"""Compare the rates of the operations of a model with the peak rates of the GPU, as far as their work is known.

The work of an op follows from the shapes of its inputs, which PyTorch records in its own traces
(``record_shapes=True``) and in the names of ranges (``emit_nvtx(record_shapes=True)``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.work.arguments import contain_ops
from tracekit.core.work.compiled import are_programs_recorded
from tracekit.core.work.roofline import AT_ROOFLINE, bound_ops
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracekit.core.diagnosis.model import Model

    Mask = npt.NDArray[np.bool_]
    Floats = npt.NDArray[np.float64]

MOVING = (
    *("pointwise", "cast_or_copy", "normalization", "reduction", "softmax", "embedding", "optimizer", "pooling"),
    *("matrix_vector", "layout_conversion"),
)
_SHARES = ("bound_ns", "compute_ns", "memory_ns")


class Rates(NamedTuple):
    """The rates of the operations of a model, as far as the work of their ops is known.

    The kernels that one op launches share its work.

    Attributes:
        share: Least time of each operation at the peak rates of the GPU, as a share of its duration, or NaN.
        compute_share: Time of its operations at the peak rate of their type, as a share of its duration, or NaN.
        memory_share: Time of its bytes at the bandwidth of the memory, as a share of its duration, or NaN.
    """

    share: Floats
    compute_share: Floats
    memory_share: Floats

    @property
    def known(self) -> Mask:
        """Which operations have known work."""
        result: Mask = ~np.isnan(self.share)
        return result

    @property
    def at_roofline(self) -> Mask:
        """Which operations run at 60 % of a peak rate or more."""
        result: Mask = self.share >= AT_ROOFLINE
        return result


def compare_with_peaks(model: Model) -> Rates:
    """Compare the rates of the operations of a model with the peak rates of the GPU.

    If the peak rates or the shapes are unknown, no rate is known.
    """
    events = model.events
    operations = events.operations.select("id", pl.col("table").cast(pl.String))
    own = operations.select(pl.all().gather(create_series(model.operations.row)))
    if not contain_ops(events.range_names) and not are_programs_recorded(events.frames):
        unknown = np.full(own.height, np.nan)
        return Rates(unknown, unknown, unknown)
    bounded = bound_ops(events.frames)
    time = pl.when(pl.col("gpu_time_ns") > 0).then(pl.col("gpu_time_ns"))
    shares = bounded.ops.select("range_id", pl.col(_SHARES) / time)
    kernels = bounded.kernels.select("range_id", id="kernel_id", table=pl.lit("kernels")).drop_nulls("range_id")
    rows = own.join(kernels.join(shares, on="range_id"), on=["table", "id"], how="left", maintain_order="left")
    return Rates(*(rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in _SHARES))
