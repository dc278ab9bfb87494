"""Names of people and machines: which are learned, where they are overwritten, and that nothing else is."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_rep import message
from tracekit.errors import CorruptTraceError
from tracekit.readers.common.damage import Damage
from tracekit.readers.redaction import matcher, state
from tracekit.readers.redaction.matcher import PrivateValueMatcher, is_text, search_in_batches
from tracekit.readers.redaction.nsys_rep.messages import create_message_editor, edit_message, iterate_field_spans
from tracekit.readers.redaction.patterns import (
    ADDRESS,
    COMMAND,
    EMAIL,
    ENVIRONMENT,
    HOST,
    IDENTIFIER,
    KINDS,
    MENTION,
    NETWORK,
    PATH,
    SECRET,
    USER,
    is_environment,
)
from tracekit.readers.redaction.pseudonyms import Pseudonyms
from tracekit.readers.redaction.state import MAX_NAMES, MAX_VALUES, Redaction, extract_program_name

words = st.text("ab_-1", min_size=1, max_size=4).map(str.encode)
texts = st.lists(words | st.sampled_from([b" ", b"/", b".", b"\xc3\xa9", b":"]), max_size=12).map(b"".join)


def learned(kind: str, value: bytes) -> set[bytes]:
    """The names and other texts that a value gives away, in small letters."""
    redaction = Redaction(Path("made"))
    redaction.collect_names(kind, value)
    return set(redaction.build_matcher().literals)


@pytest.mark.parametrize(
    ("kind", "value", "names"),
    [
        (HOST, b"gpu17", {b"gpu17"}),
        (HOST, b"gpu17.cluster.example", {b"gpu17.cluster.example", b"gpu17", b"cluster.example"}),
        (HOST, b"localhost.localdomain", set()),
        (HOST, b"10.0.0.7", {b"10.0.0.7"}),
        (HOST, b"x", set()),
        (HOST, b"redacted-0123456789ab", {b"redacted-0123456789ab"}),
        (USER, b"alice", {b"alice"}),
        (USER, b"root", set()),
        (USER, b"max", set()),
        (USER, b"xxxxx", set()),
        (USER, b"1042", set()),
        (USER, b"20231042", {b"20231042"}),
        (USER, b"CORP\\alice", {b"corp", b"alice"}),
        (USER, b"alice@example.org", {b"alice", b"example.org"}),
        (USER, b"Alice Doe", {b"alice doe"}),
        (ENVIRONMENT, b"PATH=/bin\0USER=alice\0HOSTNAME=gpu17\0HOME=/data/bob\0", {b"alice", b"gpu17", b"bob"}),
        (ENVIRONMENT, b"HOME=/workspace;LOGNAME=alice;NAME=other", {b"alice"}),
        (ENVIRONMENT, b'USER="alice"', {b"alice"}),
        (ENVIRONMENT, b"env: USER=alice, HOME=/home/bob", {b"alice", b"bob"}),
        (ENVIRONMENT, b"environ({'PATH': '/bin', 'USER': 'alice'})", {b"alice"}),
        (ENVIRONMENT, b'{"HOSTNAME": "gpu17", "USER": "alice"}', {b"gpu17", b"alice"}),
        (ENVIRONMENT, b"USERPROFILE=C:\\Users\\bob", {b"bob"}),
        (ENVIRONMENT, b"MY_USER=alice", set()),
        (ENVIRONMENT, b"WANDB_API_KEY=0123456789abcdef", {b"0123456789abcdef"}),
        (ENVIRONMENT, b"DB_PASSWORD=swordfish\0MY_PASS=hunter2\0TOKEN=true\0KEY=1234", {b"swordfish", b"hunter2"}),
        (ENVIRONMENT, b"JOB=falcon-9-static-fire\0N=12345678\0V=12.4.1.123\0LANG=C", {b"falcon-9-static-fire"}),
        (ENVIRONMENT, b"MODEL=resnet50\0MODE=expandable\0TORCH_X=segments:True,a.b.c=12", set()),
        (ENVIRONMENT, b"PATH=/usr/bin:/opt/acme/bin:/usr/games\0PWD=/data/acme", {b"/opt/acme/bin", b"/data/acme"}),
        (COMMAND, b"/home/alice/run.sh --at /data", {b"alice", b"/home/alice"}),
        (COMMAND, b"/opt/acme/bin/x --api-key=sekret99 --password pw123", {b"/opt/acme/bin", b"sekret99", b"pw123"}),
        (COMMAND, b"python3", set()),
        (PATH, b"lib at /home/carol/lib.so", {b"carol"}),
    ],
)  # fmt: skip
def test_names_are_learned_from_what_tells_them(kind: str, value: bytes, names: set[bytes]) -> None:
    assert learned(kind, value) == names


def overwritten(text: bytes, *names: bytes) -> bytes:
    return PrivateValueMatcher(names).redact_copy(text)


def test_names_are_overwritten_however_they_are_written() -> None:
    redaction = Redaction(Path("made"))
    assert redaction.replace_value(USER, b"Alice Doe") == b""
    assert redaction.counts[USER] == 1
    names = redaction.build_matcher()
    assert (
        names.redact_copy(b"Alice Doe, alice doe, ALICE DOE, aLICE doe")
        == b"xxxxxxxxx, xxxxxxxxx, xxxxxxxxx, xxxxxxxxx"
    )


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (b"alice_run3", b"xxxxx_run3"),
        (b"run_of_Alice", b"run_of_xxxxx"),
        (b"ALICE-2", b"xxxxx-2"),
        (b"runAlice", b"runxxxxx"),
        (b"aliceRun", b"xxxxxRun"),
        (b"ALICERun", b"xxxxxRun"),
        (b"DMAAlice", b"DMAxxxxx"),
        (b"alice3", b"xxxxx3"),
        (b"_ZN5alice6kernelEv", b"_ZN5xxxxx6kernelEv"),
        (b"malice chalices ALICEN Malice palicek", b"malice chalices ALICEN Malice palicek"),
        (b"%61lice %41LICE", b"xxxxxxx xxxxxxx"),
        (b"q=%22alice%22", b"q=%22xxxxx%22"),
        (b"by \\u0061lice", b"by xxxxxxxxxx"),
        (b"m%61lice", b"m%61lice"),
        (b"%2Fhome%2Fcarol%2Fa", b"%2Fhome%2Fxxxxx%2Fa"),
        (b"~alice/x ~carol/x Foo::~Bar/x", b"~xxxxx/x ~xxxxx/x Foo::~Bar/x"),
        (b"node7 node70 1node7 xnode7", b"xxxxx node70 1xxxxx xnode7"),
        (b"ed, ED_1 used ed.", b"xx, ED_1 used xx."),
    ],
)  # fmt: skip
def test_names_are_overwritten_as_words_and_as_parts_of_words(text: bytes, made: bytes) -> None:
    assert overwritten(text, b"alice", b"node7", b"ed") == made
    assert len(made) == len(text)


@pytest.mark.parametrize(
    "text", [b"max_pool2d", b"void main_kernel<float>(train)", b"test::reduce_max", b"User", b"user_x"]
)
def test_words_of_programs_are_never_overwritten(text: bytes) -> None:
    redaction = Redaction(Path("made"))
    for user in (b"max", b"main", b"test", b"user", b"train", b"kernel", b"void", b"reduce"):
        redaction.collect_names(USER, user)
    assert redaction.build_matcher().redact_copy(text) == text
    assert redaction.build_matcher().redact_copy(b"/home/max/a") == b"/home/xxx/a"
    assert redaction.build_matcher().redact_copy(b"max@example.org") == b"xxx@xxxxxxx.xxx"


def test_names_with_other_letters_are_overwritten_in_every_spelling() -> None:
    name = "Zoë"
    spellings = ["zoë", "ZOË", "Zoë", "zoe\u0308"]
    for spelling in spellings:
        text = f"run of {spelling} here".encode()
        assert overwritten(text, name.encode()) == b"run of " + b"x" * len(spelling.encode()) + b" here"
    assert overwritten(b"zo%C3%AB", name.encode()) == b"x" * 8


def test_texts_of_two_bytes_a_letter_are_overwritten() -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        data = b"\x01\xff" + "by alice of C:\\Users\\carol\\a".encode(encoding) + b"\xff\x01"
        made = overwritten(data, b"alice")
        assert made == b"\x01\xff" + "by xxxxx of C:\\Users\\xxxxx\\a".encode(encoding) + b"\xff\x01"
        assert PrivateValueMatcher([b"alice"]).find_candidates(data)


def test_more_names_than_a_capture_can_tell_are_refused() -> None:
    environment = b"\0".join(b"USER=name%d" % i for i in range(MAX_NAMES + 1))
    with pytest.raises(
        CorruptTraceError, match=f"^made: the capture has more than {MAX_NAMES} names of hosts and users, which"
    ):
        Redaction(Path("made")).collect_names(ENVIRONMENT, environment)


def test_names_that_begin_with_one_another_are_found_and_very_many_refused() -> None:
    values = [b"zq" + b"-zq" * n for n in range(1, 129)]
    names = PrivateValueMatcher([], values)
    assert names.depth == 128
    for value in values:
        assert names.redact_copy(b"of " + value + b"/b") == b"of " + b"x" * len(value) + b"/b"
    redaction = Redaction(Path("made"))
    redaction.collect_names(ENVIRONMENT, b"".join(b"USER=" + b"a" * n + b"\0" for n in range(2, 131)) + b"PATH=/bin")
    with pytest.raises(
        CorruptTraceError, match="has a chain of more than 128 private names that each begin with the previous one"
    ):
        redaction.build_matcher()


def test_more_values_than_a_capture_can_hold_are_refused() -> None:
    environment = b"\0".join(b"TOKEN%d=secret-%d" % (i, i) for i in range(MAX_VALUES + 1))
    with pytest.raises(
        CorruptTraceError, match=f"^made: the capture has more than {MAX_VALUES} private values, which tracekit"
    ):
        Redaction(Path("made")).collect_names(ENVIRONMENT, environment)


def test_more_variables_than_a_capture_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_VARIABLES", 100)
    with pytest.raises(
        CorruptTraceError, match=r"^made: the environments in the capture have more than 100 variables, which tracekit"
    ):
        Redaction(Path("made")).collect_names(ENVIRONMENT, b"A=1\0" * 101)


parts_of_words = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|.", re.DOTALL)
camels = st.lists(st.sampled_from([b"ab", b"Ab", b"AB", b"aba", b"_", b"1", b" ", b"b", b"B"]), max_size=10).map(
    b"".join
)


@given(st.sets(st.text("ab", min_size=3, max_size=5).map(str.encode), min_size=1), camels)
def test_parts_of_words_are_overwritten_and_nothing_else(names: set[bytes], text: bytes) -> None:
    field_spans = parts_of_words.findall(text)
    out, at = [], 0
    while at < len(field_spans):
        runs = (b"".join(field_spans[at:end]) for end in range(len(field_spans), at, -1))
        run = next((r for r in runs if r.lower() in names), None)
        out.append(field_spans[at] if run is None else b"x" * len(run))
        at += 1 if run is None else len(parts_of_words.findall(run))
    assert PrivateValueMatcher(names).redact_copy(text) == b"".join(out)


@given(st.sets(words), st.sets(words), st.binary(max_size=60) | texts)
def test_overwriting_keeps_the_length_and_needs_no_second_time(
    names: set[bytes], values: set[bytes], data: bytes
) -> None:
    known = PrivateValueMatcher({n for n in names if len(n) > 1}, {v for v in values if len(v) > 1})
    made = known.redact_copy(data)
    assert len(made) == len(data)
    assert known.redact_copy(made) == made
    assert made == data or known.find_candidates(data)


SAMPLES = (
    b"AKIAABCDEFGHIJKLMNOP",
    b"ASIAABCDEFGHIJKLMNOP",
    b"ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    b"github_pat_abcdefghijklmnopqrstuvwxyz",
    b"glpat-abcdefghijklmnopqrst",
    b"hf_abcdefghijklmnopqrstuvwxyz",
    b"xoxb-123456789012-abcdefghij",
    b"sk-abcdefghijklmnopqrstuvwxyz",
    b"AIzaSyA-abcdefghijklmnopqrstuvwxyz01",
    b"nvapi-abcdefghijklmnopqrstuvwxyz",
    b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def_ghi",
    b"-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkqhkiG\n-----END PRIVATE KEY-----",
    b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabcdefgh alice@gpu17",
)


@pytest.mark.parametrize("secret", SAMPLES, ids=range(len(SAMPLES)))
def test_secrets_are_overwritten_by_their_look(secret: bytes) -> None:
    names = PrivateValueMatcher(())
    made, kinds = names.redact(b"with " + secret + b", go")
    assert made == b"with " + b"x" * len(secret) + b", go"
    assert kinds == {SECRET}
    assert names.find_candidates(b"\x0a" + secret + b"\x12")


@pytest.mark.parametrize(
    ("kind", "text", "made"),
    [
        (SECRET, b"password=hunter2 x", b"password=xxxxxxx x"),
        (SECRET, b'{"db_password": "hunter2"}', b'{"db_password": "xxxxxxx"}'),
        (SECRET, b"api_key: 0123abcd", b"api_key: xxxxxxxx"),
        (SECRET, b"token=abcdefgh12345678", b"token=xxxxxxxxxxxxxxxx"),
        (SECRET, b"Authorization: Bearer abcdefgh12345678", b"Authorization: Bearer xxxxxxxxxxxxxxxx"),
        (SECRET, b"https://al:pw@h/x ssh://bob@h/x", b"https://xxxxx@h/x ssh://xxx@h/x"),
        (EMAIL, b"mail alice.b+c@mail.example.org.", b"mail xxxxx.x+x@xxxx.xxxxxxx.xxx."),
        (NETWORK, b"10.1.2.3 and 192.168.7.8:22", b"xx.x.x.x and xxx.xxx.x.x:22"),
        (NETWORK, b"listen 203.0.113.7, http://8.8.8.8/", b"listen xxx.x.xxx.x, http://x.x.x.x/"),
        (NETWORK, b"fe80::1ff:fe23:4567:890a%eth0", b"xxxx::xxx:xxxx:xxxx:xxxx%eth0"),
        (NETWORK, b"2001:db8:0:0:0:0:0:1", b"xxxx:xxx:x:x:x:x:x:x"),
        (ADDRESS, b"mac 00:1a:2b:3c:4d:5e", b"mac xx:xx:xx:xx:xx:xx"),
        (ADDRESS, b"a0-36-9f-3c-4d-5e", b"xx-xx-xx-xx-xx-xx"),
        (ADDRESS, b"guid 0002:c903:00ab:cdef", b"guid xxxx:xxxx:xxxx:xxxx"),
        (IDENTIFIER, b"/docker/" + b"0f" * 32, b"/docker/" + b"x" * 64),
        (PATH, b"at /data/falcon/train.py:9", b"at /data/xxxxxx/train.py:9"),
        (PATH, b"/opt/acme/lib64/libcudart.so.12.4", b"/opt/xxxx/lib64/libcudart.so.12.4"),
        (PATH, b"/acme/python3.12/site-packages/torch/lib/libc10.so",
         b"/xxxx/python3.12/site-packages/torch/lib/libc10.so"),
        (PATH, b"/mnt/falcon/bin/solver", b"/mnt/xxxxxx/bin/solver"),
        (PATH, b"D:\\acme\\x64\\a.dll is", b"D:\\xxxx\\x64\\a.dll is"),
        (PATH, b"\\\\fileserver\\falcon\\a.txt", b"\\\\xxxxxxxxxx\\xxxxxx\\a.txt"),
        (ENVIRONMENT, b"env HOME=/root, USER=alice", b"env " + b"x" * 22),
        (ENVIRONMENT, b"environ({'PATH': '/bin', 'HOME': '/'})", b"environ({" + b"x" * 29),
    ],
)  # fmt: skip
def test_what_identifies_by_its_form_is_overwritten(kind: str, text: bytes, made: bytes) -> None:
    assert PrivateValueMatcher(()).redact(text) == (made, {kind})
    assert PrivateValueMatcher(()).find_candidates(b"\x0a" + text + b"a")


@pytest.mark.parametrize(
    "text",
    [
        b"num_tokens=4096 token: 17 tokens=abcdefgh",
        b"secretly compute",
        b"libcublas.so.12.4.5.8 8.9.2.26 version 10.2.1.243 2025.3.2.474 1.2.3",
        b"127.0.0.1 0.0.0.0 255.255.255.255",
        b"memcpy@@GLIBC_2.14 getty@tty1.service @torch.ops",
        b"00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 12:34:56 64-32-16-64-32-16",
        b"at::native::add::ab::cd(a, b)",
        b"00000000-0000-0000-0000-000000000000",
        b"/features/0/conv2d /module/layer1/net/relu",
        b"/usr/lib/x86_64-linux-gnu/libc.so.6 /opt/nvidia/nsight-systems/2025.3.1/host-linux-x64/libx.so",
        b"see data/falcon/a and ../data/x",
        b"see PATH=/x for more",
        b"sm__inst_executed.sum 3:2 a:b",
    ],
)
def test_what_only_looks_alike_stays(text: bytes) -> None:
    assert PrivateValueMatcher(()).redact_copy(text) == text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (b"/home/alice/train.py", b"/home/xxxxx/train.py"),
        (b"in /home/alice and /home/bob.", b"in /home/xxxxx and /home/xxxx"),
        (b"/Users/Alice/a:/users/bob", b"/Users/xxxxx/a:/users/xxx"),
        (b"C:\\Users\\Alice Doe\\a.py", b"C:\\Users\\xxxxxxxxx\\a.py"),
        (b"C:\\\\Users\\\\Alice\\\\a", b"C:\\\\Users\\\\xxxxx\\\\a"),
        (b"/home/ubuntu/a /home/conda/b", b"/home/ubuntu/a /home/conda/b"),
        (b"('/home/alice', 1)", b"('/home/xxxxx', 1)"),
        (b"/home//alice /home/ parsers/alice", b"/home//xxxxx /home/ parsers/alice"),
        (b"/home/\xc3\xa9t\xc3\xa9/a", b"/home/xxxxx/a"),
        (b"/home/alice/falcon/lib/a.py", b"/home/xxxxx/xxxxxx/lib/a.py"),
    ],
)  # fmt: skip
def test_home_folders_are_overwritten(text: bytes, made: bytes) -> None:
    assert PrivateValueMatcher(()).redact_copy(text) == made


def test_among_numbers_only_what_surely_is_a_name_is_overwritten() -> None:
    names = PrivateValueMatcher([b"bob", b"alice"])
    data = b"\x01\x00alice\x02bob\x00/home/carol\x00/home/dave\x01aalice\x01"
    assert not is_text(data)
    assert names.redact_copy(data) == b"\x01\x00xxxxx\x02bob\x00/home/xxxxx\x00/home/xxxx\x01axxxxx\x01"


def test_texts_are_counted_when_something_is_overwritten() -> None:
    redaction = Redaction(Path("made"))
    redaction.collect_names(USER, b"alice")
    names = redaction.build_matcher()
    assert redaction.overwrite_private_values(names, b"malice") == b"malice"
    assert redaction.overwrite_private_values(names, b"by alice") == b"by xxxxx"
    assert redaction.overwrite_private_values(names, b"by xxxxx") == b"by xxxxx"
    assert redaction.overwrite_private_values(names, b"alice and alice at 10.0.0.7") == b"xxxxx and xxxxx at xx.x.x.x"
    assert redaction.counts == dict.fromkeys(KINDS, 0) | {MENTION: 2, NETWORK: 1}


UUID = b"d98800b1-2c5c-2fd8-49ad-447f376dedaa"


def test_a_uuid_has_one_pseudonym_which_is_a_uuid_and_its_own_pseudonym() -> None:
    pseudonyms = Pseudonyms(b"0123456789abcdef")
    made = pseudonyms.compute_uuid_pseudonym(UUID)
    assert uuid.UUID(made.decode()).version == 8
    assert made.startswith(b"00000000-0000-8")
    assert made == Pseudonyms(b"0123456789abcdef").compute_uuid_pseudonym(UUID)
    assert (
        made
        != Pseudonyms(b"0123456789abcdeg").compute_uuid_pseudonym(UUID)
        != Pseudonyms().compute_uuid_pseudonym(UUID)
        != Pseudonyms().compute_uuid_pseudonym(UUID)
    )
    assert pseudonyms.compute_uuid_pseudonym(UUID.upper()) == made.upper()
    assert pseudonyms.compute_uuid_pseudonym(UUID.replace(b"-", b"_")) == made.replace(b"-", b"_")
    assert pseudonyms.compute_binary_uuid_pseudonym(uuid.UUID(UUID.decode()).bytes) == uuid.UUID(made.decode()).bytes
    assert pseudonyms.compute_uuid_pseudonym(made) == made
    assert pseudonyms.compute_binary_uuid_pseudonym(b"short") == b"short"
    text = PrivateValueMatcher((), (), pseudonyms).redact_copy(b"GPU-" + UUID + b" MIG-" + UUID + b"/1/2 " + UUID)
    assert text == b"GPU-" + made + b" MIG-" + made + b"/1/2 " + made


def test_pseudonyms_of_hosts_and_pci_addresses_keep_their_format() -> None:
    pseudonyms = Pseudonyms(b"0123456789abcdef")
    host = pseudonyms.compute_host_pseudonym(b"gpu17")
    assert re.fullmatch(rb"redacted-[0-9a-f]{12}", host)
    assert (host, b"") == (pseudonyms.compute_host_pseudonym(b"GPU17"), pseudonyms.compute_host_pseudonym(b""))
    assert pseudonyms.compute_host_pseudonym(host) == host != pseudonyms.compute_host_pseudonym(b"gpu18")
    bus = pseudonyms.compute_pci_address_pseudonym(b"0000:3b:00.1")
    assert re.fullmatch(rb"ffff:[0-9a-f]{2}:[01][0-9a-f]\.1", bus)
    assert pseudonyms.compute_pci_address_pseudonym(b"00000000:3B:00.1") == b"ffff" + bus
    assert pseudonyms.compute_pci_address_pseudonym(bus) == bus
    assert pseudonyms.compute_pci_address_pseudonym(b"3b:00") == b"3b:00"


def test_no_two_devices_of_a_capture_share_a_pci_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pseudonyms = Pseudonyms(b"0123456789abcdef")
    monkeypatch.setattr(Pseudonyms, "_compute_keyed_hash", lambda *_: bytes(64))
    assert [pseudonyms.compute_pci_address_pseudonym(b"0000:%02x:00.0" % i) for i in range(3)] == [
        b"ffff:00:%02x.0" % i for i in range(3)
    ]


def test_hosts_become_pseudonyms_and_are_counted_once() -> None:
    redaction = Redaction(Path("made"), b"0123456789abcdef")
    host = redaction.replace_value(HOST, b"gpu17.example")
    assert host == Pseudonyms(b"0123456789abcdef").compute_host_pseudonym(b"gpu17.example")
    assert redaction.replace_value(HOST, host) == host
    assert redaction.counts[HOST] == 1
    assert redaction.build_matcher().literals == {b"gpu17.example", b"gpu17"}


HEAVY = (
    b"a" * 300_000, b"a@" * 150_000, b"1." * 150_000, b"0:" * 150_000, b"00-" * 100_000, b"lxc" * 100_000,
    b"/opt/" * 60_000, b"token=a1" * 40_000, b"://" * 100_000, b"C:\\" * 75_000, b"~a" * 150_000, b"%41" * 100_000,
    b"HOME=" * 60_000, b"0000-" * 60_000, b"eyJaaaaaaaaaa." * 20_000, b"-----BEGIN A-----" * 18_000, b"a_1" * 100_000,
    b"password" * 40_000, b"\\\\a" * 100_000, b"fe80:" * 60_000, b"basic " * 50_000, b"alice" * 60_000,
)  # fmt: skip


@pytest.mark.many(1)
@pytest.mark.parametrize("text", HEAVY, ids=range(len(HEAVY)))
def test_time_grows_with_the_bytes_and_not_faster(text: bytes) -> None:
    names = PrivateValueMatcher([b"alice", b"node7"], [b"/opt/acme/bin"])

    def seconds(data: bytes) -> float:
        began = time.process_time()
        names.find_candidates(data)
        names.redact(data)
        names.redact(b"\x01" + data)
        return time.process_time() - began

    names.find_candidates(b"")
    assert seconds(text) < 20 * max(seconds(text[: len(text) // 4]), 0.05)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b"A=1\0B=2\0", True),
        (b"BASH_FUNC_ml%%=() {  eval\n}\0PATH=/bin", True),
        (b"PATH=/usr/bin:/bin", True),
        (b"LC_NUMERIC=en_US.UTF-8", True),
        (b"PATH=/bin\nHOME=/root\nX=1\n", True),
        (b"some text\nthat tells\nPATH=/bin\nand more", False),
        (b"step=1\nloss=2", False),
        (b"BATCH=4", False),
        (b"wide\0text\0", False),
        (b"void f<(int)4>::operator=(T &)", False),
        (b"", False),
    ],
)  # fmt: skip
def test_environments_are_told_by_their_shape(text: bytes, is_one: bool) -> None:
    assert is_environment(text) is is_one


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/usr/bin/python3", b"python3"),
        (b"./a.out", b"a.out"),
        (b"C:\\Program Files\\app.exe", b"app.exe"),
        (b"\\\\server\\share\\app.exe", b"app.exe"),
        (b"kworker/0:1", b"kworker/0:1"),
        (b"[kthreadd]", b"[kthreadd]"),
    ],
)
def test_programs_keep_their_name(path: bytes, name: bytes) -> None:
    assert extract_program_name(path) == name


values = st.integers(0, (1 << 64) - 1) | st.floats() | st.binary(max_size=20)
messages = st.lists(st.tuples(st.integers(1, 200), values), max_size=8).map(lambda fields: message(*fields))


@given(messages)
def test_parts_cover_a_message(data: bytes) -> None:
    found = list(iterate_field_spans(data))
    assert b"".join(data[p.start : p.end] for p in found) == data
    assert edit_message(data, lambda _, value: value) is data


@given(st.lists(st.tuples(st.integers(1, 4), values), max_size=8), st.binary(max_size=200))
def test_only_the_named_fields_change(fields: list[tuple[int, int | float | bytes]], value: bytes) -> None:
    chosen = {2: lambda _: value}
    expected = message(*((n, value if n == 2 and isinstance(v, bytes) else v) for n, v in fields))
    assert create_message_editor(chosen)(message(*fields)) == expected
    outer = message((1, message(*fields)), (7, 7))
    assert create_message_editor({1: create_message_editor(chosen)})(outer) == message((1, expected), (7, 7))


@given(st.binary(max_size=30))
def test_what_is_no_message_is_said_to_be_damaged(data: bytes) -> None:
    try:
        found = list(iterate_field_spans(data))
    except Damage:
        return
    assert b"".join(data[p.start : p.end] for p in found) == data


@pytest.mark.parametrize("data", [b"\x0b", b"\x0a", b"\x0a\x05abc", b"\x09abc", b"\x08" + b"\xff" * 11, b"\x08\x80"])
def test_damage_is_found(data: bytes) -> None:
    with pytest.raises(Damage):
        list(iterate_field_spans(data))


def test_items_are_searched_together_and_ranges_end_with_their_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "BATCH_BYTES", 6)
    items = [("a", b"x1"), ("b", b""), ("c", b"xx2x"), ("d", b"y"), ("e", b"x")]
    searched: list[bytes] = []

    def find(data: bytes) -> list[tuple[int, int, int]]:
        searched.append(data)
        return [(i, i + 3, 1) for i, byte in enumerate(data) if byte == ord("x")]

    batches = list(search_in_batches(items, find))
    assert searched == [b"x1\0\0xx2x", b"y\0x"]
    assert [item for batch in batches for item in batch.items] == items
    assert [batch.candidates for batch in batches] == [
        {0: [(0, 2, 1)], 2: [(0, 3, 1), (1, 4, 1), (3, 4, 1)]},
        {1: [(0, 1, 1)]},
    ]
