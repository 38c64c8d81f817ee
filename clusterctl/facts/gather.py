"""Probe a host: gather all its facts in one round trip."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as resource_files

from clusterctl import deadlines
from clusterctl.errors import CommandFailed, CommandTimedOut, ConnectionFailed, RequirementsNotMet
from clusterctl.facts.gpu_probe import NVIDIA, GpuProbe
from clusterctl.facts.model import CONTAINERD_ROOT, ENGINE_ROOT
from clusterctl.facts.parse import Probe, parse_probe
from clusterctl.facts.sections import split_sections
from clusterctl.transport.base import Transport


@cache
def probe_script(gpu_probe: GpuProbe = NVIDIA) -> bytes:
    """Return the script in two parts; only the last line of the second one runs anything."""
    return gpu_probe.script + resource_files("clusterctl.facts").joinpath("probe.sh").read_bytes()


def probe(
    transport: Transport,
    *,
    disks: Sequence[str] = (),
    files: Sequence[str] = (),
    image: str | None = None,
    gpu_probe: GpuProbe = NVIDIA,
    sudo: bool = True,
    limit: int = deadlines.FACTS_COMMAND,
    timeout: float = deadlines.FACTS,
) -> Probe:
    """Return facts of `transport.host`, and what else the caller wants in the same round trip.

    disks    absolute paths whose file systems are measured; a missing path stands for its nearest
             existing parent. The engine's image store is always added
    files    absolute paths, or shell patterns such as `/etc/clusterctl/demo/services/*.json`, whose
             content is returned
    gpu_probe  which vendor's GPUs to look for
    image    a reference or ID to look up in the engine
    sudo     run as root if the user may: other users can neither use the engine nor read our files.
             If sudo is refused, the probe runs again without it, and records the reason
    limit    whole seconds per command on the host; docker and nvidia-smi run in parallel with
             the rest, so that a hung one costs no more than the limit
    timeout  seconds for the whole

    Raises ConnectionFailed (also for a wrong sudo password, which the user must correct),
    CommandTimedOut, and CommandFailed when the host has no POSIX shell.
    """
    arguments = [f"disk={path}" for path in dict.fromkeys((ENGINE_ROOT, CONTAINERD_ROOT, *disks))]
    arguments += [f"file={path}" for path in files]
    arguments += [f"image={image}"] if image else []
    for argument in arguments:
        if _CONTROL.search(argument):  # a newline in a path would break sections
            raise ValueError(f"control character in {argument!r}")
    question = _Question(transport, (str(limit), *arguments), timeout, gpu_probe)
    breaks = transport.breaks
    try:
        return question.ask(sudo=sudo)
    except ConnectionFailed:
        if transport.breaks == breaks:
            raise
        return question.ask(sudo=sudo)
    except CommandTimedOut:
        # `timeout` cannot end a command that hangs in the kernel, as nvidia-smi does on a GPU
        # that fell off the bus.
        rest = replace(question, arguments=(*question.arguments, "skip=gpus")).ask(sudo=sudo)
    silent = f"{gpu_probe.program} does not answer (waited {timeout:g} s)"
    gpus = replace(rest.facts.gpus, gpus=(), error=silent, silent=True)
    return replace(rest, facts=replace(rest.facts, gpus=gpus))


_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class _Question:
    transport: Transport
    arguments: tuple[str, ...]  # The limit, then what to look for
    timeout: float
    gpu_probe: GpuProbe

    def ask(self, *, sudo: bool) -> Probe:
        """Probe as root if `sudo` is set and allowed, else as the user."""
        refusal = None
        if sudo:
            try:
                return self._run(sudo=True, refusal=None)
            except RequirementsNotMet as error:
                refusal = error.summary
            except CommandFailed as error:
                refusal = error.detail or error.summary
        return self._run(sudo=False, refusal=refusal)

    def _run(self, *, sudo: bool, refusal: str | None) -> Probe:
        marker = f"section-{secrets.token_hex(12)}"
        extra = () if sudo or refusal else ("sudo=test",)
        result = self.transport.run(
            ["sh", "-s", marker, *self.arguments, *extra],
            stdin=probe_script(self.gpu_probe),
            sudo=sudo,
            timeout=self.timeout,
        )
        received = time.time()
        answer = split_sections(result.stdout, marker)
        if not answer.complete:
            what = "the probe was cut short" if answer.sections else "the probe did not run"
            raise CommandFailed(
                f"{what}: sh ended with {result.status}",
                host=self.transport.host.name,
                hint="ssh into the host and run: sh -c 'echo ok'",
                detail=result.last_lines(),
            )
        return parse_probe(answer, sudo_error=refusal, received=received, gpu_probe=self.gpu_probe)
