"""Options that several verbs share, and how they become a trace."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.trace import Trace

F = TypeVar("F", bound="Callable[..., Any]")

input_argument = click.argument("path", metavar="IN", type=click.Path(path_type=Path))
from_option = click.option("--from", "from_", metavar="FORMAT", help="Format of the input; recognised if left out.")
force_option = click.option("-f", "--force", is_flag=True, help="Replace the output if it exists.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
style_option = click.option(
    "--format", "style", type=click.Choice(["table", "csv", "json", "jsonl"]), default="table", help="How to print."
)


class Times(click.ParamType):
    """``A:B`` in nanoseconds, or with a unit (``1.5s:2s``, ``10ms:``); either end may be left out."""

    name = "A:B"
    _UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse."""
        if not isinstance(value, str):
            return value
        low, colon, high = value.partition(":")
        if not colon:
            self.fail(f"{value!r} is not A:B, such as 1.5s:2s or 10ms:", param, ctx)
        try:
            return tuple(self._parse(end) for end in (low, high))
        except ValueError:
            self.fail(f"{value!r} is not A:B, such as 1.5s:2s or 10ms:", param, ctx)

    def _parse(self, text: str) -> int | None:
        from decimal import Decimal, InvalidOperation

        if not text.strip():
            return None
        unit = next(((u, f) for u, f in self._UNITS if text.endswith(u)), ("", 1))
        try:
            return int(Decimal(text.removesuffix(unit[0]).strip()) * unit[1])
        except InvalidOperation:
            raise ValueError(text) from None


class Duration(Times):
    """Nanoseconds, or with a unit: ``10us``."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value!r} is not a duration, such as 10us", param, ctx)


def selection_options(command: F) -> F:
    """Add --time, --device, --domain, --min-dur."""
    options = (
        click.option("--time", type=Times(), help="Only what overlaps A:B, since the trace origin: 1.5s:2s, 10ms:."),
        click.option("--device", "devices", type=int, multiple=True, help="Only this GPU; may be repeated."),
        click.option("--domain", "domains", multiple=True, help='Only this NVTX domain ("" is the default one).'),
        click.option("--min-dur", "min_duration_ns", type=Duration(), help="Only what lasts at least so long: 10us."),
    )
    return functools.reduce(lambda c, option: option(c), reversed(options), command)


def load(path: Path, from_: str | None) -> Trace:
    """Open the input of a verb."""
    from tracekit.trace import load as load_trace

    return load_trace(path, from_)


def selected(
    trace: Trace,
    time: tuple[int | None, int | None] | None,
    devices: tuple[int, ...],
    domains: tuple[str, ...],
    min_duration_ns: int | None,
) -> Trace:
    """Apply the selection options."""
    return trace.select(
        time=time, devices=devices or None, domains=domains or None, min_duration_ns=min_duration_ns
    )
