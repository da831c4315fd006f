"""Can the run get its model and data: caches, the hub's answer, disk space for the download, locks of other downloads,
proxies of the environment."""

from __future__ import annotations

import http.client
import ipaddress
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from validator.doctor.check_result import CheckContext, CheckResult, error, ok, result, warning
from validator.errors import RecipeError, os_reason
from validator.escaping import shell_quote
from validator.knowledge import hub_caches, models, node_environment
from validator.machine import host
from validator.machine.installed_packages import find_installed
from validator.physics.estimate import GIB, DiskTerm
from validator.recipe import atomic_write, safe_read
from validator.run import launch_command
from validator.run.model_files import (
    cached_folders,
    holds_weights,
    hub_datasets,
    hub_env,
    hub_models,
    is_dataset_cached,
    offline_variable,
    without_credentials,
)
from validator.run.prediction import predict
from validator.run.settings import RunSettings


def check_downloads(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line for each model or data set that the run cannot load from its hub or cache, or that it would load in
    another form than `check` has judged."""
    if run is None:
        return
    yield from _other_shapes(run)
    if node_environment.is_env_enabled("USE_MODELSCOPE_HUB"):
        if hub_env(run) and "modelscope" not in find_installed(context.site_packages).versions(["modelscope"]):
            found = "USE_MODELSCOPE_HUB is set and the package is not installed: pip install modelscope"
            yield error(found, what="model")
    elif not node_environment.is_env_enabled("USE_OPENMIND_HUB"):
        if cause := offline_variable():
            yield from _missing_downloads(run, cause)
            return
        for name in _missing_models(run):
            if remedy := _modelscope_remedy(run, name):
                yield warning(f"`{name}` is downloaded from Hugging Face: {remedy}", what="model")


def _missing_models(run: RunSettings) -> list[str]:
    """Return the names of models and adapters that are not in the hub's cache."""
    return [name for name in hub_models(run) if not any(cached_folders(run, name))]


def _missing_datasets(run: RunSettings) -> list[str]:
    """Return the names of data sets that are not in the cache of datasets."""
    return [name for name in hub_datasets(run) if not is_dataset_cached(name, run.hub_source[1])]


def _other_shapes(run: RunSettings) -> Iterator[CheckResult]:
    """Yield a warning if the download of the model has other shapes than the catalogue."""
    if run.model is None or not run.model.id or run.model.identified_by:
        return
    if there := hub_caches.cached_model(run.model.name, "config.json", *run.hub_source):
        with suppress(RecipeError):  # a config of images and text, which the catalogue knows by the text's part
            if models.find_model(str(there.folder)).parameters != run.model.parameters:
                shapes = f"the config.json in the {there.hub} cache has other shapes than the catalogue"
                remedy = f"judge it by `explain` with model_name_or_path={there.folder}"
                yield warning(f"{shapes}; {remedy}", what="model")


def _missing_downloads(run: RunSettings, cause: str) -> Iterator[CheckResult]:
    """Yield what a run without network would not find; `cause` is the variable that takes the network away."""
    for name in _missing_models(run):
        folders = hub_caches.huggingface_folders(name, *run.hub_source)
        known = any(safe_read.path_kind(place / "config.json") == "file" for place in folders)
        state = "has a config.json in the cache, and no weights" if known else "is in no folder and not in the cache"
        other = "name a folder that holds it, or download it where there is a network"
        remedy = _modelscope_remedy(run, name) or other
        yield error(f"{cause} is set, and `{name}` {state}: {remedy}", what="model")
    for name in _missing_datasets(run):
        found = f"{cause} is set, and data set `{name}` seems not to be in the cache of datasets"
        yield warning(found, what="model")


def _modelscope_remedy(run: RunSettings, name: str) -> str:
    """Return how to use the download in the ModelScope cache; empty if there is none."""
    there = any(map(holds_weights, hub_caches.modelscope_folders(name, *run.hub_source)))
    return "it is in the ModelScope cache, which the run takes with USE_MODELSCOPE_HUB=1" if there else ""


_TIMEOUT_SECONDS = 3.0
_HUGGING_FACE_URL = "https://huggingface.co"
_MODELSCOPE_URL = "https://www.modelscope.cn"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: any answer of the hub will do."""

    def redirect_request(self, *_words: Any, **_more: Any) -> None:
        return None


def check_hub(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The hub that a run downloads from: whether it answers, and whether the disk has room for the download.

    Nothing if all is here, or if the run is offline.
    """
    if run is None or offline_variable() or node_environment.is_env_enabled("USE_OPENMIND_HUB"):
        return
    names, modelscope = _missing_models(run), node_environment.is_env_enabled("USE_MODELSCOPE_HUB")
    sets = [] if modelscope else _missing_datasets(run)
    yield from _ask_hub([*((name, name) for name in names), *((name, f"datasets/{name}") for name in sets)], context)
    if run.args.get("model_name_or_path") in names and not modelscope:
        yield from _check_cache_space(run)


def _hub_address(path: str, context: CheckContext) -> tuple[str, str]:
    """Return the hub's address, and the address of a file of a model or data set on it."""
    if node_environment.is_env_enabled("USE_MODELSCOPE_HUB"):
        return _MODELSCOPE_URL, f"{_MODELSCOPE_URL}/models/{path}"
    endpoint = (context.environment.get("HF_ENDPOINT") or _HUGGING_FACE_URL).rstrip("/")
    return endpoint, f"{endpoint}/{path}/resolve/main/{'README.md' if path.startswith('datasets/') else 'config.json'}"


def _ask_hub(wanted: list[tuple[str, str]], context: CheckContext) -> Iterator[CheckResult]:
    """Ask for each model or data set; if the hub does not answer, one line stands for all that are left."""
    for number, (name, path) in enumerate(wanted):
        there, address = _hub_address(path, context)
        endpoint = without_credentials(there)
        answer = _request_status(address)
        if isinstance(answer, str):
            left = ", ".join(f"`{each}`" for each, _ in wanted[number:])
            remedy = "set HF_ENDPOINT to a mirror or https_proxy to a proxy, or name a folder that holds it"
            yield error(f"{endpoint} {answer}", f"{left}, not here yet", remedy)
            return
        download = f"`{name}`, not here yet"
        if answer in (401, 403):
            remedy = "accept its licence on the hub and `hf auth login`, or correct the name"
            found = f"{endpoint} answers {answer}: the repository is gated, or the name is wrong"
            yield warning(found, download, remedy)
        elif answer == 404:
            yield warning(f"{endpoint} does not know it", download, "correct the name")
        else:
            yield ok(f"{endpoint} answers", download)


def _request_status(address: str) -> int | str:
    """Return the status, or a sentence why there is none. The thread's time limit also covers name resolution."""
    pool = ThreadPoolExecutor(1)
    request = pool.submit(_send_head_request, address)
    pool.shutdown(wait=False)
    try:
        return request.result(_TIMEOUT_SECONDS)
    except (OSError, ValueError, http.client.HTTPException) as err:
        reason = getattr(err, "reason", err)
        if isinstance(reason, TimeoutError):  # of the thread, or of the connection
            return f"does not answer within {_TIMEOUT_SECONDS:.0f} seconds"
        return f"cannot be reached: {os_reason(reason) if isinstance(reason, OSError) else reason}"


def _send_head_request(address: str) -> int:
    request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "lmf-recipes"})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as err:
        return err.code


def _check_cache_space(run: RunSettings) -> Iterator[CheckResult]:
    """Compare free disk with the weights that go into the cache of Hugging Face."""
    folder, disk = hub_caches.hub_cache(run.hub_source[1]), predict(run).disk
    weights, free = disk[DiskTerm.BASE] / GIB if disk else 0.0, host.free_disk_gib(Path(folder))
    if free is not None and weights:
        short = free < weights
        found, wanted = f"{free:.1f} GiB free at {folder}", f"{weights:.1f} GiB of weights"
        remedy = "free some, or set HF_HOME to another disk" if short else ""
        yield result("error" if short else "ok", found, wanted, remedy, what="hub cache")


def check_download_locks(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Locks of processes that download the model, for whose end a run would wait.

    One for each model. The run waits for a download that has begun (huggingface_hub,
    utils/_fixes.py, WeakFileLock). The kernel frees the lock of a process that is gone, but on a file system without
    locks the mere file counts."""
    if run is None:
        return
    for name in hub_models(run):
        folder = hub_caches.hub_cache(run.hub_source[1]) / ".locks" / hub_caches.huggingface_entry(name)
        yield from islice(filter(None, map(_check_download_lock, sorted(folder.glob("*.lock")))), 1)


def _check_download_lock(lock: Path) -> CheckResult | None:
    """Try to share the lock for a moment: a process that downloads holds it alone."""
    waits = "the run waits until it is free"
    try:
        with lock.open() as file:
            if atomic_write.try_lock(file.fileno(), shared=True):
                return None
    except OSError as err:
        if err.errno not in atomic_write.NO_LOCKS:
            return None
        words = f"{lock} is on a file system without locks, where the file alone counts, and {waits}"
        return warning(words, "", f"if nobody downloads: `rm {shell_quote(str(lock))}`")
    remedy = f"`fuser -v {shell_quote(str(lock))}` names the process that downloads; end it if it hangs"
    return warning(f"{lock} is held, and {waits}", "", remedy)


_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


def check_proxy(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Proxies of the environment that a run's own requests would go through.

    Nothing if no proxy is set.
    """
    proxies = {name: value for name in _PROXY_VARIABLES if (value := _proxy_value(context.environment, name))}
    if not proxies:
        return
    without = _proxy_value(context.environment, "no_proxy")
    caught = [*dict.fromkeys(host for host in _local_hosts(run, context) if not _matches_no_proxy(host, without))]
    if caught:
        found = f"requests to {', '.join(caught)} (local network) would go through {', '.join(proxies)}"
        spared = ",".join(filter(None, (without, *caught)))
        yield warning(found, "no_proxy for local hosts", f"export no_proxy={shell_quote(spared)}")
    if socks := [name for name, value in proxies.items() if value.startswith("socks")]:
        yield from _check_socks(socks[0], run, find_installed(context.site_packages).all_versions)


def _check_socks(name: str, run: RunSettings | None, there: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check that the client of huggingface_hub can use a SOCKS proxy: httpx from release 1 on, requests before. Without
    a request to the hub that is only a warning."""
    old = there.get("huggingface-hub", "1").startswith("0.")
    client, support = ("requests", "pysocks") if old else ("httpx", "socksio")
    if client in there and support not in there:
        asked = run is None or (not offline_variable() and any((*hub_models(run), *hub_datasets(run))))
        found = f"{name} is a SOCKS proxy, which {client} cannot use without {support}: the hub cannot be reached"
        remedy = f'pip install "{client}[socks]", or set an HTTP proxy'
        yield result("error" if asked else "warning", found, support, remedy)


def _proxy_value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _local_hosts(run: RunSettings | None, context: CheckContext) -> Iterator[str]:
    """Yield hosts of this machine or its network that the run sends requests to: a mirror of the hub, a reward model
    behind an address, the dashboard of Ray."""
    addresses = [context.environment.get("HF_ENDPOINT", "")]
    if run and run.args.get("reward_model_type") == "api":
        addresses.append(str(run.args.get("reward_model")))
    if launch_command.uses_ray():
        addresses.append("http://127.0.0.1:8265")
    for address in addresses:
        host = urlsplit(address).hostname if "://" in address else None
        if host and _is_local(host):
            yield host


def _is_local(host: str) -> bool:
    """Return whether the host has a private address, or a name without a domain."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def _matches_no_proxy(host: str, words: str) -> bool:
    """Return whether no_proxy means the host. requests reads ends of names, addresses, networks; a star is all."""
    for word in (one.strip().lstrip(".") for one in words.split(",")):
        if word == "*" or (word and (host == word or host.endswith(f".{word}"))):
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(word, strict=False):
                return True
    return False
