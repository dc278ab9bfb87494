"""Keep pyarrow from importing pandas, which it does with the first value it takes from Python: 0.2 s for nothing.

Only a program that is tracekit's own may do this: in a process where somebody uses pandas, pyarrow has to know it.
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
    """What was done in this process.

    Attributes:
        kept_out: Whether pyarrow was told that there is no pandas.
        wanted: Whether code runs that may use pandas.
    """

    kept_out: bool = False
    wanted: bool = False


_state = _State()


class _Hidden:
    """A finder of modules that says that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG004
        if name == _PANDAS:
            raise ModuleNotFoundError(name)


def keep_out() -> None:
    """Let pyarrow look for pandas now and not find it; it looks once.

    pandas itself can be imported afterwards. A process that has imported it, or has loaded a plug-in, is left alone.
    """
    if _state.kept_out or _state.wanted or _PANDAS in sys.modules:
        return
    import pyarrow as pa

    _state.kept_out = True
    sys.meta_path.insert(0, _Hidden)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_Hidden)


def let_in() -> None:
    """Undo ``keep_out`` before code of others runs, which may give pandas objects to pyarrow."""
    _state.wanted = True
    if not _state.kept_out:
        return
    import pyarrow as pa

    _state.kept_out = False
    with contextlib.suppress(ImportError, AttributeError):
        pa.lib._pandas_api.pd  # noqa: B018, SLF001 - it looks again when asked for pandas itself
