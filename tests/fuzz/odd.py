"""Values that nobody means to write, and text that no reader expects."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any


class Raw(str):
    """Text that stands in a file as it is, such as a number of 5,000 digits or a tag of YAML."""


def _nested(opening: str, inside: str, closing: str, depth: int) -> Raw:
    return Raw(opening * depth + inside + closing * depth)


NUMBERS: Sequence[Any] = (
    *(0, 1, -1, 2, 3, 7, 8, 16, 255, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -0.5, 1e-9, 5e-324, 1e15, 1e300, 1.7976931348623157e308),
)
WORDS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1e4",
        "1e999",
        "1_000",
        "007",
        "0x10",
        "12:30:45",
        "2024-01-02",
        "auto",
        "null",
        "none",
        "None",
    ),
    *(
        "true",
        "True",
        "yes",
        "on",
        "nan",
        "inf",
        "-inf",
        "all",
        "lora",
        "full",
        "a,b",
        ",",
        ",,a,,",
        "a b",
        "a=b",
        "#",
        "%s",
        "%",
    ),
    *(
        "{}",
        "{0}",
        "{x}",
        "${x}",
        "${a:${b}}",
        "${oc.env:HOME}",
        "$HOME",
        "`x`",
        "$(x)",
        "!",
        "*",
        "&",
        "[",
        "]",
        "{",
        "}",
        '"',
    ),
    *(
        "'",
        "\\",
        "/",
        ".",
        "..",
        "~",
        "~nobody",
        "../../..",
        "/dev/null",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        "/etc",
    ),
    *(
        "file:///etc/passwd",
        "http://127.0.0.1:1/x",
        "x\ny",
        "x\r\n::error::y",
        "x\ty",
        "\x1b[31mred\x1b[0m",
        "\x00",
        "\x7f",
    ),
    *(
        "\x9b31m",
        "\u202eabc",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ufffd",
        "é",
        "数据",
        "😀",
        "\ud800",
        "e\u0301" * 50,
        "x" * 300,
        "x" * 5000,
    ),
)
JSON = (
    *(
        Raw("NaN"),
        Raw("Infinity"),
        Raw("-Infinity"),
        Raw("1" * 400),
        Raw("9" * 5000),
        Raw("1e400"),
        Raw("-0"),
        Raw("0.1e-500"),
    ),
    *(
        Raw('"\\ud800"'),
        Raw('"\\u0000"'),
        Raw('{"a": 1, "a": 2}'),
        Raw("01"),
        Raw("+1"),
        Raw(".5"),
        Raw("tru"),
        Raw("'x'"),
        Raw(""),
    ),
    *(_nested("[", "", "]", 90), _nested('{"a":', "1", "}", 90), _nested("[", "", "]", 1500), Raw("[" * 3000)),
)
YAML = (
    *(
        Raw('!!int ""'),
        Raw("!!bool x"),
        Raw("!!float x"),
        Raw("!!int 0x"),
        Raw("!!binary x"),
        Raw("!!null x"),
        Raw("!!timestamp x"),
    ),
    *(
        Raw("!!set {a, b}"),
        Raw("!!omap [a: 1]"),
        Raw("!!pairs [a: 1]"),
        Raw("!!str 1"),
        Raw("!!map []"),
        Raw("!!seq {}"),
        Raw("!x y"),
    ),
    *(
        Raw('!!python/object/apply:os.system ["touch owned"]'),
        Raw("!!python/name:os.system"),
        Raw("!<tag:yaml.org,2002:str> x"),
    ),
    *(
        Raw("&a [*a]"),
        Raw("*a"),
        Raw("&a x"),
        Raw("{<<: *a}"),
        Raw("{? [a] : b}"),
        Raw("{? {a: b} : c}"),
        Raw("{1: 2, null: 3}"),
    ),
    *(
        Raw("0o17"),
        Raw("0b11"),
        Raw("1_0"),
        Raw("0x" + "f" * 4000),
        Raw("9" * 5000),
        Raw("190:20:30"),
        Raw("1:60.5"),
        Raw(".inf"),
    ),
    *(
        Raw(".nan"),
        Raw("-.INF"),
        Raw("="),
        Raw("<<"),
        Raw("|\n  x\n  y"),
        Raw(">-\n  x"),
        Raw("- a"),
        Raw("? a"),
        Raw("@x"),
        Raw("%x"),
    ),
    *(
        Raw("2001-02-30"),
        Raw("2001-12-14t21:59:43.10-05:00"),
        Raw("0001-01-01 00:00:00 +23:59"),
        Raw("'x"),
        Raw('"\\x1b[31m"'),
    ),
    *(
        _nested("[", "", "]", 90),
        _nested("{a: ", "b", "}", 90),
        _nested("[", "", "]", 700),
        _nested("${a:", "", "}", 60),
    ),
    *(
        Raw('"${a:' + "x" * 200 + '}"'),
        Raw("[&b x, *b, *b]"),
        Raw("- - - a"),
        Raw("a: b: c"),
        Raw("''"),
        Raw("x # y"),
        Raw("\tx"),
    ),
)


def value(random: Random, raws: Sequence[Raw]) -> Any:
    """An odd value of any type."""
    return random.choice(
        (
            lambda: random.choice(NUMBERS),
            lambda: random.choice(WORDS),
            lambda: random.choice(raws),
            lambda: random.choice(
                (None, True, False, [], {}, [[]], [None], {"": None}, [{}], float("nan"), float("inf"))
            ),
            lambda: random.randint(-(10**6), 10**6),
            lambda: [random.choice(WORDS)] * random.choice((1, 2, 50)),
        )
    )()


def near(random: Random, key: str) -> str:
    """A key with a slip: a letter doubled, lost, swapped or in another case, an underscore as a hyphen."""
    place = random.randrange(len(key) or 1)
    return random.choice(
        (
            key[:place] + key[place + 1 :],
            key[:place] + key[place : place + 1] * 2 + key[place + 1 :],
            key[:place] + key[place + 1 : place + 2] + key[place : place + 1] + key[place + 2 :],
            key.upper(),
            key.replace("_", "-"),
            f"{key} ",
            key + random.choice(WORDS[-22:-1]),
        )
    )
