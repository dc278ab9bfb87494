"""Call the functions of plug-ins so that their errors name the plug-in, and none of them ends the program.

A plug-in is code of another distribution. Its functions may raise any exception, also ``SystemExit``, and return any
object. The readers, exporters and analyses of plug-ins are therefore replaced with copies whose functions convert
exceptions.
Errors of tracekit and Ctrl-C are not converted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tracekit.errors import PluginError, TracekitError, get_first_line_of_message
from tracekit.registry.analyses import Analysis, Option
from tracekit.registry.interface import Capture, Exporter, Reader
from tracekit.schemas import Column, TableSchema

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Container, Iterator, Sequence
    from importlib.metadata import EntryPoint

    import pyarrow as pa

    from tracekit.registry.interface import LaunchMetadata, Undecoded

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Plugin = TypeVar("Plugin", Reader, Exporter, TableSchema, Analysis)
_TYPES_OF_ITEMS = {
    **dict.fromkeys(("suffixes", "tables", "required_tables", "old_names", "key"), str),
    "results": TableSchema,
    "options": Option,
    "columns": Column,
}


def describe_entry_point(entry_point: EntryPoint) -> str:
    """Return the name of a plug-in for messages: its entry point, and its distribution with the version if known."""
    name = f"the plug-in {entry_point.value!r}"
    distribution = getattr(entry_point, "dist", None)
    with contextlib.suppress(Exception):  # the metadata of a distribution may be damaged
        if distribution is not None:
            return f"{name} of {distribution.name} {distribution.version}"
    return name


def load(kind: type[Plugin], entry_point: EntryPoint, known: Container[object]) -> Plugin:
    """Import the object of an entry point, and let its functions convert exceptions.

    Args:
        kind: Class of the object: ``Reader``, ``Exporter``, ``TableSchema`` or ``Analysis``.
        entry_point: The entry point.
        known: The keys of the objects before this one, as ``get_key`` returns them.

    Raises:
        PluginError: The plug-in cannot be imported, is not a valid object of this class, or its name is already used.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    plugin = _load_entry_point(entry_point)
    if not isinstance(plugin, kind):
        raise PluginError(f"its object is a {type(plugin).__name__}, not a tracekit.{kind.__name__}")
    _check_fields(plugin)
    if get_key(plugin) in known:
        if not isinstance(plugin, Reader | Exporter):
            label = plugin.label if isinstance(plugin, Analysis) else f"table {plugin.name!r}"
            raise PluginError(f"the {label} already exists")
        raise PluginError(f"the format {plugin.format!r} already has another {kind.__name__.lower()}")
    name = describe_entry_point(entry_point)
    if isinstance(plugin, Analysis):
        compute = plugin.load_compute_function()
        return dataclasses.replace(plugin, compute=_Guard(compute, name, "the function 'compute'"))
    if isinstance(plugin, TableSchema):
        return plugin
    return _guard_reader(plugin, name) if isinstance(plugin, Reader) else _guard_exporter(plugin, name)


def get_key(plugin: Reader | Exporter | TableSchema | Analysis) -> Any:
    """Return the key of an object of a plug-in: its format, its name, or the kind and the name of an analysis."""
    if isinstance(plugin, Analysis):
        return plugin.kind, plugin.name
    return plugin.name if isinstance(plugin, TableSchema) else plugin.format


def _load_entry_point(entry_point: EntryPoint) -> Any:
    """Import the object of an entry point. Any exception becomes a ``PluginError``, except Ctrl-C."""
    with _detecting_interrupts() as interrupts:
        try:
            return entry_point.load()
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt) and interrupts:
                raise
            raise PluginError(_describe_exception(e)) from e


def _check_fields(plugin: Reader | Exporter | TableSchema | Analysis) -> None:
    """Check the types of the fields of an object of a plug-in on which its choice and its use depend."""
    for field in dataclasses.fields(plugin):
        value, type_ = getattr(plugin, field.name), str(field.type)
        if type_ == "str" and not isinstance(value, str):
            raise PluginError(f"its field {field.name!r} is not a string")
        item_type = _TYPES_OF_ITEMS.get(field.name)
        if item_type is not None and type_.startswith("tuple"):
            _check_items(field.name, value, item_type)
        is_allowed = (
            callable(value) or (value is None and "None" in type_) or (isinstance(value, str) and "str" in type_)
        )
        if "Callable" in type_ and not is_allowed:
            raise PluginError(f"its field {field.name!r} is not a function")


def _check_items(field: str, value: object, item_type: type) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, item_type) and item for item in value):
        kind = "nonempty strings" if item_type is str else f"objects of the class {item_type.__name__}"
        raise PluginError(f"its field {field!r} is not a tuple of {kind}")


def _guard_reader(reader: Reader, name: str) -> Reader:
    changed: dict[str, Any] = {
        field: _Guard(function, name, f"the function {field!r}")
        for field in ("redact", "redact_with_key", "unredacted", "leading_info")
        if (function := getattr(reader, field)) is not None
    }
    return dataclasses.replace(
        reader, sniff=_Guard(reader.sniff, name, "the function 'sniff'"), open=_OpenGuard(reader.open, name), **changed
    )


def _guard_exporter(exporter: Exporter, name: str) -> Exporter:
    changed: dict[str, Any] = {
        field: _WriteGuard(function, name, f"the function {field!r}")
        for field in ("write", "write_table", "write_many")
        if (function := getattr(exporter, field)) is not None
    }
    if exporter.wrote is not None:
        changed["wrote"] = _Guard(exporter.wrote, name, "the function 'wrote'")
    return dataclasses.replace(exporter, **changed)


@contextlib.contextmanager
def _converting_errors(name: str, action: str, path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Return a context manager that converts any exception of a plug-in, except errors of tracekit and Ctrl-C."""
    try:
        yield
    except (TracekitError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:
        hint = "report the problem to the authors of the plug-in"
        raise PluginError(f"{action} of {name} failed: {_describe_exception(e)}", path=path, hint=hint) from e


def _describe_exception(error: BaseException) -> str:
    """Return the class and the first line of the message of an exception."""
    try:
        text = get_first_line_of_message(error)
    except Exception:  # noqa: BLE001 - the method __str__ of the exception may fail, too
        text = ""
    kind = type(error).__name__
    return f"{kind}: {text}" if text not in ("", kind) else kind


@contextlib.contextmanager
def _detecting_interrupts() -> Iterator[list[int]]:
    """Yield a list to which the number of the signal SIGINT is appended when the user presses Ctrl-C."""
    interrupts: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield interrupts  # Python calls signal handlers only in the main thread
        return

    def record_and_handle(number: int, frame: Any) -> Any:
        interrupts.append(number)
        return handler(number, frame)

    signal.signal(signal.SIGINT, record_and_handle)
    try:
        yield interrupts
    finally:
        if signal.getsignal(signal.SIGINT) is record_and_handle:
            signal.signal(signal.SIGINT, handler)


@dataclass(frozen=True, slots=True)
class _Guard(Generic[Arguments, Result]):
    """A function of a plug-in that converts exceptions.

    Attributes:
        function: The function.
        name: Name of the plug-in.
        action: What the function is, for messages.
    """

    function: Callable[Arguments, Result]
    name: str
    action: str

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call the function."""
        path: Any = getattr(args[0], "path", args[0]) if args else None
        with _converting_errors(self.name, self.action, path if _is_path(path) else None):
            return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _OpenGuard:
    """The function ``open`` of the reader of a plug-in, whose result is guarded as well."""

    function: Callable[..., Any]
    name: str

    def __call__(self, source: Any) -> Any:
        """Open a source, and return a guarded capture or mapping. Any other result is returned unchanged."""
        with _converting_errors(self.name, "the function 'open'", source.path):
            opened = self.function(source)
        if isinstance(opened, Capture):
            return _GuardedCapture(opened, self.name, source.path)
        if isinstance(opened, Mapping) and not isinstance(opened, dict):
            return _GuardedMapping(opened, self.name, source.path)
        return opened


@dataclass(frozen=True, slots=True)
class _WriteGuard:
    """A function of the exporter of a plug-in that writes a file.

    Exceptions of the progress callback, which belongs to the caller, are not converted.
    """

    function: Callable[..., None]
    name: str
    action: str

    def __call__(self, *args: Any, **options: Any) -> None:
        """Write the file. The last positional argument is the progress callback."""
        *others, progress = args
        raised: list[BaseException] = []

        def report_progress(done: int, total: int) -> None:
            try:
                progress(done, total)
            except BaseException as e:
                raised.append(e)
                raise

        path = next((value for value in others if _is_path(value)), None)
        try:
            with _converting_errors(self.name, self.action, path):
                self.function(*others, report_progress, **options)
        except PluginError as e:
            if raised and e.__cause__ is raised[-1]:
                raise raised[-1] from None
            raise


class _GuardedMapping(Mapping[str, Any]):
    """The tables of a plug-in by name, in a mapping that may compute them."""

    def __init__(self, tables: Mapping[str, Any], name: str, path: Any) -> None:
        self._tables = tables
        self._where = name, "the mapping of tables", path

    def _guard(self) -> contextlib.AbstractContextManager[None]:
        name, action, path = self._where
        return _converting_errors(name, action, path)

    def __getitem__(self, key: str) -> Any:
        try:
            with self._guard():
                return self._tables[key]
        except PluginError as e:
            if isinstance(e.__cause__, KeyError) and key not in self:
                raise KeyError(key) from None
            raise

    def __contains__(self, key: object) -> bool:
        with self._guard():
            return key in self._tables

    def __iter__(self) -> Iterator[str]:
        with self._guard():
            return iter(list(self._tables))

    def __len__(self) -> int:
        with self._guard():
            return len(self._tables)


class _GuardedCapture(Capture):
    """A capture of a plug-in whose methods convert exceptions and check the types of results."""

    def __init__(self, capture: Capture, name: str, path: Any) -> None:
        self._capture = capture
        self._where = name, path

    def _guard(self, method: str) -> contextlib.AbstractContextManager[None]:
        name, path = self._where
        return _converting_errors(name, f"the method {method!r} of the capture", path)

    def _find_implemented(self, method: str, method_for_one_table: str) -> str:
        """Return the name of the method that the class of the capture implements."""
        is_inherited = getattr(type(self._capture), method) is getattr(Capture, method)
        return method_for_one_table if is_inherited else method

    def names(self) -> Collection[str]:
        """Return the names of the declared tables that may have rows."""
        with self._guard("names"):
            return frozenset(self._capture.names())

    def may_have(self, name: str) -> bool:
        """Return whether a declared table may have rows."""
        with self._guard("may_have"):
            return bool(self._capture.may_have(name))

    def count_many(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of rows of several tables, by table name."""
        with self._guard(self._find_implemented("count_many", "count")):
            counts = self._capture.count_many(names)
            return {name: operator.index(counts[name]) for name in names}

    def read_many(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Table]:
        """Return the requested columns of several tables, by table name."""
        with self._guard(self._find_implemented("read_many", "read")):
            tables = self._capture.read_many(columns)
            return {name: tables[name] for name in columns}

    def count_undecoded(self) -> Mapping[str, int | Undecoded]:
        """Return the number of events that are in no declared table, by class of event."""
        with self._guard("count_undecoded"):
            return dict(self._capture.count_undecoded())

    def read_launch_metadata(self) -> LaunchMetadata:
        """Return the rank variables and the host of the profiled program."""
        with self._guard("read_launch_metadata"):
            return self._capture.read_launch_metadata()

    def close(self) -> None:
        """Close the file."""
        with self._guard("close"):
            self._capture.close()


def _is_path(value: object) -> bool:
    """Return whether a value is a path of the file system."""
    return hasattr(value, "__fspath__")
