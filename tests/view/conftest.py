"""Servers that several modules use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tests.view.browser import Tab
from tests.view.support import FIXTURES, hostile_tables, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracekit.view.server import Viewer


@pytest.fixture(scope="session")
def hostile_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    tk.Trace.from_tables(hostile_tables()).export(folder / "hostile", format="parquet")
    return folder / "hostile"


@pytest.fixture(scope="session")
def amp(hostile_path: Path) -> Iterator[Viewer]:
    """A server for a capture of PyTorch, one of two GPUs, and one with hostile names."""
    with running(FIXTURES / "train_amp.sqlite", FIXTURES / "ddp2.sqlite", hostile_path) as viewer:
        yield viewer


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """A function that opens a tab with a state of its own."""
    contexts = []

    def open_one(viewer: Viewer, scheme: str = "light", **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme=scheme, **options)
        contexts.append(context)
        return Tab(context.new_page(), viewer)

    yield open_one
    for context in contexts:
        context.close()
