"""Docker on one host: docker-py over the transport's own connection."""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files as resource_files
from typing import Any, cast
from urllib.parse import quote

import requests
from docker import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION, MINIMUM_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, NotFound

from clusterctl import deadlines
from clusterctl.containers.channel_http import ChannelAdapter
from clusterctl.containers.docker_documents import container_from, create_request, image_from
from clusterctl.containers.driver import Container, EngineUnavailable, Image, Say
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.containers.reference import repository_and_tag, tagged
from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec
from clusterctl.errors import MALFORMED, ClusterctlError, CommandTimedOut, StepFailed
from clusterctl.transport.base import Channel, CommandResult, Transport, lines

_URL = "http://docker:80"
_STEP = re.compile(r"---> ([0-9a-f]{12})")  # Printed by the classic builder after each step


class DockerDriver:
    """The engine on one host; connects at first use. `prefix` precedes every command on it: ("env",
    "DOCKER_HOST=unix:///...") selects a different engine than the host's default."""

    def __init__(
        self,
        transport: Transport,
        *,
        prefix: Sequence[str] = (),
        sudo: bool = True,
        answer_limit: float = deadlines.ENGINE,
    ) -> None:
        self._transport = transport
        self._prefix = tuple(prefix)
        self._sudo = sudo
        self._limit = answer_limit
        self._connecting = threading.Lock()
        self._api: APIClient | None = None

    @property
    def host(self) -> str:
        return self._transport.host.name

    def image(self, reference: str) -> Image | None:
        # Images from a relay or an archive cannot be found by the digest of their manifest.
        names = (reference, tagged(reference)) if "@" in reference else (reference,)
        with self._engine() as engine:
            for name in names:
                with contextlib.suppress(NotFound):
                    return image_from(engine.inspect_image(name))
        return None

    def images(self, labels: Mapping[str, str]) -> list[Image]:
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with self._engine() as engine:
            found = engine.images(filters={"label": wanted})
            found.sort(key=lambda image: image["Created"], reverse=True)
            return [image_from(engine.inspect_image(image["Id"])) for image in found]

    def containers(self, cluster: str) -> list[Container]:
        with self._engine() as engine:
            found = engine.containers(all=True, filters={"label": f"{CLUSTER_LABEL}={cluster}"})
            return [self._inspect(engine, container["Id"]) for container in found]

    def find(self, name: str) -> Container | None:
        with self._engine() as engine:
            try:
                found = self._inspect(engine, name)
            except NotFound:
                return None
        # The engine also accepts a prefix of an ID as a name.
        return found if found.name == name else None

    def run(self, spec: ContainerSpec) -> str:
        with self._engine() as engine:
            made = engine.create_container_from_config(create_request(spec), spec.name)["Id"]
        try:
            self.start(made)
        except ClusterctlError:
            self.remove(made)
            raise
        return cast("str", made)

    def start(self, container: str) -> None:
        with self._engine() as engine:
            engine.start(container)

    def stop(self, container: str, timeout: int) -> None:
        with self._engine() as engine, contextlib.suppress(NotFound):
            engine.stop(container, timeout=timeout)

    def remove(self, container: str) -> None:
        with self._engine() as engine, contextlib.suppress(NotFound):
            engine.remove_container(container, v=True, force=True)

    def logs(self, container: str, tail: int = 100) -> str:
        with self._engine() as engine:
            return cast("bytes", engine.logs(container, tail=tail)).decode(errors="replace")

    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        return self.host_run(self.exec_argv(container, argv), stdin=stdin, timeout=timeout)

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        timeout: float = deadlines.CONTAINER_ONCE,
        init: bool = False,
        devices_of: ContainerSpec | None = None,
    ) -> CommandResult:
        name = f"clusterctl-once-{secrets.token_hex(6)}"
        options = ["--rm", "--network", "none", "--name", name, "--entrypoint", argv[0]]
        options += ["--init"] if init else []
        options += device_flags(devices_of) if devices_of else []
        try:
            return self.host_run(_client("run", *options, image, *argv[1:]), timeout=timeout)
        except CommandTimedOut:
            self.remove(name)  # the timeout ended the client, not the container
            raise

    def tag(self, image: str, reference: str) -> None:
        repository, tag = repository_and_tag(reference)
        with self._engine() as engine:
            engine.tag(image, repository, tag)

    def published(self, reference: str) -> str:
        # Not docker-py's, which would send the operator's registry login.
        with self._engine() as engine:
            path = f"v{engine.api_version}/distribution/{quote(reference, safe='/:@')}/json"
            try:
                answer = engine.get(f"{_URL}/{path}", timeout=deadlines.REGISTRY_LOOK)
            except requests.Timeout as error:
                limit = f"{deadlines.REGISTRY_LOOK:.0f} s"
                raise StepFailed(
                    f"the registry of {reference} did not answer within {limit}", host=self.host
                ) from error
            self._insist(answer)
        try:
            digest = str(json.loads(answer.content)["Descriptor"]["digest"])
        except MALFORMED:
            digest = ""
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise StepFailed("the engine did not report the image's digest", host=self.host)
        return digest

    def pull(self, reference: str, say: Say) -> None:
        # Use the client, which uses the host's own login; docker-py would send the operator's.
        ended = in_time("docker pull", self.host)
        with self.host_open(_client("pull", reference)) as channel, ended:
            channel.settimeout(deadlines.PULL_SILENCE)
            layers: dict[str, bool] = {}
            try:
                for line in lines(channel):  # such as `4abcf2066143: Pull complete`
                    layer, _, state = line.partition(": ")
                    if state in ("Pulling fs layer", "Pull complete", "Already exists"):
                        layers[layer] = state != "Pulling fs layer"
                        say(f"{sum(layers.values())} of {len(layers)} layers")
            except TimeoutError as error:
                raise CommandTimedOut(
                    f"docker pull printed nothing for {deadlines.PULL_SILENCE:.0f} s",
                    hint="check the host's connection to the registry, or set image_archive in "
                    "the inventory",
                ) from error
            if channel.wait(timeout=deadlines.STREAM_END) != 0:
                raise engine_error(channel.stderr_tail() or "docker pull failed without a message")

    def build(
        self,
        dockerfile: str,
        reference: str,
        arguments: Mapping[str, str],
        say: Say,
        files: Mapping[str, str] | None = None,
    ) -> None:
        # Not docker-py's build, which would send all of the operator's registry logins. The classic
        # builder uses base images by tag without contacting a registry, and is in every engine
        # since 20.10; BuildKit needs a plugin that Debian does not install.
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as tar:
            for name, text in {**(files or {}), "Dockerfile": dockerfile}.items():
                data, entry = text.encode(), tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        query = {"t": reference, "networkmode": "host", "rm": "true", "forcerm": "true"}
        steps: list[str] = []
        try:
            with self._engine() as engine:
                answer = engine.post(
                    f"{_URL}/v{engine.api_version}/build",
                    params={**query, "buildargs": json.dumps(dict(arguments))},
                    data=context.getvalue(),
                    headers={"Content-Type": "application/x-tar"},
                    stream=True,
                    timeout=deadlines.BUILD_SILENCE,
                )
                with contextlib.closing(answer):
                    self._insist(answer)
                    _follow_build(answer.iter_lines(), say, steps)
        except StepFailed:
            self._remove_step(steps)
            raise

    def _remove_step(self, steps: Sequence[str]) -> None:
        """Remove what a failed build leaves behind: the image of its last step and its parents,
        which have no name and would keep the base image's layers on the disk."""
        last = self.image(steps[-1]) if len(steps) > 1 else None
        if last and not last.tags:
            with contextlib.suppress(StepFailed):
                self.remove_image(last.id)

    def remove_image(self, reference: str) -> None:
        # Not docker-py's, which uses the same timeout as for any other request.
        with self._engine() as engine:
            answer = engine.delete(
                f"{_URL}/v{engine.api_version}/images/{quote(reference, safe='/:@')}",
                timeout=deadlines.IMAGE_REMOVAL,
            )
            if answer.status_code != HTTPStatus.NOT_FOUND:
                self._insist(answer)

    def save_argv(self, image: str) -> tuple[str, ...]:
        return _client("save", image)

    def load_argv(self) -> tuple[str, ...]:
        return _client("load")

    def pull_argv(self, reference: str) -> tuple[str, ...]:
        return _client("pull", "--quiet", reference)

    def exec_argv(
        self, container: str, argv: Sequence[str], *, terminal: bool = False
    ) -> tuple[str, ...]:
        tty = ("--tty",) if terminal else ()
        return _client("exec", "--interactive", *tty, container, *argv)

    def stock_argv(self, cache: str, reference: str) -> tuple[str, ...]:
        return ("sh", "-c", _stock_script(), "stock", cache, reference)

    def host_run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = deadlines.COMMAND
    ) -> CommandResult:
        words = [*self._prefix, *argv]
        return self._transport.run(words, stdin=stdin, sudo=self._sudo, timeout=timeout)

    def host_open(self, argv: Sequence[str]) -> Channel:
        return self._transport.open_channel([*self._prefix, *argv], sudo=self._sudo)

    def _insist(self, answer: requests.Response) -> None:
        """Raise the engine's error if the response is one."""
        if not answer.ok:
            try:
                message = str(json.loads(answer.content)["message"])
            except MALFORMED:
                message = f"HTTP status {answer.status_code}"
            raise engine_error(message, self.host)

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Any]:
        """Yield the API client (docker-py is only partly typed), and translate its errors."""
        try:
            with self._connecting:
                self._api = self._api or self._connect()
            yield self._api
        except APIError as error:
            raise engine_error(str(error.explanation or error), self.host) from error
        except requests.Timeout as error:
            raise EngineUnavailable(
                "the Docker engine accepts connections but does not answer in time",
                host=self.host,
                hint="systemctl restart docker (containers with live-restore keep running)",
            ) from error
        except (requests.RequestException, DockerException) as error:
            raise EngineUnavailable(
                "the connection to the Docker engine broke",
                host=self.host,
                hint="systemctl status docker",
                detail=str(error),
            ) from error

    def _connect(self) -> APIClient:
        """Return a client for the newest API that both sides support.

        A first request, made with the oldest API, returns the engine's newest.
        """
        first = self._api_client(MINIMUM_DOCKER_API_VERSION)
        try:
            answer = first.version(api_version=False)
        finally:
            first.close()
        spoken = min(answer["ApiVersion"], DEFAULT_DOCKER_API_VERSION, key=_numbers)
        oldest = answer.get("MinAPIVersion", MINIMUM_DOCKER_API_VERSION)
        return self._api_client(max(spoken, oldest, key=_numbers))

    def _api_client(self, api: str) -> APIClient:
        client = APIClient(base_url=_URL, version=api, timeout=int(self._limit))
        client.trust_env = False
        # Not methods of this object: that would create a reference cycle, and an unused driver
        # would keep one of the host's few channels until the cycle is collected.
        dial = partial(
            self._transport.open_channel,
            [*self._prefix, *_client("system", "dial-stdio")],
            sudo=self._sudo,
        )
        client.mount("http://", ChannelAdapter(dial, partial(_hung_up, self.host)))
        return client

    def _inspect(self, engine: Any, container: str) -> Container:
        document = engine.inspect_container(container)
        try:
            image = image_from(engine.inspect_image(document["Image"]))
        except NotFound:  # untagged and removed by force
            return container_from(document, {})
        return container_from(document, image.env)


def device_flags(spec: ContainerSpec) -> tuple[str, ...]:
    """Return the flags of `docker run` for GPUs and other devices."""
    devices = [
        word for device in (*spec.cdi_devices, *spec.devices) for word in ("--device", device)
    ]
    return (*devices, *(("--gpus", "all") if spec.all_gpus else ()))


def _follow_build(output: Iterable[bytes], say: Say, steps: list[str]) -> None:
    """Report the build's steps until it ends; `steps` gets the IDs of their images, the base's
    first. Raises StepFailed with the last lines of output."""
    printed: list[str] = []
    for document in filter(None, output):
        message: dict[str, Any] = json.loads(document)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(message.get("stream") or ""))
        new = [line.strip()[:200] for line in plain.splitlines() if line.strip()]
        printed += new
        steps += [found[1] for line in new if (found := _STEP.fullmatch(line))]
        if "error" in message:
            error = engine_error("\n".join([*printed[-20:], message["error"]]))
            if error.hint is None:
                error.summary = f"the image could not be built: {message['error']}"
            raise error
        for text in new:
            say(text)


def _hung_up(host: str, channel: Channel) -> Exception:
    try:
        ended = f"ended with status {channel.wait(timeout=deadlines.COMMAND_END)}"
    except TimeoutError:
        ended = "closed its output but does not end"
    said = channel.stderr_tail() or f"`docker system dial-stdio` {ended}"
    return engine_error(said, host, unavailable=True)


def _client(*words: str) -> tuple[str, ...]:
    return ("docker", *words)


@cache
def _stock_script() -> str:
    return resource_files("clusterctl.containers").joinpath("engine_stock.sh").read_text()


def _numbers(api: str) -> tuple[int, ...]:
    return tuple(int(part) for part in api.split("."))
