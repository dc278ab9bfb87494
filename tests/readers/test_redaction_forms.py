"""Every spelling of a private value that has a recognizable form is overwritten, and nothing that looks alike."""

from __future__ import annotations

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.private_values import KINDS_OF_VALUES, NAMES, Private, private_values
from tracekit.readers.redaction.escapes import ESCAPE, decode_escapes, iterate_levels
from tracekit.readers.redaction.matcher import PrivateValueMatcher

MATCHER = PrivateValueMatcher([name.encode() for name in (*NAMES, "alice", "müller", "张伟")])


def redacted(text: str) -> str:
    """Redact a string, which must need no second time and be found by a search of a longer message."""
    data = text.encode()
    made = MATCHER.redact_copy(data)
    assert MATCHER.redact_copy(made) == made
    assert len(made) == len(data)
    assert made == data or all(MATCHER.find_candidates(byte + data + byte) for byte in (b"\n", b"B"))
    return made.decode()


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("2001:db8::1", "xxxx:xxx::x"),
        ("FE80::A", "xxxx::x"),
        ("fe80::1%eth0", "xxxx::x%eth0"),
        ("[2001:DB8::1]:443", "[xxxx:xxx::x]:443"),
        ("http://[1::8]/", "http://[x::x]/"),
        ("::ffff:192.0.2.128", "::xxxx:xxx.x.x.xxx"),
        ("64:ff9b::192.0.2.33", "xx:xxxx::xxx.x.x.xx"),
        ("2001:db8::10.1.2.3", "xxxx:xxx::xx.x.x.x"),
        ("2001:0db8:0000:0000:0000:ff00:0042:8329", ":".join(["xxxx"] * 8)),
        ("1:2:3:4:5:6:7:8", "x:x:x:x:x:x:x:x"),
        ("2001:db8::/32", "xxxx:xxx::/32"),
        ("on fc00:: and ff02::fb", "on xxxx:: and xxxx::xx"),
        ("1::4:5:6:7:8", "x::x:x:x:x:x"),
        ("from_2001:db8::5_to", "from_xxxx:xxx::x_to"),
        ("2001-db8--1.ipv6-literal.net", "xxxx-xxx--x.ipv6-literal.net"),
        ("8.b.d.0.1.0.0.2.ip6.arpa", "x.x.x.x.x.x.x.x.ip6.arpa"),
        ("00-1A-2B-3C-4D-5E 001a.2b3c.4d5e", "xx-xx-xx-xx-xx-xx xxxx.xxxx.xxxx"),
        ("mac_00:1a:2b:3c:4d:5e mac=001a2b3c4d5e", "mac_xx:xx:xx:xx:xx:xx mac=xxxxxxxxxxxx"),
        ("ether 0:1a:2b:3:4:5", "ether x:xx:xx:x:x:x"),
        ("müller@beispiel.de bob@münchen.de", "xxxxxxx@xxxxxxxx.xx xxx@xxxxxxxx.xx"),
        ("o'brien@x.org alice@[10.0.0.1]", "x'xxxxx@x.xxx xxxxx@[xx.x.x.x]"),
        ("bob@xn--e1afmkfd.xn--p1ai", "xxx@xx--xxxxxxxx.xx--xxxx"),
        ('password="correct horse" next', 'password="xxxxxxxxxxxxx" next'),
        (r'password="a \" b" next', 'password="xxxxxx" next'),
        ("'db_password': 'a b c', x", "'db_password': 'xxxxx', x"),
        ("--password hunter2 --x", "--password xxxxxxx --x"),
        ('--password "two words" -v', '--password "xxxxxxxxx" -v'),
        ('["--password", "hunter2"]', '["--password", "xxxxxxx"]'),
        ("['--api-key', 'a b']", "['--api-key', 'xxx']"),
        ("--hf-token abcdef", "--hf-token xxxxxx"),
        ("PGPASSWORD=p@ss:w(or)d!", "PGPASSWORD=xxxxxxxxxxxx"),
        ("f(password=hunter2, x)", "f(password=xxxxxxx, x)"),
        ("Uid=bob;Pwd=Hunter2!;", "Uid=bob;Pwd=xxxxxxxx;"),
        ("Authorization: Digest abcdef", "Authorization: Digest xxxxxx"),
        ("curl -u bob:hunter2 x", "curl -u xxxxxxxxxxx x"),
        ("https://s3/x?sig=abcdefgh%2Fx&y=1", "https://s3/x?sig=xxxxxxxxxxxx&y=1"),
        ("AROAIOSFODNN7EXAMPLE", "x" * 20),
        ("Passwort: geheim1 密码：geheim2 contraseña=geheim3", "Passwort: xxxxxxx 密码：xxxxxxx contraseña=xxxxxxx"),
        ("zip -r -P geheim1 a.zip; 7z x -pgeheim2 a.7z", "zip -r -P xxxxxxx a.zip; 7z x -pxxxxxxx a.7z"),
        ("redis-cli -h h -a geheim1 ping", "redis-cli -h h -a xxxxxxx ping"),
        ("openssl rsa -passin pass:geheim1", "openssl rsa -passin pass:xxxxxxx"),
        ("smbclient //h/s -U bob%geheim1", "smbclient //h/s -U bob%xxxxxxx"),
        ("AZURE_OPENAI_KEY=abcdefg1 x", "AZURE_OPENAI_KEY=xxxxxxxx x"),
        ("AccountKey=" + "Zm9v" * 21 + "Zg==;", "AccountKey=" + "x" * 88 + ";"),
        ("abc8Q~" + "0123456789" * 3 + "abcd", "x" * 40),
        ("/home1/bob/x.py", "/home1/xxx/x.py"),
        ("/Users/Alice Doe/y.py", "/Users/xxxxxxxxx/y.py"),
        (r'{"a": "{\"password\": \"my secret\"}"}', r'{"a": "{\"password\": \"xxxxxxxxx\"}"}'),
        (r"{\"a\": \"{\\\"mac\\\": \\\"00:1a:2b:3c:4d:5e\\\"}\"}",
         r"{\"a\": \"{\\\"mac\\\": \\\"xx:xx:xx:xx:xx:xx\\\"}\"}"),
        ("由alice训练", "由xxxxx训练"),
        ("用户张伟运行", "用户xxxxxx运行"),
        ("herrmüllerrun runMüller MÜLLER", "herrxxxxxxxrun runxxxxxxx xxxxxxx"),
        (r"u\u5f20\u4f1fx %E5%BC%A0%E4%BC%9F", "u" + "x" * 13 + " " + "x" * 18),
        ("trace_id: 094DFF9CD7781F8ADDEAFBA6A8855CA7", None),
    ],
)  # fmt: skip
def test_all_spellings_are_overwritten(text: str, made: str | None) -> None:
    if made is None:
        assert redacted(text).startswith(f"{text[:10]}00000000000080"[:10])
        assert text[10:] not in redacted(text)
    else:
        assert redacted(text) == made


@pytest.mark.parametrize(
    "text",
    [
        ":: ::1 ab::cd a::b::c add::1 at::add x[::2] x[1::2] operator:: de::ad::be",
        "std::vector<c10::Half>::a face::detect dead::beef fade::a(b)",
        "12:34:56 2024:10:05 1102:1102 1:2:3 00:11",
        "bos_token=17 --pad-token x --max-tokens 512 --token 17 next_token: the",
        "secret::detail::foo<int>(bar) credentials(x) password reset tokenizer=auto",
        "malice chalices",
        "forward pass: 3.2 ms SORT_KEY=ascending hash_key=a1b2c3d4 gzip -p x CUDNN_KEY=12345678",
        "1234.5678.9012 64-32-16-64-32-16",
        "memcpy@@GLIBC_2.14 getty@tty1.service",
        r"D:\x64\a.dll",
        r"a\nb \"quoted\" 100%25",
        "void cutlass::Kernel<cutlass_80_tensorop_s16816gemm_bf16_128x256_32x3_tn_align8>(Params)",
    ],
)
def test_what_only_looks_alike_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("kind", KINDS_OF_VALUES)
@given(data=st.data())
def test_no_spelling_of_a_private_value_is_left(kind: str, data: st.DataObject) -> None:
    private: Private = data.draw(private_values(kind))
    levels = list(iterate_levels(redacted(private.text).encode()))
    for value in private.values:
        assert not any(value.encode() in level for level in levels), (kind, private.text)


@pytest.mark.parametrize("kind", KINDS_OF_VALUES)
@given(data=st.data(), depth=st.integers(1, 3), ascii_only=st.booleans())
def test_no_private_value_in_json_in_json_is_left(kind: str, data: st.DataObject, depth: int, ascii_only: bool) -> None:
    private: Private = data.draw(private_values(kind))
    text = json.dumps({"note": private.text}, ensure_ascii=ascii_only)
    for _ in range(depth - 1):
        text = json.dumps({"inner": text, "n": 1}, ensure_ascii=ascii_only)
    made = redacted(text)
    for level in iterate_levels(made.encode()):
        assert not any(value.encode() in level for value in private.values), (kind, text)


@given(st.ip_addresses(v=6).filter(lambda a: not a.is_loopback and int(a) > 1 << 48))
def test_every_address_is_overwritten_in_all_its_spellings(address: ipaddress.IPv6Address) -> None:
    for text in (address.compressed, address.exploded, address.compressed.upper(), f"[{address}]:80", f"{address}/64"):
        assert set(redacted(text)) <= set("x:[]/80 64")


@given(
    st.text(r"""\"'u00%2fFabn/5d83e""", max_size=40),
    st.text('äb\\"\ud83d\ude00'.encode("utf-16", "surrogatepass").decode("utf-16"), max_size=9),
)
def test_decoding_keeps_the_origin_of_each_byte(noise: str, text: str) -> None:
    data = (noise + json.dumps(text)[1:-1]).encode()
    decoded = decode_escapes(data)
    assert len(decoded.text) == len(decoded.starts) == len(decoded.ends)
    assert decoded.text == list(iterate_levels(data))[1 if ESCAPE.search(data) else 0]
    assert decoded.apply_changes(data, decoded.text) == data
    changed = decoded.apply_changes(data, b"x" * len(decoded.text))
    assert changed == b"x" * len(data)
