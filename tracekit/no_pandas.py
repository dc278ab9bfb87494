"""Prevent pyarrow from importing pandas, which it does when it first converts a Python value and which takes 0.2 s.

Only the command line does this. In a process that uses pandas, pyarrow has to know pandas.
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
        is_hidden: Whether pyarrow looked for pandas and did not find it.
        is_allowed: Whether code may run that uses pandas.
    """

    is_hidden: bool = False
    is_allowed: bool = False


_state = _State()


class _PandasHider:
    """A module finder that reports pandas as not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG004
        """Raise ``ModuleNotFoundError`` for pandas; leave other modules to the next finder."""
        if name == _PANDAS:
            raise ModuleNotFoundError(name)


def hide_pandas() -> None:
    """Make pyarrow look for pandas now, which it does only once, and not find it.

    pandas can still be imported afterwards. Nothing happens if pandas is already imported or a plug-in was loaded.
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


def allow_pandas() -> None:
    """Undo ``hide_pandas``, before code runs that may pass pandas objects to pyarrow, such as a plug-in."""
    _state.is_allowed = True
    if not _state.is_hidden:
        return
    import pyarrow as pa

    _state.is_hidden = False
    with contextlib.suppress(ImportError, AttributeError):
        pa.lib._pandas_api.pd  # noqa: B018, SLF001 - this attribute makes pyarrow look again
