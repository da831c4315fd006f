"""Look-up of devices: lenient where it is unambiguous; a short form of several says which was taken."""

from __future__ import annotations

import pytest

from validator.tables import devices


@pytest.mark.parametrize("key", devices.device_ids())
def test_every_device_by_its_id_and_its_own_short_form(key: str) -> None:
    assert devices.device(key)[0].id == key
    assert devices.device(key.upper())[0].id == key
    assert all(devices.device(alias)[0].vendor == devices.device(key)[0].vendor for alias in devices.aliases(key))


@pytest.mark.parametrize(
    ("name", "expected", "noted"),
    [
        ("910b", "ascend-910b-64g", True),
        ("4090", "rtx-4090", False),
        ("a100", "a100-80g", True),
        ("RTX 4090", "rtx-4090", False),
    ],
)
def test_short_forms_say_which_was_taken(name: str, expected: str, noted: bool) -> None:
    device, note = devices.device(name)
    assert device.id == expected
    assert (note is not None) == noted
