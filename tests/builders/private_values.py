"""Private values of every kind that ``redact`` promises to remove, in the spellings that are legal for the kind."""

from __future__ import annotations

import string
import uuid
from typing import NamedTuple

from hypothesis import strategies as st

NAMES = ("zaphodb", "müllerin", "张伟明", "o.brien", "özgür_k")
"""Names of users that the captures tell in an environment."""
HOSTS = ("deepthought42", "gpu-node17")


class Private(NamedTuple):
    """A string, and the parts of it that must not be left."""

    text: str
    values: tuple[str, ...]


FEW_CHARACTERS = 5
"""Strings with fewer different characters, such as 000000, occur anywhere by chance."""
ALPHANUMERIC = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def text_of(alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=low, max_size=high or low)


def around(strategy: st.SearchStrategy[Private]) -> st.SearchStrategy[Private]:
    """Words before and after a value."""
    before, after = st.sampled_from(["", "at ", "step_3 (", "训练 "]), st.sampled_from(["", " end", ")", ", x", "\n"])
    return st.builds(lambda a, p, b: Private(a + p.text + b, p.values), before, strategy, after)


def cases(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return strategy.flatmap(lambda text: st.sampled_from([text, text.upper()]))


def one(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[Private]:
    """Strings that must be removed as a whole."""
    return strategy.map(lambda text: Private(text, (text,)))


def _secrets() -> st.SearchStrategy[Private]:
    word = text_of(ALPHANUMERIC + "!#%*+-/=^_~", 6, 24).filter(lambda t: t.strip("xX") and not t.startswith("-"))
    words = st.lists(text_of(ALPHANUMERIC + "äß张;,", 3, 8), min_size=2, max_size=4).map(" ".join)
    name = st.sampled_from(
        ["password", "db_password", "PASSWD", "client-secret", "api_key", "API-KEY", "accessKey",
         "aws_secret_access_key", "hf_token", "AccountKey", "passphrase", "credentials"]
    )  # fmt: skip
    plain = st.tuples(st.sampled_from(["{n}={v}", "{n}: {v}", "--{n} {v}", "--{n}={v}"]), name, word)
    quoted = st.tuples(
        st.sampled_from(
            ['{n}="{v}"', "{n}='{v}'", '"{n}": "{v}"', "'{n}': '{v}'", '--{n} "{v}"', '"--{n}", "{v}"', '{n} = "{v}"']
        ),
        name,
        word | words,
    )
    secret = st.one_of(plain, quoted).filter(lambda t: "xxx" not in t[2].lower() and len(set(t[2])) >= FEW_CHARACTERS)
    return secret.map(lambda t: Private(t[0].format(n=t[1], v=f"{t[2]}q7"), (f"{t[2]}q7",)))


def _later_secrets() -> st.SearchStrategy[Private]:
    """Passwords after ``-p``, short tokens, and secret keys of AWS that only the id of the key tells."""
    word = text_of(string.ascii_lowercase + string.digits, 6, 10).filter(lambda t: len(set(t)) >= FEW_CHARACTERS)
    word = word.map(lambda t: f"{t}q7")
    key = text_of(ALPHANUMERIC + "+/", 40).filter(lambda t: len(set(t)) >= FEW_CHARACTERS)
    upper = text_of(string.ascii_uppercase + string.digits, 16)
    password = st.sampled_from(
        [
            "login -u me -p {}",
            "tool -p={}",
            "tool -p '{}'",
            "mysql -p{}",
            "mysqldump -u root -p{} db",
            "mariadb -h h -p'{}'",
            '["mysql", "-p{}"]',
            "['mysqldump', '-u', 'root', '-p{}']",
            '["sshpass","-p{}","ssh"]',
            "sshpass -p{} ssh h",
        ]
    )
    token = st.sampled_from(
        ["token={}", "TOKEN={}", '"token": "{}"', "wandb_token={}", "x?token={}&a=1", "token = '{}'"]
    )
    aws = st.sampled_from(["AKIA{} {}", "ASIA{}:{}", "AKIA{}, '{}'", "AKIA{}\n{}", "id AKIA{} and {}"])
    return st.builds(lambda f, w: Private(f.format(w), (w,)), password | token, word) | st.builds(
        lambda f, i, k: Private(f.format(i, k), (k, i)), aws, upper, key
    )


def _device_numbers() -> st.SearchStrategy[Private]:
    serial = text_of(string.digits, 13).filter(lambda t: len(set(t)) >= FEW_CHARACTERS)
    number = st.integers(10**17, 2**63).map(str).filter(lambda t: len(set(t)) >= FEW_CHARACTERS)
    numbers = st.sampled_from(['"guid": {}', '{{"password":{}}}', '{{"a": {{"api_key": {}, "b": 1}}}}', "pwd={}"])
    named = st.sampled_from(["serial: {}", '"serial": "{}"', "gpu_serial={}", "Serial Number : {}", "SerialNumber={}"])
    guid = text_of(HEX, 16).filter(lambda t: len(set(t)) >= FEW_CHARACTERS and t[0] != "0")
    guids = st.sampled_from(
        ["guid: 0x{}", "node_guid=0x{}", '"guid": "0x{}"', "port GUID: 0x{}", "sys_image_guid 0x{}"]
    )
    lids = st.sampled_from(["lid: 0x{}", "base lid:\t0x{}", "sm_lid=0x{}", "LID 0x{}"])
    return (
        st.builds(lambda f, v: Private(f.format(v), (v,)), named, serial)
        | st.builds(lambda f, v: Private(f.format(v), (v,)), numbers, number)
        | st.builds(lambda f, v: Private(f.format(v), (v,)), guids, guid)
        | st.builds(lambda f, v: Private(f.format(v[:4]), (f"0x{v[:4]}",)), lids, guid)
        | st.builds(lambda v: Private(f"uuid: {v}", (v,)), guid)
    )


def _tokens() -> st.SearchStrategy[str]:
    upper = string.ascii_uppercase + string.digits
    return st.one_of(
        st.builds(str.__add__, st.sampled_from(["AKIA", "ASIA", "AROA", "AGPA"]), text_of(upper, 16)),
        st.builds(str.__add__, st.sampled_from(["ghp_", "gho_", "ghs_", "hf_", "npm_"]), text_of(ALPHANUMERIC, 36)),
        st.builds(str.__add__, st.sampled_from(["sk-", "sk-proj-", "nvapi-", "glpat-"]), text_of(ALPHANUMERIC, 30)),
        st.builds(str.__add__, st.just("AIza"), text_of(ALPHANUMERIC + "_-", 35)),
        st.builds(str.__add__, st.just("xoxb-"), text_of(ALPHANUMERIC, 24)),
        st.builds("{}8Q~{}".format, text_of(ALPHANUMERIC, 3), text_of(ALPHANUMERIC, 34)),
        st.builds("eyJ{}.{}.{}".format, *(text_of(ALPHANUMERIC, 20) for _ in range(3))),
    )


def _addresses() -> st.SearchStrategy[str]:
    octets = st.tuples(*(st.integers(0, 255) for _ in range(3))).map(lambda o: f"10.{o[0]}.{o[1]}.{o[2]}")
    six = st.ip_addresses(v=6, network="2000::/3") | st.ip_addresses(v=6, network="fe80::/10")
    six |= st.ip_addresses(v=6, network="fc00::/7") | st.ip_addresses(v=6).filter(lambda a: int(a) > 1 << 80)
    spellings = six.flatmap(lambda a: st.sampled_from([a.compressed, a.exploded]))
    mapped = octets.map(lambda a: f"::ffff:{a}")
    return octets | cases(spellings) | mapped | octets.map(lambda a: f"ip-{a.replace('.', '-')}")


def _hardware() -> st.SearchStrategy[str]:
    pairs = st.binary(min_size=6, max_size=6).filter(lambda b: b.hex()[:2] not in "00ff" and not b.hex().isdigit())
    return cases(
        st.one_of(
            pairs.map(lambda b: b.hex(":")),
            pairs.map(lambda b: b.hex("-")),
            pairs.map(lambda b: ".".join((b[:2].hex(), b[2:4].hex(), b[4:].hex()))),
        )
    )


def _uuids() -> st.SearchStrategy[str]:
    ids = st.uuids().filter(lambda u: u.bytes[:6] != bytes(6))
    return cases(
        st.one_of(
            ids.map(str),
            ids.map(lambda u: str(u).replace("-", "_")),
        )
    )


def _plain_uuid(value: uuid.UUID) -> Private:
    return Private(f"uuid={value.hex}", (value.hex,))


def _paths() -> st.SearchStrategy[Private]:
    user = text_of(string.ascii_lowercase, 6, 9).filter(lambda t: t.strip("x")).map(lambda t: f"{t}q")
    form = st.sampled_from(["/home/{}/run.py", "/Users/{}/a/b.py", "C:\\Users\\{}\\a.py", "/data/{}/x.py", "~{}/x.py"])
    return st.builds(lambda f, u: Private(f.format(u), (u,)), form, user)


def _emails() -> st.SearchStrategy[Private]:
    local = text_of(string.ascii_lowercase + "äé.", 6, 12).filter(lambda t: ".." not in t and t.strip(".") == t)
    local = local.map(lambda t: f"{t}q7")  # which no word of a capture ends with
    domain = st.sampled_from(["example.org", "mail.example.co.uk", "bücher.example", "xn--bcher-kva.example"])
    return st.builds(lambda a, d: Private(f"{a}@{d}", (a, d)), local, domain)


def _names() -> st.SearchStrategy[Private]:
    form = st.sampled_from(["{}", "of {} 3", "{}_run", "run-{}", "训练{}完", "{}'s loop", "über {}"])
    spelling = st.sampled_from(NAMES).flatmap(lambda n: st.sampled_from([n, n.upper(), n.title()]))
    return st.builds(lambda f, n: Private(f.format(n), (n,)), form, spelling)


def _environments() -> st.SearchStrategy[Private]:
    value = text_of(ALPHANUMERIC, 8, 16).filter(lambda t: len(set(t)) >= FEW_CHARACTERS)
    form = st.sampled_from(
        ["PATH=/bin\nHOME=/root\nJOB={}\n", "{{'PATH': '/bin', 'HOME': '/', 'JOB': '{}'}}", "HOME=/root USER=a JOB={}"]
    )
    return st.builds(lambda f, v: Private(f.format(f"{v}q7"), (f"{v}q7",)), form, value)


_STRATEGIES: dict[str, st.SearchStrategy[Private]] = {
    "secret": around(_secrets()),
    "token": around(one(_tokens())),
    "later secret": around(_later_secrets()),
    "device number": around(_device_numbers()),
    "credentials": around(
        st.builds(
            lambda u, p: Private(f"https://{u}:{p}@host/x", (f"{u}:{p}",)),
            text_of(ALPHANUMERIC, 5, 8),
            text_of(ALPHANUMERIC + "!$%", 6, 12),
        )
        | text_of(ALPHANUMERIC, 8, 12).map(lambda p: Private(f"redis://:{p}q7@cache:6379/0", (f"{p}q7",)))
    ),
    "network address": around(one(_addresses())),
    "hardware address": around(one(_hardware())),
    "unique id": around(one(_uuids()) | st.uuids().filter(lambda u: u.bytes[:6] != bytes(6)).map(_plain_uuid)),
    "PCI address": around(one(st.builds("0000:{:02x}:{:02x}.0".format, st.integers(1, 254), st.integers(0, 31)))),
    "path": around(_paths()),
    "e-mail address": around(_emails()),
    "name": around(_names()),
    "environment": _environments(),
}
KINDS_OF_VALUES = tuple(_STRATEGIES)


def private_values(kind: str) -> st.SearchStrategy[Private]:
    """Strings with a private value of a kind."""
    return _STRATEGIES[kind]
