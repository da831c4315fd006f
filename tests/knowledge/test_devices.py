"""Look-up of devices: lenient where it is unambiguous; a short form of several says which was taken."""

from __future__ import annotations

import pytest
from support.every import every

from validator.errors import RecipeError
from validator.knowledge import devices
from validator.knowledge.tables import yaml_table
from validator.run import recipe_labels


@every(devices.device_ids())
def test_every_device_by_its_id_and_its_own_short_form(key: str) -> None:
    assert devices.find_device(key)[0].id == key
    assert devices.find_device(key.upper())[0].id == key
    assert all(
        devices.find_device(alias)[0].vendor == devices.find_device(key)[0].vendor
        for alias in devices.device_aliases(key)
    )


def test_each_device_has_a_name_of_its_own_in_file_names() -> None:
    labels = [recipe_labels.device_label(key) for key in devices.device_ids()]
    assert len(set(labels)) == len(labels)


@every(
    [
        ("910b", "ascend-910b-64g", True),
        ("4090", "rtx-4090", False),
        ("a100", "a100-80g", True),
        ("RTX 4090", "rtx-4090", False), ("RTX 4090 D", "rtx-4090d", False), ("4090d", "rtx-4090d", False),
        ("4090-48g", "rtx-4090-48g", False), ("4080", "rtx-4080", False), ("4080s", "rtx-4080", False),
        ("4070ti", "rtx-4070-ti", False), ("4070ti-super", "rtx-4070-ti-super", False), ("3060", "rtx-3060", False),
        ("2080ti", "rtx-2080-ti", False), ("RTX 2080 Ti", "rtx-2080-ti", False),
        ("2080ti-22g", "rtx-2080-ti-22g", False),
        ("a6000ada", "rtx-6000-ada-48g", False), ("6000ada", "rtx-6000-ada-48g", False),
        ("RTX 6000 Ada", "rtx-6000-ada-48g", False), ("pro6000", "rtx-pro-6000-96g", False),
        ("RTX PRO 6000", "rtx-pro-6000-96g", False), ("l20", "l20-48g", False), ("l40", "l40-48g", False),
        ("a40", "a40-48g", False), ("a30", "a30-24g", False), ("a800", "a100-80g", False),
        ("a800-80g", "a100-80g", False), ("h800", "h100-80g", False), ("h800-80g", "h100-80g", False),
        ("h20", "h20-96g", False), ("h20-3e", "h20-141g", False), ("gh200", "gh200-96g", True),
        ("rtx-3060-12g", "rtx-3060", False), ("4090-24gb", "rtx-4090", False),
        ("3090-24gb", "rtx-3090", False),
        ("5080", "rtx-5080", False), ("RTX 5080", "rtx-5080", False), ("rtx-5080-16g", "rtx-5080", False),
        ("5070ti", "rtx-5070-ti", False), ("RTX 5070 Ti", "rtx-5070-ti", False),
        ("4060ti-16g", "rtx-4060-ti-16g", False), ("RTX 4060 Ti 16G", "rtx-4060-ti-16g", False),
        ("5060ti-16gb", "rtx-5060-ti-16g", False), ("gb10", "gb10-128g", False), ("DGX Spark", "gb10-128g", False),
        ("gb200", "gb200-186g", False), ("mi325x", "mi325x-256g", False), ("mi355x", "mi355x-288g", False),
        ("b300", "b300-288g", False), ("mi250", "mi250-64g", False), ("mi250x", "mi250-64g", False),
        ("910b2", "ascend-910b-64g", False), ("910b3", "ascend-910b-64g", False), ("910b4", "ascend-910b-32g", False),
        ("910b4-1", "ascend-910b-64g", False), ("Ascend910B3", "ascend-910b-64g", False),
    ],
)  # fmt: skip
def test_short_forms_say_which_was_taken(name: str, expected: str, noted: bool) -> None:
    device, note = devices.find_device(name)
    assert device.id == expected
    assert (note is not None) == noted


@every(
    [
        ("NVIDIA A100-SXM4-80GB", 80.0, "a100-80g"), ("A100-SXM4-80GB", 79.35, "a100-80g"),
        ("NVIDIA A100-PCIE-40GB", 40.0, "a100-40g"), ("A100-PCIE-40GB", 39.59, "a100-40g"),
        ("NVIDIA A800 80GB PCIe", 80.0, "a100-80g"), ("NVIDIA H800", 79.65, "h100-80g"),
        ("Tesla V100-SXM2-32GB", 31.75, "v100-32g"), ("Tesla V100-PCIE-16GB", 15.78, "v100-16g"),
        ("Tesla T4", 15.0, "t4-16g"), ("GeForce RTX 3090", 23.7, "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", 23.99, "rtx-4090"), (" nvidia geforce rtx 4090 ", 23.99, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", 47.99, "rtx-4090-48g"), ("NVIDIA GeForce RTX 4090 D", 23.99, "rtx-4090d"),
        ("NVIDIA GeForce RTX 4090 D", 47.99, "rtx-4090-48g"), ("NVIDIA GeForce RTX 2080 Ti", 22.0, "rtx-2080-ti-22g"),
        ("GeForce RTX 2080 Ti", 10.76, "rtx-2080-ti"), ("NVIDIA GeForce RTX 4080 SUPER", 15.99, "rtx-4080"),
        ("NVIDIA RTX A6000", 47.99, "a6000-48g"), ("NVIDIA RTX A6000", 44.99, "a6000-48g-ecc"),
        ("NVIDIA RTX 6000 Ada Generation", 47.99, "rtx-6000-ada-48g"), ("NVIDIA L40S", 47.99, "l40s-48g"),
        ("NVIDIA RTX 6000 Ada Generation", 44.99, "rtx-6000-ada-48g-ecc"), ("NVIDIA L20", 44.99, "l20-48g"),
        ("NVIDIA H20", 95.58, "h20-96g"), ("NVIDIA H20", 140.4, "h20-141g"), ("NVIDIA H20-3e", 140.4, "h20-141g"),
        ("NVIDIA GH200 480GB", 95.58, "gh200-96g"), ("NVIDIA B300 SXM6 AC", 268.59, "b300-288g"),
        ("AMD Instinct MI250X / MI250", 63.98, "mi250-64g"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 63.98, "mi250-64g"),
        ("Aqua Vanjaram [Instinct MI300X VF]", 191.69, "mi300x-192g"), ("910B4-1", 64.0, "ascend-910b-64g"),
        ("910B3", 64.0, "ascend-910b-64g"), ("Ascend910B2", 64.0, "ascend-910b-64g"),
        ("910B4", 32.0, "ascend-910b-32g"),
        ("Ascend910", 64.0, "ascend-910c-64g"), ("Ascend910_9382", 64.0, "ascend-910c-64g"),
        ("910ProB", 32.0, "ascend-910a-32g"), ("910B", 32.0, "ascend-910a-32g"),
        ("AMD Instinct MI300X", 191.98, "mi300x-192g"), ("AMD Instinct MI300X OAM", None, "mi300x-192g"),
        ("Tesla T4", None, "t4-16g"),
        ("NVIDIA GeForce RTX 5080", 15.92, "rtx-5080"), ("NVIDIA GeForce RTX 5070 Ti", 15.92, "rtx-5070-ti"),
        ("NVIDIA GeForce RTX 4060 Ti", 16.0, "rtx-4060-ti-16g"), ("NVIDIA GB200", 185.03, "gb200-186g"),
        ("NVIDIA GeForce RTX 5060 Ti", 15.93, "rtx-5060-ti-16g"), ("NVIDIA GB10", None, "gb10-128g"),
        ("NVIDIA GB10", 121.69, "gb10-128g"),  # should a driver print what all of the system has
        ("AMD Instinct MI325X", 255.98, "mi325x-256g"), ("AMD Instinct Mi325X VF", 255.69, "mi325x-256g"),
        ("Aqua Vanjaram [Instinct MI325X]", 255.98, "mi325x-256g"), ("AMD Instinct MI355X", 287.98, "mi355x-288g"),
        ("AMD Instinct MI355 OAM", 287.98, "mi355x-288g"),
    ],
)  # fmt: skip
def test_recognised_by_what_the_tools_print(product: str, memory_gib: float | None, expected: str) -> None:
    assert devices.device_id_of_product(product, memory_gib) == expected


@every([(key, name) for key in devices.device_ids() for name in yaml_table("devices")[key]["products"]])
def test_every_product_of_an_entry_is_recognised(key: str, product: str) -> None:
    assert devices.device_id_of_product(product, yaml_table("devices")[key]["memory_gib"]) == key


@pytest.mark.parametrize(
    ("product", "memory_gib"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", 11.0), ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19.5), ("GRID A100-40C", 40.0),
        ("NVIDIA A100-SXM4-80GB", 40.0), ("Ascend910", 32.0), ("NVIDIA", None),
        ("NVIDIA GeForce RTX 4060 Ti", 8.0), ("NVIDIA GeForce RTX 5060 Ti", 7.96), ("NVIDIA GeForce RTX 5070", 11.94),
        ("AMD Instinct MI350X", 287.98),
        ("NVIDIA GeForce RTX 4090", None), ("NVIDIA GeForce RTX 3060", 8.0), ("", None), ("4090", 24.0),
    ],
)  # fmt: skip
def test_what_no_entry_names_is_not_guessed(product: str, memory_gib: float | None) -> None:
    assert devices.device_id_of_product(product, memory_gib) is None


def test_a_device_by_its_memory_has_less_usable_and_no_vendor() -> None:
    device, note = devices.find_device("48GB")
    assert (device.id, device.memory_gib, device.vendor, note) == ("48g", 48, "unknown", None)
    assert 0.9 * 48 < (device.usable_gib or 0) < 44
    assert device.runtime(expandable=False).evidence == "thin"
    assert devices.device_aliases(device.id) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx4090ti", "; did you mean rtx-4090, rtx-4090d, rtx-4090-48g? any other"),
        ("asend-910b", "; did you mean ascend-910a-32g, ascend-"),
        ("gtx1080", "; others are known, such as rtx-3090, rtx-4090, a100-80g, "),
        ("tpu", "; others are known, such as rtx-3090, "),
        ("cpu-8g", "; did you mean cpu? any other"), ("rtx-3060-8g", "; did you mean rtx-3060? any other goes"),
        ("a1000", "; did you mean a100-40g, a100-80g? any"), ("H100 NVL", "; did you mean h100-80g? any"),
        ("b200-192g", "; did you mean b200-180g? any"), ("a5000", "; did you mean a6000-48g? any"),
    ],
)  # fmt: skip
def test_an_unknown_device_is_told_near_ones_and_the_way_by_memory(name: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        devices.find_device(name)
    assert said in str(caught.value)
    assert str(caught.value).endswith("any other goes by its memory, such as 1x48g")
