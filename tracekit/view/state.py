"""The state of a page. The URL contains the complete state, so that a link reproduces the page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_QUERY = 64 * 1024
"""Maximum number of characters of a query string."""
CAPTURE = "capture"
"""The value of ``layers`` with which the ranges come from the capture itself."""
MAX_SCOPE = 4096
"""Maximum number of devices or ranks that a URL selects."""


@dataclass(frozen=True, slots=True)
class CaptureAggregation:
    """The scope of a page: the capture, the aggregated iterations, and the selected devices and ranks.

    Attributes:
        capture: Index of the capture, in the order of the command line.
        first: First aggregated iteration. None stands for the first iteration of the capture.
        last: Last aggregated iteration. None stands for the last iteration of the capture.
        key_op: Id of the op that delimits iterations. If None, it is chosen automatically.
        include_warm_up: Whether the warm-up is aggregated if neither a first nor a last iteration is chosen.
        devices: Ids of the GPUs whose activities are shown, ascending. If empty, all GPUs are shown.
        ranks: Ranks of the job that are compared, ascending. If empty, all ranks are compared.
        layers: Where the ranges inside the replays of CUDA graphs come from, as for ``Trace.with_layers``: ``capture``,
            or an empty string if replays have no ranges of their own.
    """

    capture: int = 0
    first: int | None = None
    last: int | None = None
    key_op: str | None = None
    include_warm_up: bool = False
    devices: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    layers: str = ""

    def to_url_parameters(self) -> dict[str, str]:
        """Return the URL parameters of this capture and aggregation. Parameters with default values are omitted."""
        values: dict[str, str] = {"capture": str(self.capture)} if self.capture else {}
        if self.first is not None or self.last is not None:
            values["iterations"] = ":".join("" if bound is None else str(bound) for bound in (self.first, self.last))
        if self.key_op is not None:
            values["key_op"] = self.key_op
        if self.include_warm_up:
            values["warm_up"] = "yes"
        if self.layers:
            values["layers"] = self.layers
        for name, numbers in (("devices", self.devices), ("ranks", self.ranks)):
            if numbers:
                values[name] = ",".join(map(str, numbers))
        return values

    @property
    def is_default(self) -> bool:
        """Whether all iterations except the warm-up are aggregated and the key op is chosen automatically."""
        return replace(self, devices=(), ranks=(), layers="") == CaptureAggregation(self.capture)


@dataclass(frozen=True, slots=True)
class PageState:
    """The state of a page: its name, the capture with its aggregation, and the other parameters of the URL.

    The parameters of a table are ``TABLE.filter`` (JSON), ``TABLE.sort``, ``TABLE.search``, ``TABLE.columns`` and
    ``TABLE.select``.
    """

    page: str = ""
    at: CaptureAggregation = field(default_factory=CaptureAggregation)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: str = "") -> str:
        """Return a URL parameter, or a default value if the parameter is missing."""
        return self.parameters.get(name, default)

    def make_url(self, page: str | None = None, **parameters: str) -> str:
        """Return the URL of a page for the same capture and aggregation.

        Args:
            page: Name of the page. If None, it is the page of this state.
            parameters: The other parameters of the URL. The parameters of this state are not included.
        """
        return make_url(self.page if page is None else page, self.at, parameters)

    def select_capture(self, index: int) -> PageState:
        """Return the state of the same page for another capture of the compared ranks, with the default aggregation."""
        compared = self.at.ranks if len(self.at.ranks) > 1 else ()
        return PageState(self.page, CaptureAggregation(index, ranks=compared, layers=self.at.layers))


def make_url(page: str, aggregation: CaptureAggregation, parameters: Mapping[str, str] | None = None) -> str:
    """Return the URL of a page for a capture and its aggregation."""
    query = urlencode({**aggregation.to_url_parameters(), **(parameters or {})})
    return f"/{page}?{query}" if query else f"/{page}"


def parse_url(path: str, query: str, capture_count: int) -> PageState:
    """Parse a URL into the state of a page.

    A form sends the values of a list as repeated parameters, and the first and the last iteration as two parameters.

    Args:
        path: Path of the URL.
        query: Query string of the URL, with or without the question mark.
        capture_count: Number of captures that the server has opened.

    Raises:
        TracekitError: A parameter has an invalid value.
    """
    if not isinstance(path, str) or not isinstance(query, str):
        raise TracekitError("the URL is not a string")
    if len(query) > MAX_QUERY:
        raise TracekitError(f"the query string of the URL has more than {MAX_QUERY:,} characters")
    values: dict[str, str] = {}
    for name, value in parse_qsl(query.removeprefix("?"), keep_blank_values=True):
        values[name] = f"{values[name]},{value}" if values.get(name) else value
    for prefix in ("", "other_"):
        bounds = [values.pop(f"{prefix}{name}_iteration", "").replace(",", "") for name in ("first", "last")]
        if any(bounds):
            values[f"{prefix}iterations"] = ":".join(bounds)
    return PageState(
        path.strip("/"), parse_aggregation(values, capture_count), {n: v for n, v in values.items() if n not in _OWN}
    )


def parse_aggregation(values: Mapping[str, str], capture_count: int) -> CaptureAggregation:
    """Parse URL parameters into a capture and an aggregation.

    Raises:
        TracekitError: A parameter has an invalid value.
    """
    capture = _parse_integer(values.get("capture", "") or "0", "capture")
    if not 0 <= capture < capture_count:
        raise TracekitError(
            f"the URL selects capture {capture}, but the number of captures is {capture_count}",
            hint="captures are numbered from 0; if some are not read yet, reload the page when they are",
        )
    warm_up = values.get("warm_up") or "no"
    if warm_up not in ("yes", "no"):
        raise TracekitError(f"the URL parameter 'warm_up' contains {warm_up[:100]!r} instead of yes or no")
    layers = values.get("layers", "")
    if layers not in ("", CAPTURE):
        raise TracekitError(f"the URL parameter 'layers' contains {layers[:100]!r} instead of {CAPTURE}")
    key_op = values.get("key_op") or None
    at = CaptureAggregation(capture, key_op=key_op, include_warm_up=warm_up == "yes", layers=layers)
    if values.get("iterations"):
        first, _, last = values["iterations"].partition(":")
        bounds = [None if bound == "" else _parse_integer(bound, "iterations") for bound in (first, last)]
        at = replace(at, first=bounds[0], last=bounds[1])
    return replace(at, devices=_parse_numbers(values, "devices"), ranks=_parse_numbers(values, "ranks"))


_OWN = ("capture", "iterations", "key_op", "warm_up", "devices", "ranks", "layers", "token")


def _parse_numbers(values: Mapping[str, str], name: str) -> tuple[int, ...]:
    """Parse the URL parameter with a list of device ids or ranks. Return it in ascending order."""
    texts = [text for text in values.get(name, "").split(",") if text]
    if len(texts) > MAX_SCOPE:
        raise TracekitError(f"the URL parameter {name!r} contains more than {MAX_SCOPE:,} numbers")
    return tuple(sorted({_parse_integer(text, name) for text in texts}))


def _parse_integer(text: str, name: str) -> int:
    """Parse an integer of at most 18 digits, which is the URL parameter with the given name or a part of it."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**60)) - 1):
        raise TracekitError(
            f"the URL parameter {name!r} contains {text[:100]!r} instead of an integer of at most 18 digits"
        )
    return int(text)
