"""The opened captures of a server, with caches of their aggregated traces, table rows, row orders and figures."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import polars as pl

from tracekit import schemas
from tracekit.core.diagnosis.texts import write_explanation
from tracekit.errors import MissingTableError, TracekitError
from tracekit.sets.member import read_recorded_metadata
from tracekit.sets.paths import describe_error
from tracekit.system import memory
from tracekit.system.files import FileState
from tracekit.trace import get_trace_view
from tracekit.view.state import CAPTURE, CaptureAggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from tracekit.core.diagnosis import Why
    from tracekit.sets.member import RecordedMetadata
    from tracekit.text.explanations import Explanation
    from tracekit.text.names import TableName
    from tracekit.trace import Trace

MAX_TRACES = 8
"""Maximum number of aggregated traces per capture in the cache."""
MAX_ROW_ORDERS = 64
"""Maximum number of row orders in the cache. A row order contains the row numbers that match a query, sorted."""
MAX_ROW_ORDER_BYTES = 32 * 1024 * 1024
"""Maximum size of the cached row orders in bytes. The order that is being used is cached even if it is larger."""
MAX_FIGURES = 64
"""Maximum number of figures and similar results in the cache."""
MAX_DEFERRED = 1024
"""Maximum number of panels that are computed after their page is shown and that were not requested yet."""
MAX_SLOW_RESULTS = 32
"""Maximum number of pages that take long and that were not requested again."""
CLOSING_S = 1.0
"""Maximum time for which the end of the server waits for what it computes."""
MAX_CACHED_BYTES = 128 * 1024 * 1024
"""Maximum size of the cached rows in bytes. The rows that are being used are cached even if they are larger."""


class ShownRows(NamedTuple):
    """The rows of a table, with titles and descriptions of its columns.

    Attributes:
        frame: The rows.
        titles: Title of each column, by column name.
        descriptions: Description of each column, by column name, or "" for columns without a description.
        formulas: How the values of a column are computed, by column name, if its description does not say it.
        units: Unit of each column with a declared unit, by column name. The units of others follow from their names.
    """

    frame: pl.DataFrame
    titles: Mapping[str, str]
    descriptions: Mapping[str, str]
    formulas: Mapping[str, str] = MappingProxyType({})
    units: Mapping[str, str] = MappingProxyType({})


K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """A thread-safe cache of the most recently used values.

    A value is computed by one thread at a time. Other threads that need the same value wait for it.
    """

    def __init__(self, items: int, size: Callable[[V], int] = lambda _: 0, max_bytes: int = 0) -> None:
        self._items, self._size, self._max_bytes = items, size, max_bytes
        self._values: OrderedDict[K, V] = OrderedDict()
        self._locks: dict[K, threading.Lock] = {}
        self._lock = threading.Lock()
        self._clearings = 0

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """Return the cached value of a key. If it is not cached, compute and cache it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._values:
                    return self._values[key]
                clearings = self._clearings
            try:
                value = compute()
            except BaseException:
                with self._lock:
                    self._locks.pop(key, None)
                raise
            with self._lock:
                self._locks.pop(key, None)
                if clearings == self._clearings:
                    self._values[key] = value
                    self._evict()
        return value

    def clear(self) -> None:
        """Remove all values. Values that are being computed are returned, but not cached."""
        with self._lock:
            self._values.clear()
            self._clearings += 1

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._values

    def _evict(self) -> None:
        """Remove the least recently used values until the cache is within its limits. The newest value always stays."""
        sizes = [self._size(value) for value in self._values.values()]
        total = sum(sizes)
        while len(self._values) > 1 and (len(self._values) > self._items or total > self._max_bytes > 0):
            self._values.popitem(last=False)
            total -= sizes.pop(0)


@dataclass(eq=False)
class ViewedCapture:
    """A capture that the viewer has opened, with a cache of its traces.

    Attributes:
        index: Index of the capture, in the order of the command line.
        name: Name of the file, without its folder unless other captures have the same name.
        trace: The trace of the capture, neither correlated nor rolled up.
        path: Path of the file or folder, or None if it is not known.
        layers: Where the ranges inside the replays of CUDA graphs come from, as in ``CaptureAggregation``.
    """

    index: int
    name: str
    trace: Trace
    path: Path | None = None
    layers: str = ""
    _traces: Cache[CaptureAggregation, Trace] = field(default_factory=lambda: Cache(MAX_TRACES))
    _answers: Cache[CaptureAggregation, Why] = field(default_factory=lambda: Cache(MAX_TRACES))
    _counts: dict[str, int] = field(default_factory=dict)
    _state: Any = field(init=False)

    def __post_init__(self) -> None:
        self._state = _read_state(self.path)

    @functools.cached_property
    def metadata(self) -> RecordedMetadata:
        """What the capture records about its rank, its clock and its host."""
        return read_recorded_metadata(self.trace, self.trace.path or Path(self.name))

    @property
    def key(self) -> tuple[int, str]:
        """Key that distinguishes the capture from others, and from the same one with other layers."""
        return self.index, self.layers

    @functools.cached_property
    def _layered(self) -> ViewedCapture:
        return ViewedCapture(self.index, self.name, self.trace.with_layers(), self.path, CAPTURE)

    def select_layers(self, layers: str) -> ViewedCapture:
        """Return this capture with layers, which has caches of its own, or this capture if it has these layers."""
        return self if layers == self.layers else self._layered

    @property
    def has_layers(self) -> bool:
        """Whether replays of CUDA graphs have ranges of their own in the capture."""
        return get_trace_view(self.trace).plan.layers is not None

    @functools.cached_property
    def can_have_layers(self) -> bool:
        """Whether the capture tells in which ranges the nodes of some of its CUDA graphs were created."""
        try:
            return bool(self.trace.stats("graph_alignment")["Matched"].sum())
        except TracekitError:
            return False

    def read_metadata(self) -> None:
        """Read the metadata in advance. If it cannot be read, its next use raises the error."""
        with contextlib.suppress(TracekitError, OSError):
            self.metadata  # noqa: B018 - the property is cached

    @functools.cached_property
    def devices(self) -> tuple[int, ...]:
        """Ids of the GPUs."""
        return tuple(self.trace.devices["device_id"])

    @property
    def has_changed(self) -> bool:
        """Whether the file was changed, replaced or removed since the viewer opened it."""
        return bool(_read_state(self.path) != self._state)

    def get_aggregated_trace(self, aggregation: CaptureAggregation) -> Trace:
        """Return the correlated trace, rolled up for the iterations, key op and GPUs that ``aggregation`` selects.

        If the capture contains a roll-up, as DLProf databases do, the default aggregation is that roll-up.

        Raises:
            TracekitError: The capture does not have the last iteration, or one of the GPUs.
        """
        return self._traces.get(aggregation, lambda: self._roll_up(aggregation))

    def explain(self, aggregation: CaptureAggregation) -> Explanation:
        """Return why the steps of an aggregation take as long as they do. The answer is cached.

        Raises:
            TracekitError: The steps cannot be explained.
        """
        return write_explanation(self.find_causes(aggregation))

    def find_causes(self, aggregation: CaptureAggregation) -> Why:
        """Return the answer to why the steps of an aggregation take as long as they do. It is cached.

        Raises:
            TracekitError: The steps cannot be explained.
        """
        return self._answers.get(aggregation, lambda: self.get_aggregated_trace(aggregation).why())

    def _roll_up(self, aggregation: CaptureAggregation) -> Trace:
        """Correlate and roll up the trace of this capture, and return the resulting trace. The result is not cached."""
        trace = self.trace.select(devices=aggregation.devices) if aggregation.devices else self.trace
        if aggregation.is_default and self.trace.count("ops"):
            return trace.correlate()
        bounds = (aggregation.first, aggregation.last)
        rolled_up = trace.correlate().rollup(
            key_op=aggregation.key_op,
            iterations=None if bounds == (None, None) else bounds,
            include_warm_up=aggregation.include_warm_up,
        )
        if aggregation.last is not None:
            existing = rolled_up.frame("iterations").select(pl.col("iteration").max()).collect().item()
            if existing is not None and aggregation.last > existing:
                requested = f"iterations {aggregation.first or 0} to {aggregation.last}"
                message = f"{requested} were requested, but the capture has only iterations 0 to {existing}"
                raise TracekitError(message, hint="choose iterations within this range")
        return rolled_up

    def has_rows_in_any(self, *tables: str) -> bool:
        """Return whether at least one of the tables has rows. All iterations are aggregated to determine this."""
        return any(self._count_rows(name) > 0 for name in tables)

    def _count_rows(self, name: str) -> int:
        """Return the number of rows of a table, or 1 if it cannot be computed, so that its page states the error."""
        if name not in self._counts:
            try:
                trace = self.get_aggregated_trace(CaptureAggregation(self.index))
                self._counts[name] = trace.count(cast("TableName", name)) if name in schemas.table_names() else 0
            except MissingTableError:
                self._counts[name] = 0
            except TracekitError:
                self._counts[name] = 1
        return self._counts[name]


class ViewedCaptures:
    """The captures that a viewer shows, with caches of table rows, row orders and figures.

    Captures may be added while the server runs. Each keeps its index.

    Attributes:
        all: The opened captures.
        unreadable: The captures that cannot be read: name of the file, and the reason.
        waiting: Names of the captures that are not open yet.
        growing: Names of files that appeared or changed, and that may not be complete yet.
        version: A number that increases when a capture is added or replaced.
        opening: Lock that is held while a capture is opened in the background, which may issue warnings.
        stop_background_work: Function that stops the threads that open captures, and returns whether they have ended.
    """

    def __init__(self, captures: Iterable[ViewedCapture], unreadable: Iterable[tuple[str, str]] = ()) -> None:
        self.all = list(captures)
        self.unreadable = list(unreadable)
        self.waiting: list[str] = []
        self.growing: list[str] = []
        self.version = 0
        self.opening = threading.Lock()
        self.stop_background_work: Callable[[], bool] = lambda: True
        self._replaced: list[Trace] = []
        self._rows: Cache[Hashable, ShownRows] = Cache(
            1000, lambda rows: int(rows.frame.estimated_size()), MAX_CACHED_BYTES
        )
        self._orders: Cache[Hashable, pl.Series] = Cache(
            MAX_ROW_ORDERS, lambda order: int(order.estimated_size()), MAX_ROW_ORDER_BYTES
        )
        self._figures: Cache[Hashable, Any] = Cache(MAX_FIGURES)
        self._deferred: OrderedDict[str, Callable[[], Any]] = OrderedDict()
        self._deferred_count = 0
        self._slow_results: OrderedDict[str, Future[Any]] = OrderedDict()
        self._activities: list[str] = []
        self._lock = threading.Lock()
        self._is_idle = threading.Condition(self._lock)
        self._requests = 0

    def __getitem__(self, at: CaptureAggregation) -> ViewedCapture:
        return self.get_capture(at.capture, at.layers)

    def __len__(self) -> int:
        return len(self.all)

    def get_capture(self, index: int, layers: str = "") -> ViewedCapture:
        """Return the capture with an index, with layers as in ``CaptureAggregation``."""
        return self.all[index].select_layers(layers)

    def add(self, name: str, trace: Trace, path: Path | None = None, *, replace: bool = False) -> None:
        """Add an opened capture. With ``replace``, it replaces the captures with the same path.

        Cached results of all captures are cleared, and so are cached rows if a capture is replaced. The trace of a
        replaced capture is closed when no request uses it any more.
        """
        same = [each.index for each in self.all if replace and each.path == path]
        added = [ViewedCapture(index, name, trace, path) for index in same or [len(self.all)]]
        if self.all:
            for capture in (self.all[0], *added):
                capture.read_metadata()
        with self._lock:
            for capture in added:
                place = slice(capture.index, capture.index + 1)
                self._replaced += [before.trace for before in self.all[place]]
                self.all[place] = [capture]
            self.unreadable = [each for each in self.unreadable if each[0] != name]
            self.version += 1
        self._figures.clear()
        if same:
            self._rows.clear()
            self._orders.clear()
            self._close_replaced()

    def add_unreadable(self, name: str, error: Exception) -> None:
        """List a capture that cannot be read, with the reason."""
        with self._lock:
            others = [each for each in self.unreadable if each[0] != name]
            self.unreadable = [*others, (name, describe_error(error))]

    def explain_first(self) -> None:
        """Explain the steps of the first capture, so that the answer is cached when a page needs it."""
        self.begin_request()
        try:
            with self.report_activity("explaining the steps"):
                self.all[0].explain(CaptureAggregation())
        except Exception:  # noqa: BLE001 - the page shows the error
            return
        finally:
            self.end_request()

    def get_rows(self, key: Hashable, compute: Callable[[], ShownRows]) -> ShownRows:
        """Return the cached rows of a table. If they are not cached, compute and cache them."""
        return self._rows.get(key, compute)

    def get_row_numbers(self, key: Hashable, compute: Callable[[], pl.Series]) -> pl.Series:
        """Return the row numbers of the rows that match a query, in the sort order of the query.

        If the row numbers are not cached, compute and cache them.
        """
        return self._orders.get(key, compute)

    def get_cached_result(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return a cached figure or other result. If it is not cached, compute and cache it."""
        return self._figures.get(key, compute)

    def has_cached_result(self, key: Hashable) -> bool:
        """Return whether the figure or other result of a key is cached."""
        return key in self._figures

    def defer(self, key: Hashable, activity: str, compute: Callable[[], Any]) -> str:
        """Store how to compute a result, and return the token with which ``compute_deferred_result`` computes it.

        Args:
            key: Key of the result in the cache.
            activity: What the server does while it computes the result.
            compute: Function that returns the result.
        """
        with self._lock:
            self._deferred_count += 1
            token = str(self._deferred_count)
            self._deferred[token] = lambda: self._compute_with_activity(key, activity, compute)
            while len(self._deferred) > MAX_DEFERRED:
                self._deferred.popitem(last=False)
        return token

    def compute_deferred_result(self, token: str) -> Any:
        """Return the result of a token that ``defer`` returned.

        Raises:
            TracekitError: The token is unknown, or the result cannot be computed.
        """
        with self._lock:
            slow_result = self._slow_results.pop(token, None)
            compute = self._deferred.get(token) if slow_result is None else slow_result.result
        if compute is None:
            raise TracekitError("this panel was not computed", hint="reload the page")
        return compute()

    def compute_within(self, seconds: float | None, activity: str, compute: Callable[[], Any]) -> tuple[Any, str]:
        """Compute a result in a thread, and wait for it, but not longer than some seconds.

        Args:
            seconds: Maximum time to wait, or None for no limit.
            activity: What the server does while it computes the result.
            compute: Function that returns the result.

        Returns:
            The result and an empty string, or None and the token with which ``compute_deferred_result`` returns the
            result once.
        """
        result: Future[Any] = Future()

        def run() -> None:
            self.begin_request()
            try:
                with self.report_activity(activity):
                    result.set_result(compute())
            except BaseException as e:  # noqa: BLE001 - raised again where the result is used
                result.set_exception(e)
            finally:
                self.end_request()

        threading.Thread(target=run, name="tracekit-page", daemon=True).start()
        if wait([result], seconds).done:
            return result.result(), ""
        with self._lock:
            self._deferred_count += 1
            token = str(self._deferred_count)
            self._slow_results[token] = result
            while len(self._slow_results) > MAX_SLOW_RESULTS:
                self._slow_results.popitem(last=False)
        return None, token

    def _compute_with_activity(self, key: Hashable, activity: str, compute: Callable[[], Any]) -> Any:
        with self.report_activity(activity):
            return self.get_cached_result(key, compute)

    @contextlib.contextmanager
    def report_activity(self, text: str) -> Iterator[None]:
        """Return a context manager during which ``list_activities`` contains a text."""
        with self._lock:
            self._activities.append(text)
        try:
            yield
        finally:
            with self._lock:
                self._activities.remove(text)

    def list_activities(self) -> list[str]:
        """Return what the server is computing, the earliest first."""
        with self._lock:
            return list(dict.fromkeys(self._activities))

    def describe(self) -> dict[str, Any]:
        """Return what a page compares with a later state: the numbers of captures, and the changed files."""
        return {
            "opened": len(self.all),
            "waiting": len(self.waiting),
            "version": self.version,
            "changed": self.list_changed(),
        }

    def list_changed(self) -> list[str]:
        """Return the names of the captures whose files were changed, replaced or removed since they were opened."""
        return [capture.name for capture in self.all if capture.has_changed]

    def begin_request(self) -> None:
        """Record that a request begins. Until it ends, the data from which tables are computed stays in memory."""
        with self._lock:
            self._requests += 1

    def end_request(self) -> None:
        """Record that a request ends. If no other request is active, free the data from which tables were computed."""
        with self._lock:
            self._requests -= 1
            is_idle = self._requests == 0
            if is_idle:
                self._is_idle.notify_all()
        if is_idle:
            self._close_replaced()
            self.free_working_data()

    def wait_for_requests(self, timeout_s: float) -> None:
        """Wait until no request is active, but at most for some seconds."""
        with self._is_idle:
            self._is_idle.wait_for(lambda: self._requests == 0, timeout_s)

    def _close_replaced(self) -> None:
        """Close the traces of replaced captures, unless a request may use them."""
        with self._lock:
            traces, self._replaced = (self._replaced, []) if self._requests == 0 else ([], self._replaced)
        for trace in traces:
            trace.close()

    def free_working_data(self) -> None:
        """Free the data from which tables were computed, and return free memory to the system. The caches stay."""
        for capture in self.all:
            get_trace_view(capture.trace).free_working_data()
        memory.release_free_memory()

    def close(self) -> None:
        """Stop the background work, and close the files of all captures, unless a thread still reads them.

        Closing a trace would wait for a thread that computes something from it, and this thread for the closed trace.
        """
        has_ended = self.stop_background_work()
        self.wait_for_requests(CLOSING_S)
        if has_ended and not self._requests:
            for trace in (*self._replaced, *(capture.trace for capture in self.all)):
                trace.close()


def _read_state(path: Path | None) -> Any:
    """Return a value that differs if the file or folder at a path was changed, replaced or removed in the meantime."""
    return None if path is None else FileState.read_file(path, folders=True)
