"""Prevent pyarrow from importing pandas.

Importing pandas 3.1 takes 0.12 s of CPU time, a quarter of that of ``tracekit tables`` on a small report.

pyarrow imports pandas when it first converts a Python value. Only the command line prevents this: in other programs,
pyarrow may have to convert pandas objects.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_PANDAS = "pandas"


@dataclass(slots=True)
class _State:
    """The state of pandas in this process.

    Attributes:
        is_hidden: Whether pandas was hidden when pyarrow looked for it.
        is_allowed: Whether pandas must not be hidden, because other code may use it.
    """

    is_hidden: bool = False
    is_allowed: bool = False


_state = _State()


class _PandasHider:
    """A module finder that reports pandas as not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG004
        """Raise ``ModuleNotFoundError`` for pandas. Return None for other modules, so that the next finder is asked."""
        if name == _PANDAS:
            raise ModuleNotFoundError(name)


def hide_pandas() -> None:
    """Prevent pyarrow from importing pandas: make pyarrow look for pandas now, while pandas is hidden.

    pyarrow looks for pandas only once. Other code can still import pandas afterwards. The function does nothing if
    pandas is already imported or if a plug-in was loaded.
    """
    if _state.is_hidden or _state.is_allowed or _PANDAS in sys.modules:
        return
    import pyarrow as pa

    _state.is_hidden = True
    sys.meta_path.insert(0, _PandasHider)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_PandasHider)


def is_pandas_hidden() -> bool:
    """Return whether pyarrow was prevented from importing pandas in this process."""
    return _state.is_hidden


def allow_pandas() -> None:
    """Undo ``hide_pandas``. Call this before running code that may pass pandas objects to pyarrow, as plug-ins may."""
    _state.is_allowed = True
    if not _state.is_hidden:
        return
    import pyarrow as pa

    _state.is_hidden = False
    with contextlib.suppress(ImportError, AttributeError):
        pa.lib._pandas_api.pd  # noqa: B018, SLF001 - this attribute makes pyarrow look again
