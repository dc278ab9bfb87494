"""Recognize URLs, and remove the parts that may be secret before a URL is shown.

A URL may contain a user name and a password, and a query string with a token or a signature, such as those of presigned
URLs of object stores. Every message of tracekit is passed through ``remove_secrets``.
"""

from __future__ import annotations

import re

_SCHEME = "[A-Za-z][A-Za-z0-9+.-]{1,30}"  # at least two characters: C:// is a drive of Windows
_URL = re.compile(f"{_SCHEME}://")
_NETWORK = (
    "https?|ftps?|sftp|ssh|scp|s3a?|s3n|gs|gcs|az|abfss?|adl|wasbs?|hdfs|webhdfs|oss|oci|hf|smb|dav|davs|git|github|"
    "memory|ssl|tcp|tls|wss?"
)
_SHORTENED = re.compile(rf"(?:{_NETWORK}):/[^/]", re.IGNORECASE)
_IN_TEXT = re.compile(
    # pathlib shortens :// to :/, which is accepted after the names of common schemes
    rf"(?P<scheme>{_SCHEME}:/(?=/)|\b(?i:{_NETWORK}):)/"
    # a URL in a chain, such as zip://a::https://host/b.zip, ends before the next one
    rf"(?P<rest>(?:(?!::{_SCHEME}:/)[^\s\"'<>`])*)"
)
_CUT = re.compile("[?#]|%3f|%23", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(:[0-9]+)?")
_PARAMETERS = re.compile(r";[^/]*")
_END = re.compile(r"[:,.;!)\]}]*$")
_PRIVATE_NAMES = (
    "token|secret|passw|pwd|passphrase|signature|sig|credential|apikey|api[_-]key|access[_-]?key|keyid|key[_-]id|"
    "authorization|cookie|session"
)
_ASSIGNED = re.compile(
    rf"(?P<name>\b[\w-]*(?:{_PRIVATE_NAMES})[\w-]*[\"']?\s*[=:]\s*)"
    r"(?:(?:bearer|basic|digest|aws4-hmac-sha256)\s+)?(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)


def is_url(path: object) -> bool:
    """Return whether a path is a URL, which begins with a scheme, such as ``s3://bucket/report.nsys-rep``."""
    return isinstance(path, str) and _URL.match(path) is not None


def is_http(url: str) -> bool:
    """Return whether a URL has the scheme ``http`` or ``https``."""
    return url.partition(":")[0].lower() in ("http", "https")


def is_shortened_url(path: str) -> bool:
    """Return whether a path is a URL in which ``pathlib`` has shortened ``://`` to ``:/``."""
    return _SHORTENED.match(path) is not None


def remove_secrets(text: str) -> str:
    """Return text in which user names, passwords, query strings and fragments of URLs are removed.

    Text without a URL is returned unchanged.
    """
    return _IN_TEXT.sub(_shorten_url, text) if ":/" in text else text


def remove_assigned_secrets(text: str) -> str:
    """Return the text of a message of another library without secrets in URLs, headers and assignments.

    Values are removed after names that contain a word such as ``token``, ``signature`` or ``authorization``.
    """
    return _ASSIGNED.sub(lambda match: f"{match['name']}…", remove_secrets(text))


def _shorten_url(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    if scheme.lower().startswith("file:"):
        return match[0]
    end = _END.search(rest)
    punctuation = end[0] if end is not None and not rest.startswith("[") else ""
    shortened = _shorten(rest)
    return f"{scheme}/{shortened}{punctuation if not shortened.endswith(punctuation) else ''}"


def _shorten(rest: str) -> str:
    """Return the host and the path of a URL, whose scheme was removed."""
    cut = _CUT.search(rest)
    authority, slash, path = rest[: cut.start() if cut else None].partition("/")
    host = authority.rpartition("@")[2]
    if _AUTHORITY.fullmatch(host) is None:
        # a password that contains characters such as / and ? is not valid in a URL, but must not be shown either
        if "@" in rest[len(authority) :]:
            return _shorten(rest.rpartition("@")[2])
        host = host.partition(":")[0]
    return f"{host}{slash}{_PARAMETERS.sub('', path)}"
