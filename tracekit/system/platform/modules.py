"""Import the modules of Python that only some systems have."""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def import_if_present(name: str) -> Any:
    """Import a module of the standard library, and return it. Return None if this system does not have it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def is_windows() -> bool:
    """Return whether this system is Windows, which alone has the module ``msvcrt``."""
    return import_if_present("msvcrt") is not None
