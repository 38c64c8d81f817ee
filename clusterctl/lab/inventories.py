"""The lab's inventories as text, with the hosts, addresses and paths that `lab up` creates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.image import image_tag
from clusterctl.lab.layout import LabHost
from clusterctl.lab.mirror import MIRROR_PIP
from clusterctl.lab.paths import LabPaths

_HEAD = """\
# The lab: whole Debian hosts on this one machine. `clusterctl lab up` creates them, without a
# container engine, and writes this file; inventory/lab.yaml is it for two hosts.
cluster: lab

{image_lines}
models: /data/models

ssh:
  user: root
  identity_file: {identity}
  known_hosts: {known_hosts}

{packages}# Two networks, and NIC names that differ from host to host, as in real life: SSH, Ray and
# the API on the first, what ranks exchange on the second.
hosts:
"""

_CPU_IMAGE = """\
# vLLM and Ray on CPU, made by `lab up` from docker/lab. The tag stands for what is in there.
image: {image}
# Hosts have no way to a registry: the image comes from this file, over SSH.
image_archive: {archive}

# One CPU stands for one device, so that tensor parallelism over hosts is the real thing.
accelerator: cpu"""

_CPU_PACKAGES = """\
# Where a derived image would get Ray from: the only web server that hosts can reach.
packages:
  pip_index: {pip_index}

"""

_GPU_IMAGE = """\
# vLLM and Ray for this machine's GPUs.
image: {image}
# Hosts have no way to a registry: the image comes from this file, over SSH.
image_archive: {archive}
"""

_HOST = """\
  {name}:
    address: {address}
    role: {role}
    nics: {{control: {control}, nccl: {fabric}, gloo: {fabric}}}
    gpus: {gpus}
"""

_LIGHT_HEAD = """\
# Light hosts: a network namespace and an sshd each, to see how commands fan out.
cluster: light
image: {image}
accelerator: cpu
ssh:
  user: root
  identity_file: {identity}
  known_hosts: {known_hosts}
hosts:
"""


@dataclass(frozen=True)
class GpuLab:
    """What differs in a lab with GPUs: the image, its archive, and the GPUs of each host."""

    image: str
    archive: Path
    nodes: tuple[tuple[str, ...], ...]


def lab_inventory(hosts: Sequence[LabHost], paths: LabPaths, gpus: GpuLab | None = None) -> str:
    """Return the inventory of whole hosts; the first one is the head."""
    if gpus:
        image_lines = _GPU_IMAGE.format(image=gpus.image, archive=gpus.archive)
    else:
        image_lines = _CPU_IMAGE.format(image=image_tag(), archive=paths.image_archive)
    head = _HEAD.format(
        image_lines=image_lines,
        identity=paths.identity,
        known_hosts=paths.known_hosts,
        packages="" if gpus else _CPU_PACKAGES.format(pip_index=MIRROR_PIP),
    )
    return head + "".join(
        _HOST.format(
            name=host.name,
            address=host.address,
            role=_role(number),
            control=host.nics[0].name,
            fabric=host.nics[1].name,
            gpus=len(gpus.nodes[number]) if gpus else 1,
        )
        for number, host in enumerate(hosts)
    )


def light_inventory(hosts: Sequence[LabHost], paths: LabPaths) -> str:
    """Return the inventory of light hosts; the first one is the head."""
    head = _LIGHT_HEAD.format(
        image=image_tag(), identity=paths.identity, known_hosts=paths.light / "known_hosts"
    )
    lines = (
        f"  {host.name}: {{address: {host.address}, role: {_role(number)}, gpus: 1}}\n"
        for number, host in enumerate(hosts)
    )
    return head + "".join(lines)


def _role(number: int) -> str:
    return "worker" if number else "head"
