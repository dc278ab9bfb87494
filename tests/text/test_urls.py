"""No message shows the user name, the password, the token or the signature of a URL."""

from __future__ import annotations

import string
import sys
import warnings
from pathlib import Path

import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tracekit import errors
from tracekit.cli import COMMANDS, main
from tracekit.errors import TracekitError
from tracekit.system import remote
from tracekit.text import urls

SECRET = "sEcReT0"
SIGNED = {
    "password": f"https://user:{SECRET}@host.org/run/x.nsys-rep",
    "user name": f"https://{SECRET}@host.org/run/x.nsys-rep",
    "token": f"https://host.org/run/x.nsys-rep?token={SECRET}",
    "S3": f"https://b.s3.amazonaws.com/run/x.nsys-rep?X-Amz-Credential={SECRET}%2F20260101&X-Amz-Signature={SECRET}",
    "S3, version 2": f"https://b.s3.amazonaws.com/run/x.nsys-rep?AWSAccessKeyId={SECRET}&Signature={SECRET}%3D&Expires=1",
    "Google": f"https://storage.googleapis.com/b/run/x.nsys-rep?X-Goog-Signature={SECRET}&X-Goog-Expires=9",
    "Azure": f"https://a.blob.core.windows.net/c/run/x.nsys-rep?sv=2024-01-01&sig={SECRET}%2B%3D&sp=r",
    "fragment": f"https://host.org/run/x.nsys-rep#access_token={SECRET}",
    "parameter": f"https://host.org/run/x.nsys-rep;token={SECRET}",
    "encoded": f"https://host.org/run/x.nsys-rep%3Fsig%3D{SECRET}",
    "keys of S3": f"s3://KEY:{SECRET}/+a@bucket/run/x.nsys-rep",
    "question mark": f"https://user:a?{SECRET}@host.org/run/x.nsys-rep",
    "hash": f"https://user:#{SECRET}@host.org/run/x.nsys-rep",
    "at sign": f"https://user:a@{SECRET}@host.org/run/x.nsys-rep",
    "brackets": f"https://user:[{SECRET}@host.org/run/x.nsys-rep",
    "chain": f"zip://run/x.nsys-rep::https://user:{SECRET}@host.org/run/x.nsys-rep?sig={SECRET}",
    "cache": f"simplecache::https://user:{SECRET}@host.org/run/x.nsys-rep",
    "upper case": f"HTTPS://user:{SECRET}@host.org/run/x.nsys-rep",
    "port": f"ftp://user:{SECRET}@host.org:2121/run/x.nsys-rep",
    "IPv6": f"http://user:{SECRET}@[::1]:8080/run/x.nsys-rep?token={SECRET}",
    "pathlib": f"https:/user:{SECRET}@host.org/run/x.nsys-rep?token={SECRET}",
}


@pytest.fixture(params=SIGNED)
def signed(request: pytest.FixtureRequest) -> str:
    return SIGNED[request.param]


def test_secrets_are_removed_and_the_rest_stays(signed: str) -> None:
    shown = urls.remove_secrets(f"before '{signed}': after")
    assert SECRET not in shown
    assert "run/x.nsys-rep" in shown
    assert shown.startswith("before '")
    assert shown.endswith("': after")


@pytest.mark.parametrize(
    "text",
    [
        "https://host.org/a/b.nsys-rep",
        "see https://host.org/a, or http://host:8080/b.",
        "https://host.org:8443/@scope/package",
        "s3://bucket/run/*.nsys-rep",
        "memory://run/a",
        "http://[::1]:8080/x",
        "C:\\data and C:/data?x=1#2",
        "file:///data/run#1/x?y",
        "std::vector<int>::operator[](a ? b : c) // user:name@host",
        "ratio 1:/2 a@b",
        "",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert urls.remove_secrets(text) == text


@given(
    scheme=st.sampled_from(["https", "http", "s3", "gs", "abfss", "ftp", "sftp", "custom+http"]),
    where=st.sets(st.sampled_from(["user", "password", "query", "fragment"]), min_size=1),
    noise=st.text(string.ascii_letters + string.digits + "-._~!$&()*+,;=:%/?@[]{}|^\\", max_size=12),
    before=st.sampled_from(["", "error: ", "(", "url=", '"', "'", "a::"]),
    after=st.sampled_from(["", ": no such file", ")", '"', "'", "\nHint: x", ", and"]),
)
def test_any_secret_is_removed(scheme: str, where: set[str], noise: str, before: str, after: str) -> None:
    secret = f"{SECRET}{noise}{SECRET}"
    user = secret if "user" in where else "user"
    password = f":{secret}" if "password" in where else ""
    at = f"{user}{password}@" if where & {"user", "password"} else ""
    query = f"?a=1&sig={secret}" if "query" in where else ""
    fragment = f"#{secret}" if "fragment" in where else ""
    if at and any(c in at for c in "/?#[]"):  # such a user name is not valid, and is recognized only by its password
        at = f"user:x{secret}@"
    text = f"{before}{scheme}://{at}host.org/run{query}{fragment}{after}"
    assert SECRET not in urls.remove_secrets(text)


@given(st.text(max_size=200))
def test_any_text_is_accepted_and_changed_once(text: str) -> None:
    shown = urls.remove_secrets(text)
    assert urls.remove_secrets(shown) == shown
    assert urls.remove_assigned_secrets(shown)[:0] == ""


def test_long_text_takes_no_long_time() -> None:
    for text in ("a" * 500_000 + ":/", "https://" * 50_000, "https://a:" + "/@" * 100_000, "::a:/" * 50_000):
        urls.remove_secrets(text)
        urls.remove_assigned_secrets(text[:5000])


@pytest.mark.parametrize(
    "text",
    [
        f"403, message='Forbidden', url='https://h/x?sig={SECRET}'",
        f"headers={{'Authorization': 'Bearer {SECRET}.{SECRET}'}}",
        f"Authorization: Basic {SECRET}==",
        f"aws_secret_access_key = {SECRET}/{SECRET}",
        f"AWSAccessKeyId={SECRET}&Signature={SECRET}",
        f'{{"sessionToken": "{SECRET} {SECRET}"}}',
        f"password='{SECRET} {SECRET}' user=x",
    ],
)
def test_secrets_in_messages_of_other_libraries(text: str) -> None:
    assert SECRET not in urls.remove_assigned_secrets(text)


def test_errors_and_warnings(signed: str) -> None:
    error = TracekitError(f"cannot read {signed}", path=signed, hint=f"open {signed}")
    assert SECRET not in f"{error} {error.message} {error.hint} {error.args} {error!r}"
    if urls.is_url(signed):
        assert SECRET not in str(error.path)
    with pytest.warns(tk.TracekitWarning) as recorded:
        errors.warn(f"cannot read {signed}", path=signed)
    assert SECRET not in str(recorded[0].message)
    assert SECRET not in errors.convert_to_printable_path(signed)
    assert SECRET not in errors.convert_to_printable_path(Path(signed))


def test_paths(signed: str) -> None:
    if urls.is_url(signed):
        path = remote.convert_url_to_path(signed)
        assert SECRET not in str(path)
        assert path.name == "x.nsys-rep"


def test_a_url_in_a_path_is_refused() -> None:
    path = Path(f"https://user:{SECRET}@host.org/run/x.nsys-rep?sig={SECRET}")
    for load in (tk.load, tk.load_many):
        with pytest.raises(TracekitError, match="this is a URL, not the path of a file\nHint: ") as raised:
            load(path)
        assert SECRET not in str(raised.value)


COMMANDS_WITH_INPUTS = sorted(COMMANDS.keys() - {"cache", "formats", "schema"})
ARGUMENTS = {
    "check": ["other"],
    "convert": ["out.json"],
    "diff": ["other"],
    "recipe": ["mpi_sum"],
    "redact": ["out"],
    "rows": ["kernels"],
    "watch": ["--once"],
}


@pytest.mark.parametrize("command", COMMANDS_WITH_INPUTS)
def test_commands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    monkeypatch.chdir(tmp_path)
    for url in (f"http://user:{SECRET}@127.0.0.1:9/x.nsys-rep?sig={SECRET}#{SECRET}", f"gs://{SECRET}@b/x?{SECRET}"):
        for arguments in ([url, *ARGUMENTS.get(command, [])], [*ARGUMENTS.get(command, []), url], [url, f"--{url}"]):
            monkeypatch.setattr(sys, "argv", ["tracekit", command, *arguments])
            with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
                main()
            shown = "".join(capsys.readouterr())
            assert ended.value.code in (1, 2, 4) or (command == "watch" and '"kind":"broken_capture"' in shown)
            assert shown
            assert SECRET not in shown
    assert list(tmp_path.iterdir()) == []
