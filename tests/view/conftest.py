"""Servers that several modules use."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import tracekit as tk
from tests.view.browser import Tab
from tests.view.support import FIXTURES, hostile_tables, running
from tracekit.view import layout

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
def serve() -> Iterator[Callable[..., Viewer]]:
    """A function that returns a server for captures. All tests of a session share it, and what it has computed."""
    with mock.patch.object(layout, "PATIENCE_S", None), contextlib.ExitStack() as stack:

        @functools.cache
        def get_server(*paths: Path) -> Viewer:
            return stack.enter_context(running(*paths))

        yield get_server


@pytest.fixture(scope="session")
def amp(serve: Callable[..., Viewer], hostile_path: Path) -> Viewer:
    """A server for a capture of PyTorch, one of two GPUs, and one with hostile names."""
    return serve(FIXTURES / "train_amp.sqlite", FIXTURES / "ddp2.sqlite", hostile_path)


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
