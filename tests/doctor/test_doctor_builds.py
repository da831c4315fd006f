"""What builds were made for: driver, device, CUDA, torch, CANN."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.installed_packages import gpu, site, version_file, write
from support.recordings import RECORDED, show_all

from validator.doctor import ascend_software, torch_build
from validator.doctor.check_result import CheckContext, CheckResult
from validator.doctor.torch_build import read_symbols
from validator.knowledge.tables import yaml_table
from validator.machine import driver, installed_packages, this_machine
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import RunSettings, resolve

AT, FOR = "driver", "or later for torch"
OTHER = "a newer driver, or a build of torch for CUDA"
LACKS = "has no kernels for compute capability"
RECIPE = "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\n"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    show_all(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(driver, "_EXTRA_FOLDERS", ())


def told(lines: list[CheckResult]) -> str:
    return "\n".join(f"{line.state}: {line.found}; {line.wanted}; {line.remedy}" for line in lines)


@pytest.mark.parametrize(
    ("release", "driver", "capability", "expected"),
    [
        ("2.8.0+cu128", "570.124.06", 9.0, "ok: torch 2.8.0+cu128 with driver 570.124.06"),
        ("2.8.0+cu128", "535.161.08", 8.0, "ok: "),  # one major number of CUDA
        ("2.8.0+cu128", "470.256.02", 8.0, f"error: driver 470.256.02; {AT} 525 {FOR} 2.8.0+cu128 (CUDA 12.8)"),
        ("2.13.0+cu130", "570.124.06", 9.0, f"error: driver 570.124.06; {AT} 580 {FOR} 2.13.0+cu130 (CUDA 13.0); "
         f"{OTHER} 12"),
        ("2.13.0+cpu", "570.124.06", 9.0, "error: torch 2.13.0+cpu is built for CPUs alone"),
        ("2.6.0+cu124", "570.124.06", 12.0, f"error: torch 2.6.0+cu124 {LACKS} 12.0: Blackwell came with CUDA 12.8"),
        ("2.7.0+cu128", "570.124.06", 12.0, "ok: "),
        ("2.13.0+cu130", "580.65.06", 7.0, f"error: torch 2.13.0+cu130 {LACKS} 7.0: CUDA 13 has no Volta and older"),
        ("2.13.0+cu130", "580.65.06", 7.5, "ok: "),
        ("2.7.1+cu126", "580.65.06", 7.0, "ok: "),
        ("2.9.0+cu128", "580.65.06", 7.0, "ok: "),
    ],
)  # fmt: skip
def test_torch_on_a_device(release: str, driver: str, capability: float, expected: str, tmp_path: Path) -> None:
    gpu(tmp_path / "bin", driver, [capability] * 2)
    node = CheckContext(site_packages=site(tmp_path / "site", {"torch": release}))
    lines = [*torch_build.check_torch(None, node)]
    assert len(lines) == 1
    assert told(lines).startswith(expected)


def test_no_device_is_asked_about_for_a_run_on_cpus(tmp_path: Path) -> None:
    gpu(tmp_path / "bin", "570.1", [9.0])
    node = CheckContext(site_packages=site(tmp_path / "site", {"torch": "2.13.0+cpu"}))
    assert [*torch_build.check_torch(resolve(parse_recipe("x.yaml", f"{RECIPE}use_cpu: true\n")), node)] == []


def test_a_driver_before_the_question_for_capabilities(tmp_path: Path) -> None:
    answer = (
        "case $1 in *compute_cap) echo 'Field \"compute_cap\" is not a valid field to query.' ;; *) echo 470.1 ;; esac"
    )
    write(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\n{answer}\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    node = CheckContext(site_packages=site(tmp_path / "site", {"torch": "2.8.0+cu128"}))
    assert told([*torch_build.check_torch(None, node)]).startswith("error: driver 470.1; driver 525 or later")


@pytest.mark.parametrize(
    ("torch", "vision", "expected"),
    [
        ("2.13.0+cpu", "0.28.0+cu130", "is built for CUDA 13.0, torch 2.13.0+cpu for CPUs; a build for CPUs"),
        ("2.13.0+cu130", "0.28.0+cu130", ""),
        ("2.13.0+cu130", "0.28.0+cpu", "is built for CPUs, torch 2.13.0+cu130 for CUDA 13.0"),
        ("2.13.0+cu130", "0.28.0", ""),  # not told
    ],
)  # fmt: skip
def test_torchvision_of_another_kind(torch: str, vision: str, expected: str, tmp_path: Path) -> None:
    files = {"torchvision/version.py": version_file(vision)}
    packages = {"torch": torch, "torchvision": vision.partition("+")[0]}
    lines = told([*torch_build.check_torch(None, CheckContext(site_packages=site(tmp_path, packages, files=files)))])
    assert expected in lines if expected else not lines


def test_bitsandbytes_without_the_library(tmp_path: Path) -> None:
    files = {"bitsandbytes/libbitsandbytes_cuda128.so": "", "bitsandbytes/libbitsandbytes_cuda121.so": ""}
    packages = {"torch": "2.13.0+cu130", "bitsandbytes": "0.45.0"}
    node = CheckContext(site_packages=site(tmp_path / "a", packages, files=files))
    assert told([*torch_build.check_torch(None, node)]).startswith(
        "error: bitsandbytes 0.45.0 has no library for CUDA 13.0"
    )
    unquantized = resolve(parse_recipe("x.yaml", RECIPE))
    assert told([*torch_build.check_torch(unquantized, node)]).startswith("warning: ")
    node = CheckContext(site_packages=site(tmp_path / "b", {**packages, "torch": "2.6.0+cu124"}, files=files))
    assert [*torch_build.check_torch(None, node)] == []


AMD_RECIPE = f"# /// recipe\n# machine: 8xmi300x-192g\n# ///\n{RECIPE}"
ALONE = "is built for CPUs alone, and the devices are"


@pytest.mark.parametrize(
    ("release", "hip", "expected"),
    [
        ("2.8.0+cu128", "None", "error: torch 2.8.0+cu128 is built for CUDA 12.8, and the devices are AMD's; a build"),
        ("2.8.0+cpu", "None", f"error: torch 2.8.0+cpu {ALONE} AMD's"),
        ("2.8.0+rocm6.4", "'6.4.43484-123'", "ok: torch 2.8.0+rocm6.4, for ROCm 6.4"),
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_amd(
    release: str, hip: str, expected: str, here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of AMD's, and on one without devices for a recipe that names AMD's."""
    text = version_file(release).replace("hip: Optional[str] = None", f"hip: Optional[str] = {hip}")
    folders = site(tmp_path / "site", {"torch": "2.8.0"}, files={"torch/version.py": text})
    run = resolve(parse_recipe("x.yaml", AMD_RECIPE))
    node = CheckContext(recipe_machine=run.machine, site_packages=folders)
    if here:
        monkeypatch.setenv("PATH", str(RECORDED / "rocm-smi-8xmi300x"))
        node = CheckContext(machine=this_machine.detect_machine(), site_packages=folders)
    assert told([*torch_build.check_torch(None if here else run, node)]).startswith(expected)


@pytest.mark.parametrize(
    ("release", "machine", "expected"),
    [
        ("2.13.0+cpu", "8xa100-80g", f"error: torch 2.13.0+cpu {ALONE} NVIDIA's; a build for CUDA"),
        ("2.8.0+rocm6.4", "8xa100-80g", "error: torch 2.8.0+rocm6.4 is built for ROCm 6.4, and the devices are NV"),
        ("2.8.0+cu128", "8xa100-80g", "ok: torch 2.8.0+cu128, for CUDA 12.8"),
        ("2.13.0+cpu", "2x48g", ""),
        ("2.13.0+cpu", "8xascend-910b-64g", ""),  # torch_npu has a line of its own
    ],
)
def test_torch_for_a_machine_that_is_not_this_one(release: str, machine: str, expected: str, tmp_path: Path) -> None:
    run = resolve(parse_recipe("x.yaml", RECIPE), machine)
    node = CheckContext(recipe_machine=run.machine, site_packages=site(tmp_path / "site", {"torch": release}))
    lines = told([*torch_build.check_torch(run, node)])
    assert lines.startswith(expected) if expected else not lines


def test_a_torch_that_does_not_say_what_it_is_built_for(tmp_path: Path) -> None:
    """As built from source, into a folder that is not found."""
    run = resolve(parse_recipe("x.yaml", RECIPE), "8xa100-80g")
    folders = site(tmp_path / "site", {"torch": "2.8.0"})
    (tmp_path / "site/torch/version.py").unlink()
    assert [*torch_build.check_torch(run, CheckContext(recipe_machine=run.machine, site_packages=folders))] == []


NPU = {"torch": "2.7.1+cpu", "torch-npu": "2.7.1.post4"}


@pytest.mark.parametrize(
    ("packages", "cann", "states", "says"),
    [
        ({"torch": "2.13.0+cpu"}, "", "error error", "torch_npu 2.7.1.post4 with torch 2.7.1, not 2.13.0+cpu; install"),
        ({"torch": "2.13.0+cpu"}, "", "error error", "error: no CANN; 9.0.0, as LLaMA-Factory is released with; ins"),
        ({"torch": "2.8.0+cpu"}, "9.0.0", "error ok", "sees no NPU; torch_npu 2.8.0.post4 for torch 2.8.0; install"),
        ({}, "", "error error", "with torch 2.7.1; install it as docs/howto/install.md#ascend says"),
        (NPU, "9.0.0", "ok ok", "ok: torch_npu 2.7.1.post4 beside torch 2.7.1+cpu"),
        (NPU, "8.0.RC3", "warning ok", "warning: CANN 8.0.RC3; 9.0.0, for which torch_npu 2.7.1"),
        ({**NPU, "torch": "2.13.0+cpu"}, "9.0.0", "error ok", "beside torch 2.13.0+cpu; torch 2.7.1; install torch"),
        (NPU, "", "error ok", "error: no CANN; 9.0.0; install its toolkit"),
    ],
)
@pytest.mark.parametrize("folder", ["npu-smi-2x910b3", "none"])
def test_ascend_line_by_line(
    folder: str,
    packages: dict[str, str],
    cann: str,
    states: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a server with 910B, and on a machine without devices for a recipe that names them."""
    monkeypatch.setenv("PATH", str(RECORDED / folder))
    for part in ("toolkit", "ops"):
        write(tmp_path / f"cann/ascend_{part}_install.info", f"version={cann}\n")
    run = resolve(parse_recipe("x.yaml", RECIPE), "8xascend-910b-64g")
    environment = {"ASCEND_HOME_PATH": str(tmp_path / "cann")} if cann else {}
    node = CheckContext(
        tmp_path,
        environment,
        machine=this_machine.detect_machine(),
        recipe_machine=run.machine,
        site_packages=site(tmp_path / "site", packages),
    )
    lines = ascend(node, run)
    assert " ".join(line.state for line in lines) == states
    assert says in told(lines)


@pytest.mark.parametrize(
    ("toolkit", "operators", "says"),
    [
        (
            "9.0.0",
            None,
            "warning: no operators (ascend_ops_install.info) beside toolkit 9.0.0; operators",
        ),
        ("9.0.0", "8.5.0", "warning: operators 8.5.0 beside toolkit 9.0.0; operators 9.0.0"),
        ("9.0.0", "9.0.0", ""),
        ("8.3.RC1", None, ""),  # told in another way
        ("", None, ""),
    ],
)
def test_cann_without_operators(toolkit: str, operators: str | None, says: str, tmp_path: Path) -> None:
    """A toolkit alone starts, and stops at the first operator."""
    home = tmp_path / "cann"
    home.mkdir()
    for part, release in (("toolkit", toolkit), ("ops", operators)):
        if release:
            write(home / f"aarch64-linux/ascend_{part}_install.info", f"version={release}\n")
    node = CheckContext(tmp_path, {"ASCEND_HOME_PATH": str(home)}, site_packages=site(tmp_path / "site", NPU))
    lines = [line for line in ascend(node) if "beside toolkit" in line.found]
    assert told(lines).startswith(says) if says else not lines


def test_a_cann_that_only_its_folder_names(tmp_path: Path) -> None:
    (tmp_path / "cann-8.0.RC3").mkdir()
    (tmp_path / "latest").symlink_to("cann-8.0.RC3")
    node = CheckContext(
        tmp_path, {"ASCEND_HOME_PATH": str(tmp_path / "latest")}, site_packages=site(tmp_path / "site", NPU)
    )
    assert "warning: CANN 8.0.RC3; 9.0.0, for which torch_npu 2.7.1.post4" in told(ascend(node))


def test_a_cann_whose_files_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cann-9.0.0/ascend_toolkit_install.info").mkdir(parents=True)  # as good as one of another user
    environment = {"ASCEND_HOME_PATH": str(tmp_path / "cann-9.0.0")}
    node = CheckContext(tmp_path, environment, site_packages=site(tmp_path / "site", NPU))
    assert "ok: CANN 9.0.0 at" in told(ascend(node))


def test_cann_that_pip_has_installed(tmp_path: Path) -> None:
    """Into site-packages, as CANN's pages tell from 8.5 on."""
    info = {"ascend/cann-9.0.0/set_env.sh": "", "ascend/cann-9.0.0/ascend_toolkit_install.info": "version=9.0.0\n"}
    node = CheckContext(tmp_path, {}, site_packages=site(tmp_path / "site", NPU, files=info))
    (line,) = ascend_software.check_cann(None, node)
    assert line.found == "CANN 9.0.0 is installed, but its variables are not set"
    assert line.remedy == f"source {tmp_path}/site/ascend/cann-9.0.0/set_env.sh"


def test_the_sets_of_the_page_go_together() -> None:
    """By LLaMA-Factory's range, the releases of torch that are refused for a model, and the table of CANN."""
    table = yaml_table("together")
    sets = {vendor: each for vendor, each in table["sets"].items() if isinstance(each, dict) and "index" in each}
    assert [*sets] == ["nvidia", "amd", "ascend", "cpu"]
    broken = [entry["releases"] for entry in yaml_table("broken").values() if isinstance(entry.get("releases"), dict)]
    for each in sets.values():
        torch = each["packages"]["torch"]
        assert installed_packages.satisfies_range(">=2.4", torch)
        assert not [one for one in broken if "torch" in one and installed_packages.satisfies_range(one["torch"], torch)]
    npu = sets["ascend"]["packages"]
    assert table["npu"]["releases"][npu["torch-npu"]] == {"torch": npu["torch"], "cann": sets["ascend"]["cann"]}


def test_the_build_here_is_the_one_that_torch_tells() -> None:
    torch = pytest.importorskip("torch")
    here = torch_build.read_build(find_installed(), "torch")
    assert here is not None
    assert (here.release, here.cuda) == (torch.__version__, torch.version.cuda or "")


def ascend(node: CheckContext, run: RunSettings | None = None) -> list[CheckResult]:
    """The lines of Ascend's software, the faults first."""
    lines = [*ascend_software.check_torch_npu(run, node), *ascend_software.check_cann(run, node)]
    return sorted(lines, key=lambda line: line.state == "ok")


def library(folder: Path, name: str, code: str) -> Path:
    """A small real library."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        "g++",
        "-shared",
        "-fPIC",
        "-x",
        "c++",
        "-",
        "-o",
        str(folder / name),
        "-Wl,--unresolved-symbols=ignore-all",
    ]
    subprocess.run(words, input=code.encode(), check=True, env={**os.environ, "PATH": os.defpath})
    return folder / name


@pytest.mark.skipif(shutil.which("g++", path=os.defpath) is None, reason="no compiler")
def test_a_package_that_is_linked_to_another_torch(tmp_path: Path) -> None:
    """SetDevice took one number up to torch 2.1, and two since."""
    packages = {"torch": "2.8.0+cu128", "flash-attn": "2.7.4", "transformers": "4.57.1"}
    folders = site(tmp_path, packages)
    library(tmp_path / "torch/lib", "libc10.so", "namespace c10 { namespace cuda { void SetDevice(int, bool) {} } }")
    needs = (
        "namespace c10 {{ namespace cuda {{ void SetDevice({0}); }} }}\nvoid call() {{ c10::cuda::SetDevice({1}); }}"
    )
    sound = needs.format("int, bool", "0, true")
    made = library(tmp_path, "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so", sound)
    assert read_symbols(made, "_ZN3c10")[0] == {"_ZN3c104cuda9SetDeviceEib"}
    assert [*torch_build.check_compiled_packages(None, CheckContext(site_packages=folders))] == []
    library(tmp_path, made.name, needs.format("int", "0"))
    url = "https://github.com/x/flash_attn-2.7.4+cu12torch2.1cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    write(tmp_path / "flash_attn-2.7.4.dist-info/direct_url.json", f'{{"url": "{url}"}}')
    assert told([*torch_build.check_compiled_packages(None, CheckContext(site_packages=folders))]).startswith(
        "error: flash-attn 2.7.4 for cu12, torch 2.1, cxx11abi FALSE needs `_ZN3c104cuda9SetDeviceEi`, which torch "
        "2.8.0+cu128 lacks; a build for torch 2.8.0+cu128"
    )
    on_cpu = resolve(parse_recipe("x.yaml", f"{RECIPE}use_cpu: true\n"))
    assert [
        line.state for line in torch_build.check_compiled_packages(on_cpu, CheckContext(site_packages=folders))
    ] == ["warning"]
    made.write_text("#!/bin/sh")
    with pytest.raises(ValueError, match="no library"):
        read_symbols(made, "")


@pytest.mark.parametrize(
    ("package", "transformers", "settings", "imported"),
    [
        ("torch-npu", "5.6.0", "use_cpu: true\n", True),
        ("flash-attn", "4.57.1", "", True),
        ("flash-attn", "5.6.0", "", False),
        ("flash-attn", "5.6.0", "flash_attn: fa2\n", True),
        ("flash-attn", "5.6.0", "flash_attn: fa2\nuse_cpu: true\n", False),
        ("xformers", "4.57.1", "", False),
        ("xformers", "4.57.1", "use_unsloth: true\n", True),
    ],
)
def test_what_a_run_imports(package: str, transformers: str, settings: str, imported: bool, tmp_path: Path) -> None:
    there = InstalledPackages(site(tmp_path, {"transformers": transformers}))
    assert torch_build._is_imported(package, resolve(parse_recipe("x.yaml", RECIPE + settings)), there) == imported


def test_real_libraries_of_torch_need_what_its_core_gives() -> None:
    pytest.importorskip("torch")
    given = {path.name: path for path in find_installed().files("torch/lib/*.so")}
    needed = read_symbols(given["libtorch_python.so"], "_ZN3c105Error")[0]
    assert needed <= read_symbols(given["libc10.so"], "_ZN3c10")[1]


ASCEND = {"ASCEND_HOME_PATH": "home"}


@pytest.mark.parametrize(
    ("packages", "cann_release", "variables", "expected"),
    [
        ({"torch": "2.7.1", "torch-npu": "2.7.1.post2"}, "8.5.0", ASCEND, "ok: torch_npu 2.7.1.post2 beside torch"),
        ({"torch": "2.7.1+cpu", "torch-npu": "2.7.1"}, "8.3.RC1.alpha003", ASCEND, "ok: "),
        ({"torch": "2.8.0", "torch-npu": "2.7.1"}, "8.3.RC1", ASCEND, "error: torch_npu 2.7.1 beside torch 2.8.0"),
        ({"torch": "2.7.1", "torch-npu": "2.7.1"}, "8.0.RC3", ASCEND, "warning: CANN 8.0.RC3; 8.3.RC1, for which"),
        ({"torch": "2.7.1", "torch-npu": "2.7.1"}, "8.3.RC1", {}, "error: CANN 8.3.RC1 is installed, but its"),
        ({"torch": "2.7.1", "torch-npu": "2.7.1"}, "", {}, "error: no CANN"),
        ({"torch": "2.7.1"}, "8.3.RC1", ASCEND, ""),
    ],
)  # fmt: skip
def test_torch_npu_and_cann(
    packages: dict[str, str], cann_release: str, variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    home = tmp_path / "usr/local/Ascend/ascend-toolkit/latest"
    if cann_release:
        info = f"package_name=Ascend-cann-toolkit\nversion={cann_release}\narch=aarch64\n"
        for part in ("toolkit", "ops"):
            write(home / f"aarch64-linux/ascend_{part}_install.info", info)
    environment = dict.fromkeys(variables, str(home))
    node = CheckContext(tmp_path, environment, site_packages=site(tmp_path / "site", packages))
    assert told(ascend(node)).startswith(expected)
    if not variables and cann_release:
        assert "ascend-toolkit/set_env.sh" in told(ascend(node))


@pytest.mark.parametrize(
    ("recorded", "cann", "expected"),
    [
        ("npu-smi-8x910b2", "9.0.0", "warning: driver 23.0.7 beside CANN 9.0.0; Ascend HDK 25.0.RC1 or later; install"),
        ("npu-smi-8x910b3-busy", "9.1.0", "warning: driver 24.1.rc2 beside CANN 9.1.0; Ascend HDK 25.2.0 or later"),
        ("npu-smi-2x910b3", "9.0.0", ""),
        ("npu-smi-2x910c", "9.1.0", ""),
        ("npu-smi-8x910b2", "8.0.0", ""),
    ],
)
def test_a_driver_that_cann_does_not_take_is_told(
    recorded: str, cann: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(RECORDED / recorded))
    for part in ("toolkit", "ops"):
        write(tmp_path / f"ascend_{part}_install.info", f"version={cann}\n")
    node = CheckContext(tmp_path, {"ASCEND_HOME_PATH": str(tmp_path)}, site_packages=site(tmp_path / "site", {}))
    faults = [line for line in ascend_software.check_cann(None, node) if line.state != "ok"]
    assert told(faults).startswith(expected)
    assert bool(faults) is bool(expected)


def test_npus_without_torch_npu(tmp_path: Path) -> None:
    write(tmp_path / "bin/npu-smi", "#!/bin/sh\necho 910B\n")
    (tmp_path / "bin/npu-smi").chmod(0o755)
    node = CheckContext(tmp_path, {}, site_packages=site(tmp_path / "site", {"torch": "2.7.1"}))
    assert told(ascend(node)).startswith("error: torch_npu is not installed")


def test_torch_npu_is_released_for_the_torch_of_its_name() -> None:
    for release, entry in yaml_table("together")["npu"]["releases"].items():
        assert str(release).startswith(str(entry["torch"]))
