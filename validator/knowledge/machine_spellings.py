"""How people write machines and devices: `8卡910B`, `4090*2`, `H100 SXM5 80GB`. No device is looked up here: the
readings of a text are tried until one names a known device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_CHINESE_NUMBERS = {"单": 1, "一": 1, "双": 2, "两": 2, "二": 2, "四": 4, "八": 8, "十六": 16}
_NUMBER = rf"(?:\d{{1,6}}|{'|'.join(sorted(_CHINESE_NUMBERS, key=len, reverse=True))})"
_TIMES = r" ?[x×*] ?"
_UNIT = r"(?:卡|张卡?|块卡?|片|枚|颗|路|(?:gpu|npu|card|device)s?\b(?: of)?)"
_NODE_UNIT = r"(?:机|台机?器?|节点|(?:node|server|machine)s?\b(?: of)?)"
# Forms of a machine, the plainest first. A form whose device is not known gives way to the next.
_FORMS = (
    rf"(?:(?P<nodes>{_NUMBER}){_TIMES})?(?P<devices>\d{{1,6}}){_TIMES}(?P<name>.+)",
    rf"(?P<nodes>{_NUMBER}) ?{_NODE_UNIT}(?:{_TIMES}|,? )?(?P<devices>{_NUMBER})(?:{_TIMES}| ?{_UNIT} ?| )(?P<name>.+)",
    rf"(?P<devices>{_NUMBER}) ?{_UNIT} ?(?P<name>.+)",
    r"(?P<devices>\d{1,2}) (?P<name>.+)",
    r"(?P<devices>\d{1,2})(?P<name>[a-z].+)",
    rf"(?P<name>.+?){_TIMES}(?P<devices>\d{{1,2}})",
    rf"(?P<name>.+?) ?(?P<devices>{_NUMBER}) ?{_UNIT}",
)
# A server that is sold with eight devices of the name behind the word.
_SERVER_OF_EIGHT = r"[dh]gx[ -](?P<name>.+)"
# Servers that are sold with eight devices and have a name of their own, which is among the short forms of devices.yaml.
_NAMED_SERVERS = (
    rf"(?:(?P<nodes>{_NUMBER})(?: ?{_NODE_UNIT} ?|{_TIMES}| ))?(?P<name>(?:huawei |华为 ?)?atlas[ -]?800[it][ -]?a2)"
)

# Words of product names and of forms of a card that tell no two devices of the table apart.
_IDLE_WORDS = (
    *("nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "huawei", "华为", "blackwell", "hopper", "ampere"),
    *(
        "gpu",
        "gpus",
        "npu",
        "npus",
        "card",
        "graphics",
        "显卡",
        "加速卡",
        "generation",
        "workstation",
        "server",
        "edition",
    ),
    *("pcie", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "oam", "hbm", "hbm2", "hbm2e", "hbm3", "hbm3e"),
)
_SIZE = re.compile(r"(?<![a-z0-9])(\d{1,4}) ?-?g(?:i?b)?(?![a-z0-9])")


class MachineReading(NamedTuple):
    """One way to read a machine: `nodes` servers with `devices` devices each, which are called `name`."""

    nodes: int
    devices: int
    name: str


def machine_readings(text: str) -> Iterator[MachineReading]:
    """Yield the possible readings of a machine, the plainest first. The last one is a single device of this name."""
    words = " ".join(text.replace("＊", "*").split())
    if match := re.fullmatch(_NAMED_SERVERS, words, re.IGNORECASE):
        yield MachineReading(_read_number(match["nodes"]), 8, match["name"])
    for form in _FORMS:
        if match := re.fullmatch(form, words, re.IGNORECASE):
            found = match.groupdict()
            yield MachineReading(_read_number(found.get("nodes")), _read_number(found["devices"]), found["name"])
    if match := re.fullmatch(_SERVER_OF_EIGHT, words, re.IGNORECASE):
        yield MachineReading(1, 8, match["name"])
    yield MachineReading(1, 1, words)


def _read_number(text: str | None) -> int:
    if text is None:
        return 1
    return _CHINESE_NUMBERS[text] if text in _CHINESE_NUMBERS else int(text)


class DeviceWords(NamedTuple):
    """A device's name without what several spellings of it differ in. `name`: letters and digits only, in lower case,
    without the vendor, the form of the card and the memory size. `size`: that size in GB, None if the name has none."""

    name: str
    size: int | None


def device_words(name: str) -> DeviceWords:
    """Return what a spelling of a device's name says, so that `NVIDIA A100-SXM4-80GB` and `a100 (80G)` are the same."""
    text = name.lower().replace("昇腾", "ascend ")
    sizes = _SIZE.findall(text)
    words = re.findall(r"[a-z0-9一-鿿]+", _SIZE.sub(" ", text))
    bare_name = "".join(word for word in words if word not in _IDLE_WORDS)
    return DeviceWords(bare_name, int(sizes[0]) if len(sizes) == 1 else None)
