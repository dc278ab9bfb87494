"""Find the browser for the tests, or explain how to install it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
HINT = "make browser installs it"


def executable() -> str | None:
    """Return the path of a browser: one on the PATH, or the one that playwright installed."""
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    installed = sorted(cache.glob("chromium-*/chrome-linux*/chrome"), reverse=True)
    return next(filter(None, map(shutil.which, (*NAMES, *map(str, installed)))), None)


def missing() -> str | None:
    """Return why pages cannot be opened in a browser here, and what to do; None if they can."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed: pip install --group dev"
    return None if executable() else f"Chromium is not installed: {HINT}"
