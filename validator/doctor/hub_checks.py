"""Checks whether the run can get its model and data: caches, the answer of the hub, disk space for the download, locks
of other downloads, and proxies in the environment."""

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
    hub_models,
    is_dataset_cached,
    offline_variable,
    without_credentials,
)
from validator.run.prediction import predict
from validator.run.settings import RunSettings


def check_downloads(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Yield a result for each model or data set that the run cannot load from its hub or cache. Also yield a warning if
    the downloaded model has other tensor shapes than `check` assumes."""
    if run is None:
        return
    yield from _other_shapes(run)
    if any(map(node_environment.is_env_enabled, ("USE_MODELSCOPE_HUB", "USE_OPENMIND_HUB"))):
        return
    if cause := offline_variable():
        yield from _missing_downloads(run, cause)
        return
    for name in _missing_models(run):
        if remedy := _modelscope_remedy(run, name):
            yield warning(f"`{name}` is downloaded from Hugging Face: {remedy}", what="model")


def _missing_models(run: RunSettings) -> list[str]:
    """Return the names of the run's models and adapters that are on a hub and not in the hub's cache."""
    return [name for name in hub_models(run) if not any(cached_folders(run, name))]


def _missing_datasets(run: RunSettings) -> list[str]:
    """Return the names of the run's Hugging Face data sets that are not in the cache of the datasets library."""
    return [name for name in hub_datasets(run) if not is_dataset_cached(name, run.hub_source[1])]


def _other_shapes(run: RunSettings) -> Iterator[CheckResult]:
    """Yield a warning if the model in the local cache has other tensor shapes than the catalogue entry of that name."""
    if run.model is None or not run.model.id or run.model.identified_by:
        return
    if download := hub_caches.cached_model(run.model.name, "config.json", *run.hub_source):
        with suppress(RecipeError):  # a config of images and text, which the catalogue knows by the text's part
            if models.find_model(str(download.folder)).parameters != run.model.parameters:
                shapes = f"the config.json in the {download.hub} cache has other shapes than the catalogue"
                remedy = f"judge it by `explain` with model_name_or_path={download.folder}"
                yield warning(f"{shapes}; {remedy}", what="model")


def _missing_downloads(run: RunSettings, cause: str) -> Iterator[CheckResult]:
    """Yield a result for each model (error) and data set (warning) that is missing in the cache of an offline run.
    `cause` is the environment variable that keeps the run offline, such as HF_HUB_OFFLINE."""
    for name in _missing_models(run):
        folders = hub_caches.huggingface_folders(name, *run.hub_source)
        has_config = any(safe_read.path_kind(place / "config.json") == "file" for place in folders)
        state = (
            "has a config.json in the cache, and no weights" if has_config else "is in no folder and not in the cache"
        )
        default_remedy = "name a folder that holds it, or download it where there is a network"
        remedy = _modelscope_remedy(run, name) or default_remedy
        yield error(f"{cause} is set, and `{name}` {state}: {remedy}", what="model")
    for name in _missing_datasets(run):
        found = f"{cause} is set, and data set `{name}` seems not to be in the cache of datasets"
        yield warning(found, what="model")


def _modelscope_remedy(run: RunSettings, name: str) -> str:
    """Return the advice to use the ModelScope cache (USE_MODELSCOPE_HUB=1) if that cache holds the model; otherwise an
    empty string."""
    is_cached = any(map(holds_weights, hub_caches.modelscope_folders(name, *run.hub_source)))
    return "it is in the ModelScope cache, which the run takes with USE_MODELSCOPE_HUB=1" if is_cached else ""


_TIMEOUT_SECONDS = 3.0
_HUGGING_FACE_URL = "https://huggingface.co"
_MODELSCOPE_URL = "https://www.modelscope.cn"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An HTTP handler that follows no redirection, because any answer shows that the hub can be reached."""

    def redirect_request(self, *_words: Any, **_more: Any) -> None:
        return None


def check_hub(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The hub that a run downloads from: whether it answers, and whether the disk has room for the download.

    Yield a result for each model or data set that is not in the cache yet. Nothing is yielded if everything is in the
    cache, or if the run is offline."""
    if run is None or offline_variable() or node_environment.is_env_enabled("USE_OPENMIND_HUB"):
        return
    names, modelscope = _missing_models(run), node_environment.is_env_enabled("USE_MODELSCOPE_HUB")
    sets = [] if modelscope else _missing_datasets(run)
    yield from _ask_hub([*((name, name) for name in names), *((name, f"datasets/{name}") for name in sets)], context)
    if run.args.get("model_name_or_path") in names and not modelscope:
        yield from _check_cache_space(run)


def _hub_address(path: str, context: CheckContext) -> tuple[str, str]:
    """Return the URL of the hub, and the URL of a page or small file of the model or data set, to test whether the hub
    has it. `path` is the name of a model, or `datasets/` and the name of a data set."""
    if node_environment.is_env_enabled("USE_MODELSCOPE_HUB"):
        return _MODELSCOPE_URL, f"{_MODELSCOPE_URL}/models/{path}"
    endpoint = (context.environment.get("HF_ENDPOINT") or _HUGGING_FACE_URL).rstrip("/")
    return endpoint, f"{endpoint}/{path}/resolve/main/{'README.md' if path.startswith('datasets/') else 'config.json'}"


def _ask_hub(requests: list[tuple[str, str]], context: CheckContext) -> Iterator[CheckResult]:
    """Ask the hub for each model or data set, and yield a result on each answer. Each request is a pair: the name, and
    the path on the hub. If the hub does not answer, yield one error that names all models and data sets not asked for
    yet, and stop."""
    for number, (name, path) in enumerate(requests):
        hub_url, address = _hub_address(path, context)
        endpoint = without_credentials(hub_url)
        answer = _request_status(address)
        if isinstance(answer, str):
            names = ", ".join(f"`{each}`" for each, _ in requests[number:])
            remedy = "set HF_ENDPOINT to a mirror or https_proxy to a proxy, or name a folder that holds it"
            yield error(f"{endpoint} {answer}", f"{names}, not here yet", remedy)
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
    """Return the HTTP status of a HEAD request, or a phrase that says why there was no answer, such as `does not answer
    within 3 seconds`. The request runs in a thread, so that the time limit also covers name resolution."""
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
    """Yield a result that compares the free disk space of the Hugging Face cache with the size of the model's weights;
    an error if the weights do not fit."""
    folder, disk = hub_caches.hub_cache(run.hub_source[1]), predict(run).disk
    weights, free = disk[DiskTerm.BASE] / GIB if disk else 0.0, host.free_disk_gib(Path(folder))
    if free is not None and weights:
        is_short = free < weights
        found, need = f"{free:.1f} GiB free at {folder}", f"{weights:.1f} GiB of weights"
        remedy = "free some, or set HF_HOME to another disk" if is_short else ""
        yield result("error" if is_short else "ok", found, need, remedy, what="hub cache")


def check_download_locks(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Locks of processes that download the model; a run would wait until they are released.

    Yield at most one result for each model whose download holds a lock. The run would wait until that download has
    ended (huggingface_hub, utils/_fixes.py, WeakFileLock). The kernel frees the lock of a dead process. On a file
    system without locks, however, the lock counts as held while its file exists."""
    if run is None:
        return
    for name in hub_models(run):
        folder = hub_caches.hub_cache(run.hub_source[1]) / ".locks" / hub_caches.huggingface_entry(name)
        yield from islice(filter(None, map(_check_download_lock, sorted(folder.glob("*.lock")))), 1)


def _check_download_lock(lock: Path) -> CheckResult | None:
    """Return a warning if another process holds the lock, or None if the lock is free. The test takes a shared lock for
    a moment, which fails if a download holds the exclusive lock."""
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
    """Proxies in the environment that requests of the run would go through.

    Yield a warning if requests to a host nearby would go through a proxy, and a result if the hub's client cannot use a
    SOCKS proxy. Nothing is yielded if no proxy is set."""
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


def _check_socks(name: str, run: RunSettings | None, versions: Mapping[str, str]) -> Iterator[CheckResult]:
    """Yield a result if the HTTP client of huggingface_hub lacks the package for a SOCKS proxy: an error if the run may
    ask the hub or there is no recipe, otherwise a warning. The client is the package httpx from release 1 of
    huggingface_hub on, and the package `requests` before. `name` is the variable that holds the proxy, and `versions`
    are the installed releases of the packages."""
    is_old = versions.get("huggingface-hub", "1").startswith("0.")
    client, support = ("requests", "pysocks") if is_old else ("httpx", "socksio")
    if client in versions and support not in versions:
        needs_hub = run is None or (not offline_variable() and any((*hub_models(run), *hub_datasets(run))))
        found = f"{name} is a SOCKS proxy, which {client} cannot use without {support}: the hub cannot be reached"
        remedy = f'pip install "{client}[socks]", or set an HTTP proxy'
        yield result("error" if needs_hub else "warning", found, support, remedy)


def _proxy_value(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _local_hosts(run: RunSettings | None, context: CheckContext) -> Iterator[str]:
    """Yield each host on this machine or its network to which the run sends requests: a mirror of the hub, a reward
    model behind a URL, or the dashboard of Ray."""
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
    """Return whether the host is a private IP address, or a name without a domain."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def _matches_no_proxy(host: str, words: str) -> bool:
    """Return whether the host is exempt from proxies by `words`, the value of the variable no_proxy. The value is read
    as the Python package `requests` does: it lists ends of host names, addresses and networks; a star exempts every
    host."""
    for word in (one.strip().lstrip(".") for one in words.split(",")):
        if word == "*" or (word and (host == word or host.endswith(f".{word}"))):
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(word, strict=False):
                return True
    return False
