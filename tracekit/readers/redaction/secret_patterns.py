"""Patterns of secrets: tokens of a known form, values that are assigned to names such as ``password``, and credentials.

The value of a name may be quoted and then contain spaces. It may also be the argument of an option, as in
``--password X`` or ``["--password", "X"]``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.readers.redaction.kinds import SECRET
from tracekit.readers.redaction.pattern import Pattern, overwrite_last_group, overwrite_match, overwrite_with_x

if TYPE_CHECKING:
    from tracekit.readers.redaction.pseudonyms import Pseudonyms

# Tokens of a known form. Each consists of the text that it begins with, and a regular expression for the rest.

_WORD, _HYPHENATED = rb"[0-9A-Za-z]", rb"[\w\-]"
_END = rb"(?![0-9A-Za-z])"
"""End of a token. In messages, the byte after a string may be a letter, so candidates are confirmed without it."""
_FORMS: tuple[tuple[tuple[bytes, ...], bytes], ...] = (
    ((b"AKIA", b"ASIA", b"ABIA", b"ACCA", b"AGPA", b"AIDA", b"AIPA", b"ANPA", b"ANVA", b"APKA", b"AROA", b"ASCA"),
     rb"[0-9A-Z]{16}" + _END),
    ((b"AIza",), _HYPHENATED + rb"{30,255}"),
    ((b"ya29.",), _HYPHENATED + rb"{20,255}"),
    ((b"GOCSPX-",), _HYPHENATED + rb"{20,255}"),
    ((b"GOOG1E",), rb"[0-9A-Z]{18,64}"),
    ((b"LTAI",), _WORD + rb"{12,26}" + _END),
    ((b"AKID",), _WORD + rb"{30,40}" + _END),
    ((b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"hf_", b"npm_", b"gsk_"), _WORD + rb"{20,255}"),
    ((b"shpat_", b"shpca_", b"shppa_", b"shpss_"), _WORD + rb"{20,255}"),
    ((b"github_pat_", b"dckr_pat_", b"dckr_oat_"), rb"\w{20,255}"),
    ((b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glcbt-", b"glsoat-"), rb"[\w\-.]{16,255}"),
    ((b"xoxa-", b"xoxb-", b"xoxe-", b"xoxe.", b"xoxo-", b"xoxp-", b"xoxr-", b"xoxs-", b"xapp-"), rb"[\w\-.]{10,255}"),
    ((b"sk-", b"nvapi-", b"lin_api_", b"ntn_"), _HYPHENATED + rb"{20,255}"),
    ((b"sk_live_", b"sk_test_", b"rk_live_", b"rk_test_", b"pk_live_", b"pk_test_", b"whsec_"), _WORD + rb"{16,255}"),
    ((b"pypi-",), _HYPHENATED + rb"{30,255}"),
    ((b"hvs.", b"hvb.", b"hvr."), _HYPHENATED + rb"{20,255}"),
    ((b"glsa_", b"glc_", b"pat_"), rb"[\w=+/]{30,255}"),
    ((b"dapi",), rb"[0-9a-f]{32}(?:-\d)?" + _END),
    ((b"dop_v1_", b"doo_v1_", b"dor_v1_"), rb"[0-9a-f]{64}"),
    ((b"SG.",), _HYPHENATED + rb"{16,64}\." + _HYPHENATED + rb"{16,64}"),
    ((b"AGE-SECRET-KEY-1",), rb"[0-9A-Z]{40,80}"),
    ((b"r8_",), _WORD + rb"{30,64}"),
    ((b"eyJ",), rb"[\w\-]{8,512}\.[\w\-]{4,8192}(?:\.[\w\-]{0,4096}){0,3}"),
    ((b"-----BEGIN ",),
     rb"[A-Z0-9 ]{1,64}-----(?:[\w+/=\s\\:,.]|-(?!-)){0,16384}(?:-----END [A-Z0-9 ]{1,64}-----)?"),
    ((b"ssh-rsa AAAA", b"ssh-dss AAAA", b"ssh-ed25519 AAAA"), rb"[\w+/=]{8,4096}(?: [^\s\"',;]{1,255})?"),
    ((b"ecdsa-sha2-",), rb"\w{1,32} AAAA[\w+/=]{8,4096}(?: [^\s\"',;]{1,255})?"),
    ((b"hooks.slack.com/services/", b"discord.com/api/webhooks/", b"discordapp.com/api/webhooks/"), rb"[\w\-/]{8,255}"),
)  # fmt: skip
_TOKEN = b"|".join(b"(?:" + b"|".join(map(re.escape, starts)) + b")" + rest for starts, rest in _FORMS)
TOKENS = Pattern(
    SECRET,
    re.compile(rb"(?<![0-9A-Za-z])(?:" + _TOKEN + rb")"),
    overwrite_match,
    search_strings=tuple(start.lower() for starts, _ in _FORMS for start in starts),
    confirm=re.compile(_TOKEN.replace(_END, b"")).match,
)
_AWS_SECRET = (
    rb"A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Za-z])[^\0]{1,80}?(?:(?<![0-9A-Za-z+/])|(?<=\\[nrt]))([0-9A-Za-z+/]{40})"
    rb"(?![0-9A-Za-z+/=])"
)
AWS_SECRETS = Pattern(
    SECRET,
    re.compile(rb"(?<![0-9A-Za-z])" + _AWS_SECRET),
    overwrite_last_group,
    search_strings=(b"akia", b"asia"),
    confirm=re.compile(rb"A(?:KIA|SIA)[0-9A-Z]{16}[^\0]{1,80}?[0-9A-Za-z+/]{40}").match,
)
"""Secret keys without a name that follow the id of an access key, which ``TOKENS`` overwrites afterwards."""
AZURE_SECRETS = Pattern(
    SECRET,
    re.compile(rb"(?<![\w.~\-])[\w.~\-]{3}[78]Q~[\w.~\-]{31,40}(?![\w~\-])|(?<![\w+/])[0-9A-Za-z+/]{86}==(?![\w+/=])"),
    overwrite_match,
    prefilters=((b"~", rb"(?<=[78]Q~)[\w.~\-]{31}"), (b"=", rb"=(?<=[0-9A-Za-z+/]{86}==)")),
)

# Values assigned to names

_TOKENS_OF_TEXT = b"bos eos pad unk sep cls mask next max min num stop start end special image first last new".split()
"""What precedes the word token in the names of numbers and strings that are no secrets."""
_SHORT_TOKEN = (
    b"".join(rb"(?<!" + word + rb"[_\-])" for word in _TOKENS_OF_TEXT)
    + rb"token[\"']?[ \t]{0,2}(?:=>|:=|={1,2}|:(?!:))[ \t]{0,2}[\"']?"
    rb"(?!(?:none|null|true|false|undefined|tensor)(?!\w))((?=[^\s\"'&,;]{0,15}[A-Za-z])[\w./+=@!#$%^*~\-]{4,15}(?![\w./+(\[<]))"
)
SHORT_TOKENS = Pattern(
    SECRET,
    re.compile(rb"(?<![A-Za-z])" + _SHORT_TOKEN, re.IGNORECASE),
    overwrite_last_group,
    search_strings=(b"token",),
    confirm=re.compile(rb"token[\"']?[ \t]{0,2}[=:][ \t=>]{0,3}[\"']?[\w./+=@!#$%^*~\-]{4}", re.IGNORECASE).match,
)

_NAMES_IN_OTHER_LANGUAGES = (
    "passwort|kennwort|contraseña|contrasena|senha|пароль|wachtwoord|lösenord|hasło|motdepasse|mot de passe"
    "|mot_de_passe|密码|密碼|口令|パスワード|비밀번호|암호"
)
_OTHER_LANGUAGES = tuple(_NAMES_IN_OTHER_LANGUAGES.encode().split(b"|"))
"""Words for a password in other languages."""
_NAMED = (
    rb"passw(?:or)?d|passphrase|passcode|secret|credentials?|"
    + b"|".join(_OTHER_LANGUAGES)
    + rb"|(?:api|access|private|account|signing|encryption|storage|master|shared|license|service|secret)[_\-]?key"
    rb"|(?:auth|access|api|hf|github|gitlab|refresh|session|security|bearer|sas|bot)[_\-]?token"
)
PRIVATE_KEY = rb"(?:[\w.]{0,40}[_.\-])?(?:" + _NAMED + rb"|pwd)"
"""Regular expression for the keys of JSON members whose values are secrets, even if they are numbers."""
_SEPARATOR = rb"[\"']?[ \t]{0,2}(?:=>|:=|={1,2}|:(?!:)|\xef\xbc[\x9a\x9d])[ \t]{0,2}"
_QUOTED = rb"[bfru]{0,2}(?:\"((?:[^\"\\\0\r\n]|\\.){1,1024})\"|'((?:[^'\\\0\r\n]|\\.){1,1024})')"
_BACKSLASH = rb"\\(?!\\{0,16}[\"'])"
"""A backslash that does not belong to an escaped quote, which ends a value in JSON that is a string of JSON."""
_UNQUOTED = rb"((?:[^\s\"'&,;\0\\]|" + _BACKSLASH + rb"){4,1024})"
_ASSIGNED = re.compile(
    rb"(?:" + _NAMED + rb")[\w\-]{0,40}" + _SEPARATOR + rb"(?:" + _QUOTED + rb"|[\"']?" + _UNQUOTED + rb")"
    rb"|token" + _SEPARATOR + rb"[\"']?"
    rb"((?=[\w./+\-]{0,255}[A-Za-z])(?=[\w./+\-]{0,255}\d)[\w./+=\-]{16,1024})"
    rb"|(?:bearer|basic)[ \t]{1,2}((?=[\w./+\-]{0,255}\d)[\w./+=~\-]{16,4096})",
    re.IGNORECASE,
)
_CLOSING = {ord(")"): ord("("), ord("]"): ord("["), ord("}"): ord("{"), ord(">"): ord("<")}


def _measure_unquoted_value(value: bytes) -> int:
    """Return the length of a value without quotes, which ends at a closing bracket that is not opened in the value."""
    opened: list[int] = []
    for at, char in enumerate(value):
        if char in _CLOSING.values():
            opened.append(char)
        elif char in _CLOSING and (not opened or opened.pop() != _CLOSING[char]):
            return at
    return len(value)


def _overwrite_value(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite the value that is assigned to a name. The value is the last capture group of the match."""
    text, (start, end) = match.string, match.span(match.lastindex or 0)
    if text[start - 1 : start] not in (b'"', b"'"):
        end = start + _measure_unquoted_value(text[start:end])
    return text[match.start() : start] + overwrite_with_x(text[start:end]) + text[end : match.end()]


_NAME_STRINGS = (
    *(b"passw", b"passphrase", b"passcode", b"secret", b"credential", *_OTHER_LANGUAGES),
    *(
        word + separator + b"key"
        for word in b"api access private account signing encryption storage master shared license service".split()
        for separator in (b"_", b"-", b"")
    ),
)
ASSIGNMENTS = Pattern(
    SECRET,
    _ASSIGNED,
    _overwrite_value,
    search_strings=(*_NAME_STRINGS, b"token", b"bearer ", b"basic "),
    confirm=re.compile(_ASSIGNED.pattern + rb"|token" + _SEPARATOR + rb"[\"']?[^\s\"']", re.IGNORECASE).match,
)
_DATABASE = re.compile(
    rb"(?<![0-9A-Za-z_])pwd[ ]{0,2}=[ ]{0,2}(?:" + _QUOTED + rb"|(?![/~.$%\\]|[A-Za-z]:[/\\])" + _UNQUOTED + rb")"
    rb"|authorization[\"']?[ \t]{0,2}[=:][ \t]{0,2}[\"']?(?:[A-Za-z][\w\-]{2,20}[ \t]{1,2})?((?:[^\s\"',;\\]|"
    + _BACKSLASH
    + rb"){4,4096})"
    rb"|cookie[\"']?[ \t]{0,2}:[ \t]{0,2}[\"']?((?:[^\"'\0\r\n\\]|" + _BACKSLASH + rb"){4,2048})"
    rb"|(?<![\w\-])(?:-u|--(?:proxy-)?user)[ =][\"']?(?!\d{1,9}:\d{1,9}(?!\d))([^\s:\"'/]{1,64}:[^\s\"']{1,256})"
    rb"|(?<![\w\-])sshpass[ ]{1,2}-p[ ]?[\"']?([^\s\"']{1,256})"
    rb"|(?<![\w\-])login[ \t\n]{1,4}[^\s]{1,64}[ \t\n]{1,4}password[ \t]{1,4}([^\s]{1,256})"
    rb"|[?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)|key|token|auth|code)="
    rb"([^&\s\"'<>]{8,4096})"
    rb"|(?<![\w\-])(?:(?:zip|7z[ar]?)[ ][^\0\r\n|;&]{0,100}?-p|redis-cli[^\0\r\n|;&]{0,100}?[ ]-a|wandb[ ]login)"
    rb"[ ]?[\"']?(?!-)([^\s\"']{4,256})"
    rb"|-pass(?:in|out|word)?[ =]pass:([^\s\"']{4,256})"
    rb"|(?<![\w\-])-u[ ]?[\"']?[^\s%\"']{1,64}%([^\s\"']{4,256})"
    rb"|(?-i:(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{0,40}_(?:KEY|PASS|PWD|CREDS?))=[\"']?"
    rb"((?=[^\s\"']{0,255}[A-Za-z])(?=[^\s\"']{0,255}\d)[^\s\"'&,;]{8,1024})",
    re.IGNORECASE,
)
OTHER_ASSIGNMENTS = Pattern(
    SECRET,
    _DATABASE,
    _overwrite_value,
    search_strings=(
        *(b"pwd=", b"pwd =", b"authorization", b"cookie", b"-u ", b"-u=", b"--user ", b"--user=", b"-user ", b"-user="),
        *(b"sshpass", b"login", b"sig=", b"signature=", b"-credential=", b"-token=", b"?key=", b"&key=", b"?token="),
        *(b"&token=", b"?auth=", b"&auth=", b"?code=", b"&code=", b"zip ", b"7z ", b"7za ", b"7zr ", b"redis-cli"),
        *(b"wandb login", b"=pass:", b" pass:", b"_key=", b"_pass=", b"_cred=", b"_creds="),
    ),
)

# Arguments of options

_OTHER_TOKENS = rb"(?:" + b"|".join(_TOKENS_OF_TEXT) + rb")"
_OPTION = re.compile(
    rb"(?<![\w\-])--?(?![\w\-]{0,40}" + _OTHER_TOKENS + rb"[_\-]token)[\w\-]{0,40}?"
    rb"(?:" + _NAMED + rb"|token(?=[\"']?[ \t,=]{1,4}[\"']?[^\s\"']{0,255}[A-Za-z])|pass|pwd)"
    rb"(?:[ \t]{1,4}|=|[\"'][ \t]{0,2},[ \t\r\n]{0,64}(?=[\"']))"
    rb"(?:" + _QUOTED + rb"|(?![\-\"'])((?:[^\s\"'\0\\]|" + _BACKSLASH + rb"){1,1024}))",
    re.IGNORECASE,
)
OPTIONS = Pattern(
    SECRET,
    _OPTION,
    _overwrite_value,
    search_strings=(
        *_NAME_STRINGS,
        *(b"token ", b"token=", b'token"', b"token'", b"-pass ", b"-pass=", b'-pass"', b"-pass'"),
        *(b"-pwd ", b"-pwd=", b'-pwd"', b"-pwd'"),
    ),
    confirm=re.compile(rb"-?[\w\-]{1,50}[\"']?[ \t,=]", re.IGNORECASE).match,
)
_PASSWORD_OPTION = (
    rb"-p(?:[ ]{1,2}[\"']?|=[\"']?|[\"'][ ]{0,2},[ ]{0,8}[\"'])"
    rb"(?![\-/~.$%\\]|[A-Za-z]:[/\\]|[\d:.,\-]{1,32}(?![^\s\"',;]))([^\s\"'\0\\]{4,256})"
)
_MYSQL = rb"(?i:mysql|mariadb|sshpass)[\w\-]{0,24}[^\0\r\n|;&]{0,200}?[ \"']-p[\"']?([^\s\"'\0\\]{1,256})"
PASSWORD_OPTIONS = Pattern(
    SECRET,
    re.compile(rb"(?<![\w\-])(?:" + _PASSWORD_OPTION + rb"|" + _MYSQL + rb")"),
    overwrite_last_group,
    search_strings=(b"-p ", b"-p=", b'-p"', b"-p'", b"mysql", b"mariadb", b"sshpass"),
    confirm=re.compile(_PASSWORD_OPTION + rb"|" + _MYSQL).match,
)
"""Arguments of the option ``-p``. Numbers, such as ports, and paths are no passwords."""
CREDENTIALS = Pattern(
    SECRET,
    re.compile(rb"://(?:[^\s/@:\"'<>]{1,256}(?::[^\s/@\"'<>]{0,1024})?|:[^\s/@\"'<>]{1,1024})@"),
    lambda match, _: b"://" + overwrite_with_x(match[0][3:-1]) + b"@",
    prefilters=((b":", rb"//[^\s/@\"'<>]{1,1281}@"),),
)
