"""Expand paths, folders, patterns and URLs into lists of captures."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import registry
from tracekit.errors import (
    TracekitError,
    UnknownFormatError,
    convert_to_printable_path,
    get_first_line_of_message,
    warn,
)
from tracekit.registry import detection
from tracekit.registry.source import Source
from tracekit.system import remote
from tracekit.system.files import convert_file_url_to_path
from tracekit.text.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    PathLike = str | os.PathLike[str]

MAX_FILES = 1 << 20
"""Maximum number of files of a folder that are examined."""
CAPTURE_SUFFIXES = (
    ".nsys-rep",
    ".qdrep",
    ".sqlite",
    ".ncu-rep",
    ".pt.trace.json",
    ".pt.trace.json.gz",
    ".pftrace",
    ".xplane.pb",
)
"""Suffixes that only captures have. A file with one of them is never skipped without its name and the reason."""
_LISTED = 5
_TABLE_FORMATS = ("parquet", "arrow")
_EXPORT_FORMATS = ("nsys-rep", "nsys-sqlite", "nsys-parquetdir", "nsys-arrowdir")
"""The format of reports and those of their exports. The first one of a run is read."""
_FOLDER_SUFFIX = re.compile(r"_(?:pqtdir|arwdir)\Z")
"""Suffixes of the folders that ``nsys export`` names after the report."""
_REPORT_SUFFIX = re.compile(r"\.(?:nsys-rep|qdrep)\Z")
"""Suffixes of reports, which are sometimes kept in the names of their exports, such as ``rank0.nsys-rep.sqlite``."""
_TRACES_OF_JAX = ("perfetto_trace.json", "perfetto_trace.json.gz")
_XLA_SUFFIX, _PROFILE_SUFFIX = re.compile(r"(?:\.xplane\.pb|\.trace\.json)(?:\.gz)?\Z"), re.compile(r"\.pb(?:\.gz)?\Z")
"""Suffixes of profiles of XLA and of the traces beside them, and of profiles alone."""
_UNREADABLE = "the capture was skipped, because it cannot be read"


@dataclass(frozen=True, slots=True)
class CapturePaths:
    """The captures that files, folders, patterns and URLs refer to, and the files that are skipped.

    Attributes:
        urls: URL of each capture, by path. The URL of a local file is None.
        errors: The files that are probably captures and cannot be read, with their errors, by path.
        others: The files and folders that are no captures, with the reasons as errors, by path.
        unexamined: The files in remote folders that do not have the suffix of a format.
        replaced: Captures that contain the run of another capture, by path, each with the path of the other capture.
    """

    urls: dict[Path, str | None] = field(default_factory=dict)
    errors: dict[Path, Exception] = field(default_factory=dict)
    others: dict[Path, Exception] = field(default_factory=dict)
    unexamined: list[Path] = field(default_factory=list)
    replaced: dict[Path, Path] = field(default_factory=dict)

    def update(self, other: CapturePaths) -> None:
        """Add the captures and the skipped files of another object."""
        self.urls.update(other.urls)
        self.errors.update(other.errors)
        self.others.update(other.others)
        self.unexamined.extend(other.unexamined)
        self.replaced.update(other.replaced)

    def skip(self, path: Path, error: Exception) -> None:
        """Skip a file because of an error. The error decides whether the file is probably a capture."""
        self.urls.pop(path, None)
        is_unrecognized = isinstance(error, UnknownFormatError | OSError)
        (self.others if is_unrecognized and not has_capture_suffix(path.name) else self.errors)[path] = error

    def skip_replaced(self, formats: Mapping[Path, str]) -> None:
        """Skip the captures that contain the same run as another capture, given the format of each capture."""
        replaced = find_replaced_captures(formats)
        self.replaced.update(replaced)
        for path in replaced:
            self.urls.pop(path, None)

    def raise_first_error(self) -> None:
        """Raise the error of the first file that cannot be read, if there is one."""
        for error in self.errors.values():
            raise error

    def report_skipped(self) -> None:
        """Issue a warning for each capture that cannot be read, and one for all files that are no captures.

        Raises:
            TracekitError: There is no capture.
        """
        if not self.urls:
            raise self._create_no_capture_error()
        for path, error in self.errors.items():
            warn_about_unreadable(path, error)
        if self.replaced:
            skipped, read = next(iter(self.replaced.items()))
            what = "1 capture was" if len(self.replaced) == 1 else f"{len(self.replaced)} captures were"
            names = f"{_join_names([read])} is read instead of {_join_names([skipped])}"
            what += " skipped, because another file contains the same run"
            warn(f"{what}: {names}{', …' if len(self.replaced) > 1 else ''}", path=skipped.parent)
        _warn_about_others(list(self.others), "no reader recognizes the content")
        _warn_about_others(self.unexamined, "the name does not have the suffix of a format")

    def _create_no_capture_error(self) -> Exception:
        """Return the error for files of which none can be read as a capture."""
        reasons = {**self.errors, **({} if self.errors else self.others)}
        if len(reasons) == 1:
            path, error = next(iter(reasons.items()))
            if isinstance(error, UnknownFormatError) and error.message == detection.UNKNOWN and path.exists():
                what, hint = detection.describe_unrecognized(Source(path))
                return UnknownFormatError(what, path=path, hint=hint)
            return error
        described = [f"{_join_names([path])}: {describe_error(e)}" for path, e in list(reasons.items())[:_LISTED]]
        more = "; …" if len(reasons) > _LISTED else ""
        if not reasons:
            what = f"{_join_names(self.unexamined)}: no name has the suffix of a format"
            return UnknownFormatError(f"no file is a capture: {what}", hint="pass the URL of a file")
        return UnknownFormatError(f"none of {len(reasons)} files can be read: {'; '.join(described)}{more}")


def warn_about_unreadable(path: PathLike, error: Exception) -> None:
    """Warn that a capture was skipped because of an error."""
    warn(f"{_UNREADABLE}: {describe_error(error)}", path=path)


def describe_error(error: Exception) -> str:
    """Return the message and the hint of an error in one line, without the path."""
    if isinstance(error, TracekitError):
        return error.message if error.hint is None else f"{error.message} (hint: {error.hint})"
    return error.strerror if isinstance(error, OSError) and error.strerror else get_first_line_of_message(error)


def _warn_about_others(paths: Sequence[Path], reason: str) -> None:
    """Warn about files and folders that were skipped, with the reason in the plural."""
    if paths:
        what = "1 other file or folder was" if len(paths) == 1 else f"{len(paths)} other files and folders were"
        warn(f"{what} skipped, because {reason}: {_join_names(paths)}")


def _join_names(paths: Sequence[Path]) -> str:
    """Return the names of the first files as printable text."""
    names = [convert_to_printable_path(path.name) for path in paths[:_LISTED]]
    return ", ".join(names) + (", …" if len(paths) > _LISTED else "")


def has_capture_suffix(name: str) -> bool:
    """Return whether a file name has a suffix that only captures have."""
    return name.lower().endswith(CAPTURE_SUFFIXES)


def expand_paths(
    paths: PathLike | Iterable[PathLike],
    format: str | None = None,  # noqa: A002
    *,
    strict: bool = False,
) -> list[Path | str]:
    """Return the paths and URLs of the captures that files, folders, patterns and URLs refer to.

    The captures of a folder or pattern are in natural order, in which ``rank2`` precedes ``rank10``. A warning names
    each file that has the suffix of a capture and cannot be read, and another warning counts the other files.

    Args:
        paths: A file, a folder of captures, a pattern such as ``run/*.nsys-rep``, a URL, or several of them. A folder
            that is itself a capture, such as a folder of tables, is one capture.
        format: Name of the format of all captures. If None, it is detected.
        strict: Whether a file that has the suffix of a capture and cannot be read is an error.

    Raises:
        TracekitError: No capture matches, a capture is listed twice, or ``strict`` is true and a file cannot be read.
        FileNotFoundError: A path does not exist.
    """
    captures = locate_captures(paths, format)
    if strict:
        captures.raise_first_error()
    captures.report_skipped()
    return [path if url is None else url for path, url in captures.urls.items()]


def locate_captures(
    paths: PathLike | Iterable[PathLike],
    format: str | None = None,  # noqa: A002
) -> CapturePaths:
    """Return the captures that paths and URLs refer to, and the files that are skipped, without warnings.

    Args:
        paths: A file, a folder of captures, a pattern, or several of them, as for ``expand_paths``. A URL with a scheme
            such as ``s3`` names a remote file, a folder or a pattern. In a remote folder, the files with the
            suffix of a format are captures.
        format: Name of the format of all captures. If None, it is detected.

    Raises:
        TracekitError: No file matches, a capture is listed twice, or a remote storage cannot be read.
        FileNotFoundError: A path does not exist.
    """
    named = [convert_file_url_to_path(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not named:
        raise TracekitError("no captures were passed", hint="pass files, a folder or a pattern")
    urls = [path for path in named if isinstance(path, str) and is_url(path)]
    candidates = [candidate for path in named if path not in urls for candidate in list_candidates(path)]
    _check_listed_once(candidates)
    captures = CapturePaths()
    if len(candidates) == len(named) == 1 and candidates[0] == Path(named[0]):
        captures.urls[candidates[0]] = None  # opening the capture states what is wrong with it
        return captures
    _add_local_captures(captures, candidates, format)
    for url in urls:
        _add_remote_captures(captures, url)
    if not (captures.urls or captures.errors) and len(named) == 1 and Path(named[0]).is_dir():
        what, hint = detection.describe_unrecognized(Source(named[0]))
        raise UnknownFormatError(what, path=named[0], hint=hint)
    return captures


def is_single_capture(path_or_url: PathLike) -> bool:
    """Return whether a path or URL names one capture, rather than a folder of captures or a pattern."""
    if isinstance(path_or_url, str) and is_url(convert_file_url_to_path(path_or_url)):
        return remote.list_url(path_or_url).files == [path_or_url]
    path = Path(convert_file_url_to_path(path_or_url))
    return not is_pattern(path) and not is_folder_of_captures(path)


def is_folder_of_captures(path: Path) -> bool:
    """Return whether a path is a folder of captures, or of files named like captures, that is not itself a capture."""
    source = Source(path)
    if not path.is_dir() or _is_capture(source):
        return False
    return any(map(has_capture_suffix, source.names)) or bool(detection.detect_formats(source, MAX_FILES, limit=1))


def is_pattern(path: Path) -> bool:
    """Return whether a path is a pattern such as ``run/*.nsys-rep``, and not an existing file or folder."""
    return not path.exists() and glob.has_magic(os.fspath(path))


def compute_natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key for natural order, in which ``rank2`` precedes ``rank10``."""
    tokens = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(t), t) if t.isdecimal() else (1, 0, t) for t in tokens]


def find_replaced_captures(formats: Mapping[Path, str]) -> dict[Path, Path]:
    """Return the captures that contain the same run as another capture in the same folder, with the other capture.

    The SQLite export ``rank0.sqlite`` and the folder of tables ``rank0_pqtdir`` contain the same run as the report
    ``rank0.nsys-rep``, and ``trace.json.gz`` is the compressed ``trace.json``. The report is read rather than its
    exports, and the uncompressed file rather than the compressed one. A profile of XLA is read rather than the trace
    beside it, and rather than the trace for Perfetto, which JAX gives the same name for all profiles.

    Args:
        formats: Name of the format of each capture, by path.
    """
    by_run: dict[tuple[Path, str, bool], list[tuple[int, int, Path]]] = {}
    for path, name in formats.items():
        if name in _EXPORT_FORMATS:
            is_folder = name in _EXPORT_FORMATS[2:]
            stem = _FOLDER_SUFFIX.sub("", path.name) if is_folder else _REPORT_SUFFIX.sub("", path.stem)
            form = _EXPORT_FORMATS.index(name), 0, path
            by_run.setdefault((path.parent, stem, False), []).append(form)
        elif name == "kineto":
            form = 0, path.name.endswith(".gz"), path
            by_run.setdefault((path.parent, path.name.removesuffix(".gz"), True), []).append(form)
        elif name == "xplane":
            form = int(_PROFILE_SUFFIX.search(path.name) is None), path.name.endswith(".gz"), path
            by_run.setdefault((path.parent, _XLA_SUFFIX.sub("", path.name), False), []).append(form)
    of_xla = sorted((path for path, name in formats.items() if name == "xplane"), reverse=True)
    profiles = {path.parent: path for path in of_xla if _PROFILE_SUFFIX.search(path.name)}
    traces = (path for path in of_xla if path.name in _TRACES_OF_JAX and path.parent in profiles)
    replaced = {path: profiles[path.parent] for path in traces}
    for forms in by_run.values():
        first = min(forms)
        replaced.update({path: first[2] for *form, path in forms if form > list(first[:2])})
    return replaced


def list_candidates(path_or_pattern: PathLike) -> list[Path]:
    """Return the files and folders that a path or pattern refers to. Hidden files in a folder are not included.

    Raises:
        TracekitError: No file matches the pattern, or the folder contains too many files.
        FileNotFoundError: The path does not exist.
    """
    text, path = os.fspath(path_or_pattern), Path(path_or_pattern)
    if path.is_dir():
        if not is_folder_of_captures(path):
            return [path]
        names = list(filter(_is_candidate_name, Source(path).names))
        if len(names) > MAX_FILES:
            hint = "pass a pattern that matches fewer files"
            raise TracekitError(f"the folder contains more than {MAX_FILES:,} files", path=path, hint=hint)
        return [path / name for name in sorted(names, key=compute_natural_sort_key)]
    if is_pattern(path):
        matches = sorted(glob.glob(text, recursive=True), key=compute_natural_sort_key)  # noqa: PTH207 - a pattern may be absolute
        if not matches:
            raise TracekitError(
                "no file matches this pattern", path=text, hint="use ** to search subfolders, such as **/*.nsys-rep"
            )
        return [Path(match) for match in matches]
    if not os.path.lexists(path):
        raise FileNotFoundError(2, os.strerror(2), str(path))
    return [path]


def _is_candidate_name(name: str) -> bool:
    """Return whether a file in a folder is examined: whether it is not hidden, or named like a capture."""
    return not name.startswith(".") or has_capture_suffix(name)


def _check_listed_once(candidates: Iterable[Path]) -> None:
    """Check that no file is listed twice.

    Raises:
        TracekitError: A file is listed twice.
    """
    seen: set[Path] = set()
    for file in candidates:
        real = Path(os.path.realpath(file))
        if real in seen:
            raise TracekitError("the capture is listed twice", path=file, hint="list each capture once")
        seen.add(real)


def _add_local_captures(captures: CapturePaths, candidates: Sequence[Path], format_name: str | None) -> None:
    """Examine files and folders, and add each of them to the captures or to the skipped files."""
    formats: dict[Path, str] = {}
    for path in candidates:
        try:
            formats[path] = _detect_format(path, format_name)
        except (TracekitError, OSError) as e:
            captures.skip(path, e)
    if format_name is None and any(map(_is_profile, formats, formats.values())):
        for path in [path for path, name in formats.items() if not _is_profile(path, name)]:
            captures.skip(path, UnknownFormatError("this is not a profile, as other files are", path=path))
            del formats[path]
    captures.urls.update(dict.fromkeys(formats))
    captures.skip_replaced(formats)


def _is_profile(path: Path, format_name: str) -> bool:
    """Return whether a capture is a profile, rather than exported tables or a folder of logs.

    Exported tables and folders of logs often lie beside profiles, and are captures only if there are no profiles.
    """
    return format_name not in _TABLE_FORMATS and not (format_name == "tfevents" and path.is_dir())


def _detect_format(path: Path, format_name: str | None) -> str:
    """Return the format of a file or folder.

    Args:
        path: The file or folder.
        format_name: Name of the format that the user specified. It is returned for every file with content.

    Raises:
        UnknownFormatError: No reader recognizes the file.
        TracekitError: The file cannot be read.
    """
    if path.is_symlink() and not path.exists():
        raise TracekitError("this is a symbolic link to a file that does not exist", path=path)
    source = Source(path)
    if format_name is not None and (path.is_dir() or source.head.strip(b"\0")):
        return format_name
    if has_capture_suffix(path.name):
        return detection.detect_reader(source).format
    if (reader := detection.find_reader(source)) is None:
        raise UnknownFormatError(detection.UNKNOWN, path=path)  # describing many other files would take long
    return reader.format


def _add_remote_captures(captures: CapturePaths, named: str) -> None:
    """List the files that a URL refers to, and add them to the captures or to the names of other files.

    The files are not read. In a remote folder, only files with the suffix of a format are captures.

    Raises:
        TracekitError: No file matches, a capture is listed twice, or the storage cannot be read.
    """
    suffixes = registry.list_suffixes_of_readers()
    listing = remote.list_url(named)
    if not (listing.files or listing.folders):
        hint = "use a pattern such as **/*.nsys-rep to search subfolders"
        error = TracekitError("no file matches this URL", path=named, hint=hint)
        if not has_capture_suffix(remote.convert_url_to_path(named).name):
            raise error
        captures.skip(remote.convert_url_to_path(named), error)
    for url in sorted(listing.files, key=compute_natural_sort_key):
        path = _create_unique_path(url, captures.urls)
        if url != named and not _is_candidate_name(path.name):
            continue
        if listing.is_folder and not path.name.endswith(suffixes) and not has_capture_suffix(path.name):
            captures.unexamined.append(path)
            continue
        if path in captures.urls:
            raise TracekitError("the capture is listed twice", path=path, hint="list each capture once")
        captures.urls[path] = url
    for url in filter(_is_candidate_name, listing.folders):
        error = UnknownFormatError("this is a folder, not a file", path=url)
        captures.skip(remote.convert_url_to_path(url), error)


def _create_unique_path(url: str, urls: Mapping[Path, str | None]) -> Path:
    """Return the path of a remote file. A number is appended if another URL differs only in its query string."""
    path = remote.convert_url_to_path(url)
    same = [other for p, other in urls.items() if other and remote.convert_url_to_path(other) == path]
    if same and all(other.partition("?")[2] != url.partition("?")[2] for other in same):
        return path.with_name(f"{path.name}#{len(same) + 1}")
    return path


def _is_capture(source: Source) -> bool:
    """Return whether a built-in reader recognizes a folder as one capture."""
    try:
        return any(reader.sniff(source) for reader in registry.iterate_built_in_readers())
    except (TracekitError, OSError):
        return False
