"""Local files that vLLM's flags name: chat templates, parser plugins.

A relative path, or one that begins with `~`, is a file on this machine; it is copied to every host,
where node containers can read it. An absolute path is on the hosts, and stays unchanged.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.errors import ClusterctlError, StepFailed, UsageError, raise_all
from clusterctl.node.documents import ServiceDocument, config_dir
from clusterctl.serving.request import ServiceRequest
from clusterctl.serving.vllm_flags import Argument, parse_arguments
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out

# Flags whose value is one file that `vllm serve` opens
FILE_FLAGS = ("chat-template", "tool-parser-plugin", "reasoning-parser-plugin")

LARGEST = 2**20  # bytes; the longest chat templates have 20 kB

_TEMPLATE = re.compile(r"[{}\n]")  # of a chat template given in place of its file
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY|^PuTTY-User-Key-File|^AGE-SECRET-KEY-", re.MULTILINE
)
_BROUGHT = re.compile(r"[0-9a-f]{16}-[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True)
class BroughtFile:
    """A file to copy. Its path contains its digest, so that a changed file restarts its service."""

    path: str  # On the hosts, and in node containers
    data: bytes


def directory(cluster: str) -> str:
    """Return the directory of copied files on every host."""
    return f"{config_dir(cluster)}/files"


def with_brought(
    request: ServiceRequest, cluster: str, base: Path = Path()
) -> tuple[ServiceRequest, tuple[BroughtFile, ...]]:
    """Return the request with the paths of its files on the hosts, and these files. Relative paths
    start at `base`.

    Raises UsageError for every file that is missing, cannot be read or is too large.
    """
    problems: list[ClusterctlError] = []
    brought: dict[str, BroughtFile] = {}

    def moved(argument: Argument) -> Argument:
        text = argument.values[-1] if argument.values else ""
        if argument.key not in FILE_FLAGS or not text or text.startswith("/"):
            return argument
        if argument.key == "chat-template" and _TEMPLATE.search(text):
            return argument
        try:
            # An unknown user's home stays as it is written, and cannot be read.
            path = base / os.path.expanduser(text)  # noqa: PTH111
            file = _read(path, argument, cluster)
        except UsageError as problem:
            problems.append(problem)
            return argument
        brought[file.path] = file
        return replace(argument, values=(file.path,))

    given = tuple(moved(argument) for argument in request.given)
    raise_all(problems)
    return replace(request, given=given), tuple(brought.values())


def _read(file: Path, argument: Argument, cluster: str) -> BroughtFile:
    try:
        real = file.resolve(strict=True)
        data = real.read_bytes() if real.stat().st_size <= LARGEST else None
    except (OSError, RuntimeError) as error:  # RuntimeError: `~nobody`
        raise UsageError(
            f"{argument.flag} {file} ({argument.origin}): no such file on this machine",
            hint="give its path on this machine, or the absolute path of a file on the hosts",
            detail=str(error),
        ) from None
    if data is None:
        raise UsageError(f"{argument.flag} {file} ({argument.origin}) is larger than 1 MiB")
    if why := _not_to_bring(file.parent.resolve(), real, data):
        raise UsageError(
            f"{argument.flag} {file} ({argument.origin}) {why}: containers on all hosts could read "
            "it there",
            hint="copy what the flag needs into a separate file, and name that",
        )
    name = _UNSAFE.sub("-", file.name)[-200:]
    return BroughtFile(f"{directory(cluster)}/{_digest(data)}-{name}", data)


def _not_to_bring(folder: Path, real: Path, data: bytes) -> str:
    """Return why a file must not be copied to hosts, or "". A cloned model, or someone else's fleet
    file, may name anything that the user can read."""
    # The cache of Hugging Face's hub: snapshots link to blobs beside them
    cache = folder.parent.parent
    blobs = cache / "blobs" if folder.parent.name == "snapshots" else folder
    if not real.is_relative_to(folder) and not real.is_relative_to(blobs):
        return f"is a link out of its directory, to {real}"
    if any(part.startswith(".") and part != ".cache" for part in real.parts):
        return "is hidden, as keys and passwords are"
    if _PRIVATE_KEY.search(data):
        return "is a private key"
    return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def bring(
    files: tuple[BroughtFile, ...], cluster: str, transports: Mapping[str, Transport]
) -> None:
    """Write the files on every host, at once. Raises the errors of all hosts."""

    def write(transport: Transport) -> None:
        folder = directory(cluster)
        transport.run(["install", "-d", "-m", "0700", folder], sudo=True)
        for file in files:
            transport.put(file.data, file.path, mode=0o600, sudo=True)

    if files:
        raise_all(failures(fan_out(transports, write)))


def carry(document: ServiceDocument, cluster: str, source: Transport, to: Transport) -> None:
    """Copy a service's files to a host that it moves to, which may have been added later. `source`:
    a host that has them.

    Raises StepFailed for a missing or changed file, according to the digest in its name.
    """
    folder, files = directory(cluster), []
    for flag in parse_arguments(document.argv[3:]):
        paths = [path for path in flag.values if path.startswith(f"{folder}/")]
        for path in paths if flag.key in FILE_FLAGS else ():
            name = path.removeprefix(f"{folder}/")
            data = source.read_file(path) if _BROUGHT.fullmatch(name) else None
            if data is None or not name.startswith(f"{_digest(data)}-"):
                raise StepFailed(
                    f"{flag.flag} of {document.name} names {path}, which is missing or was "
                    "changed since `serve` copied it",
                    host=source.host.name,
                    hint=f"clusterctl serve {document.model} --name {document.service}, with its "
                    f"current flags and its {flag.flag}, copies the file again",
                )
            files.append(BroughtFile(path, data))
    bring(tuple(files), cluster, {to.host.name: to})
