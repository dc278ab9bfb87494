"""What the exporters' tests share: a trace processor, and traces made of a few rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def _helper(name: str) -> Any:
    """Import a module that stands beside the tests; the tests are no package."""
    spec = importlib.util.spec_from_file_location(f"tracekit_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def perfetto() -> Iterator[Any]:
    """Perfetto's trace processor; the test is skipped where it cannot run."""
    helper = _helper("trace_processor")
    if absent := helper.missing():
        pytest.skip(f"not installed: {absent}")
    with helper.TraceProcessor() as running:
        yield running


@pytest.fixture(scope="session")
def board() -> Any:
    """TensorBoard, and a browser to open its page; the test is skipped where there is none."""
    helper = _helper("tensorboard_page")
    if absent := helper.missing():
        pytest.skip(f"not installed: {absent}")
    return helper
