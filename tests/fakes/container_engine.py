"""A container engine in memory, behind the ContainerDriver protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from clusterctl.containers.driver import Container, EngineUnavailable, Image, Say
from clusterctl.containers.reference import tagged
from clusterctl.containers.spec import (
    CLUSTER_LABEL,
    FINGERPRINT_LABEL,
    SECURITY_OPTIONS,
    ContainerSpec,
)
from clusterctl.errors import StepFailed
from clusterctl.transport.base import Channel, CommandResult
from clusterctl.units import GIB
from tests.fakes.loaded_image import loaded_image


def image(identifier: str, *tags: str, layers: Sequence[str] = (), **labels: str) -> Image:
    named = {name.replace("_", "."): value for name, value in labels.items()}
    return Image(identifier, tuple(layers) or (f"layer-{identifier}",), 1000, tags, named)


@dataclass
class FakeEngine:
    """State of an engine. `registry` is what can be pulled, `contents` what images hold."""

    running: bool = True
    images: dict[str, Image] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    registry: dict[str, Image] = field(default_factory=dict)
    unbuildable: str = ""  # What fails in a Dockerfile, such as a package that is not to be had
    contents: dict[str, str | None] = field(default_factory=lambda: {"ray": None, "vllm": "0.33.0"})
    free: int = 100 * GIB
    python: bool = True
    """The host has one that runs programs of clusterctl."""
    dies_at_once: bool = False
    cuda: str = '{"cuda": "13.0", "gpus": 1}'
    """What CUDA in an image says."""
    gpus_inside: dict[str, str] = field(default_factory=dict)
    """Container ID to what `nvidia-smi -L` says in it."""


class FakeDriver:
    """`about_to_change` is called before each change; it may raise to cut the work short."""

    def __init__(self, host: str, engine: FakeEngine, about_to_change: Callable[[], None]) -> None:
        self.host = host
        self._engine = engine
        self._about_to_change = about_to_change
        self._numbers = count(1)

    def image(self, reference: str) -> Image | None:
        self._answer()
        for found in self._engine.images.values():
            if reference == found.id or tagged(reference) in found.tags:
                return found
        return None

    def images(self, labels: Mapping[str, str]) -> list[Image]:
        self._answer()
        return [
            found
            for found in self._engine.images.values()
            if labels.items() <= dict(found.labels).items()
        ]

    def containers(self, cluster: str) -> list[Container]:
        self._answer()
        return [c for c in self._engine.containers.values() if c.cluster == cluster]

    def find(self, name: str) -> Container | None:
        self._answer()
        return next((c for c in self._engine.containers.values() if c.name == name), None)

    def run(self, spec: ContainerSpec) -> str:
        self._change()
        if self.find(spec.name):
            raise StepFailed(f"Docker says: Conflict. The name {spec.name} is already in use")
        made = container_of(f"c{next(self._numbers)}", spec)
        self._engine.containers[made.id] = made
        self._settle(made.id)
        return made.id

    def start(self, container: str) -> None:
        self._change()
        self._settle(container)

    def stop(self, container: str, timeout: int) -> None:
        self._change()
        if container in self._engine.containers:
            self._set(container, status="exited")

    def remove(self, container: str) -> None:
        self._change()
        self._engine.containers.pop(container, None)

    def logs(self, container: str, tail: int = 100) -> str:
        return f"last words of {container}"

    def exec(
        self, container: str, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60
    ) -> CommandResult:
        assert list(argv) == ["nvidia-smi", "-L"], f"no step runs {argv} in a container"
        told = self._engine.gpus_inside.get(container, "GPU 0: NVIDIA H200 (UUID: GPU-0)")
        return CommandResult(tuple(argv), 0 if told.startswith("GPU") else 255, told, "")

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        timeout: float = 120,
        init: bool = False,
        devices_of: ContainerSpec | None = None,
    ) -> CommandResult:
        if argv[0] == "/sbin/docker-init" and init:
            return CommandResult(tuple(argv), 0, "tini version 0.19.0\n", "")
        assert argv[0] == "python3"
        if devices_of:
            return CommandResult(tuple(argv), 0, self._engine.cuda, "")
        return CommandResult(tuple(argv), 0, json.dumps(self._engine.contents) + "\n", "")

    def tag(self, image: str, reference: str) -> None:
        self._change()
        for found in self._engine.images.values():
            kept = tuple(tag for tag in found.tags if tag != reference)
            tags = (*kept, reference) if found.id == image else kept
            self._engine.images[found.id] = replace(found, tags=tags)

    def published(self, reference: str) -> str:
        if reference not in self._engine.registry:
            raise StepFailed("the registry has no such image", host=self.host)
        return f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"

    def pull(self, reference: str, say: Say) -> None:
        self._change()
        if reference not in self._engine.registry:
            raise StepFailed("the registry has no such image")
        self._add(self._engine.registry[reference])

    def build(
        self,
        dockerfile: str,
        reference: str,
        arguments: Mapping[str, str],
        say: Say,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._change()
        if self._engine.unbuildable and self._engine.unbuildable in dockerfile:
            raise StepFailed(f"no matching distribution for {self._engine.unbuildable}")
        lines = dockerfile.splitlines()
        base = self.image(lines[0].removeprefix("FROM "))
        assert base is not None
        labels = dict(word.split("=") for word in lines[-1].removeprefix("LABEL ").split())
        layers = (*base.layers, "ray") if "RUN" in dockerfile else base.layers
        made = Image(
            f"built-{base.id}",
            layers,
            base.size,
            (reference,),
            {name: value.strip('"') for name, value in labels.items()},
        )
        self._add(made)

    def remove_image(self, reference: str) -> None:
        self._change()
        found = self.image(reference)
        if found is None:
            return
        kept = tuple(tag for tag in found.tags if tag != tagged(reference))
        if kept and reference != found.id:
            self._engine.images[found.id] = replace(found, tags=kept)
        else:
            del self._engine.images[found.id]

    def save_argv(self, image: str) -> tuple[str, ...]:
        return ("engine", "save", image)

    def load_argv(self) -> tuple[str, ...]:
        return ("engine", "load")

    def pull_argv(self, reference: str) -> tuple[str, ...]:
        return ("engine", "pull", reference)

    def exec_argv(
        self, container: str, argv: Sequence[str], *, terminal: bool = False
    ) -> tuple[str, ...]:
        return ("engine", "exec", *(("--tty",) if terminal else ()), container, *argv)

    def stock_argv(self, cache: str, reference: str) -> tuple[str, ...]:
        return ("sh", "-c", "engine stock", "stock", cache, reference)

    def host_run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60
    ) -> CommandResult:
        self._answer()
        if argv[3] == "stock":
            return CommandResult(tuple(argv), 0, _stock(self._engine), "")
        assert argv[3] == "load", f"unknown command: {argv}"
        self._change()
        new = loaded_image(stdin)
        self._engine.images.setdefault(new.id, new)
        return CommandResult(tuple(argv), 0, f"Loaded image ID: {new.id}\n", "")

    def host_open(self, argv: Sequence[str]) -> Channel:
        *script, reference = argv
        assert script[:2] == ["sh", "-c"], f"unknown command: {argv}"
        assert script[3:] == ["pull", "engine", "pull"], f"unknown command: {argv}"
        if reference not in self._engine.registry:
            return FakeChannel(status=1)
        self.pull(reference, lambda _: None)
        return FakeChannel(f"{reference}\n".encode())

    def _add(self, new: Image) -> None:
        for found in list(self._engine.images.values()):
            kept = tuple(tag for tag in found.tags if tag not in new.tags)
            self._engine.images[found.id] = replace(found, tags=kept)
        self._engine.images[new.id] = new

    def _settle(self, container: str) -> None:
        dies = self._engine.dies_at_once
        self._set(container, status="exited" if dies else "running", exit_code=int(dies))

    def _set(self, container: str, **fields: object) -> None:
        found = self._engine.containers[container]
        self._engine.containers[container] = replace(found, **fields)  # type: ignore[arg-type]

    def _answer(self) -> None:
        if not self._engine.running:
            raise EngineUnavailable("the Docker engine is not running", host=self.host)

    def _change(self) -> None:
        self._answer()
        self._about_to_change()


def _stock(engine: FakeEngine) -> str:
    """What transfer/engine_stock.sh says of such an engine."""
    told = {"version": "20.10.24", "os": "linux", "machine": "x86_64", "driver": [], "security": []}
    images = [
        {"id": i.id, "tags": i.tags, "layers": i.layers, "size": i.size,
         "config": {"Labels": dict(i.labels), "Env": [f"{k}={v}" for k, v in i.env.items()]}}
        for i in engine.images.values()
    ]  # fmt: skip
    lines = ["root\t/var/lib/docker", f"engine\t{json.dumps(told)}"]
    lines += ["python\tpython3" if engine.python else "unusable\tpython3: older than 3.9"]
    lines += [f"image\t{json.dumps(image)}" for image in images]
    lines += [f"disk\t{engine.free // 1024}\t/dev/sda1"] * 2
    return "".join(f"{line}\n" for line in lines)


def container_of(identifier: str, spec: ContainerSpec) -> Container:
    """The container that an engine makes of the spec, not started yet."""
    return Container(
        id=identifier,
        name=spec.name,
        image=spec.image,
        status="created",
        exit_code=0,
        error="",
        command=spec.command,
        env=spec.env,
        image_env={},
        mounts=spec.mounts,
        ulimits=spec.ulimits,
        cdi_devices=spec.cdi_devices,
        all_gpus=spec.all_gpus,
        devices=spec.devices,
        capabilities=spec.capabilities,
        drops_others=True,
        security_options=SECURITY_OPTIONS,
        pids_limit=spec.pids_limit,
        labels={**spec.labels, FINGERPRINT_LABEL: spec.fingerprint()},
        stop_timeout=spec.stop_timeout,
        network="host",
        ipc="host",
        restart="unless-stopped",
        init=True,
    )


def foreign(name: str, **labels: str) -> Container:
    """A container that clusterctl did not make; `cluster` labels it for a cluster all the same."""
    spec = ContainerSpec(name=name, image="sha256:x", command=("sh",), env={})
    told = {CLUSTER_LABEL: labels["cluster"]} if "cluster" in labels else {}
    return replace(container_of(f"id-{name}", spec), status="running", labels=told)


class FakeChannel:
    """Gives `output`, and ends with `status`."""

    def __init__(self, output: bytes = b"", *, status: int = 0) -> None:
        self._output, self._status = output, status

    def send(self, data: bytes) -> None:
        return None

    def recv(self, size: int) -> bytes:
        data, self._output = self._output[:size], self._output[size:]
        return data

    def settimeout(self, seconds: float | None) -> None:
        return None

    def close_stdin(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return self._status

    def stderr_tail(self) -> str:
        return ""

    def close(self) -> None:
        return None

    def __enter__(self) -> FakeChannel:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
