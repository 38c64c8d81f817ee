"""Docker on one host: its API over the transport's own connection, and its client there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
import tarfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from http import HTTPStatus
from importlib.resources import files as resource_files
from typing import Any
from urllib.parse import quote, urlencode

import httpcore2

from clusterctl import deadlines
from clusterctl.containers.channel_http import channel_pool
from clusterctl.containers.docker_documents import container_from, create_request, image_from
from clusterctl.containers.driver import Container, EngineUnavailable, Image, Say
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.containers.reference import repository_and_tag, tagged
from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec
from clusterctl.errors import MALFORMED, ClusterctlError, CommandTimedOut, StepFailed
from clusterctl.transport.base import Channel, CommandResult, Transport, lines

_API = "1.45"  # The newest version of the Engine API that is asked for
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
        # Not methods of this object: that would create a reference cycle, and an unused driver
        # would keep one of the host's few channels until the cycle is collected.
        dial = partial(
            transport.open_channel, [*prefix, *_client("system", "dial-stdio")], sudo=sudo
        )
        self._pool = channel_pool(dial, partial(_hung_up, transport.host.name))
        weakref.finalize(self, self._pool.close)

    @property
    def host(self) -> str:
        return self._transport.host.name

    def image(self, reference: str) -> Image | None:
        # Images from a relay or an archive cannot be found by the digest of their manifest.
        names = (reference, tagged(reference)) if "@" in reference else (reference,)
        for name in names:
            if found := self._ask("GET", f"images/{_quoted(name)}/json", absent=True):
                return image_from(found)
        return None

    def images(self, labels: Mapping[str, str]) -> list[Image]:
        wanted = [f"{name}={value}" for name, value in labels.items()]
        found = self._ask("GET", "images/json", filters=json.dumps({"label": wanted}))
        found.sort(key=lambda image: image["Created"], reverse=True)
        return [image_from(self._ask("GET", f"images/{each['Id']}/json")) for each in found]

    def containers(self, cluster: str) -> list[Container]:
        wanted = json.dumps({"label": [f"{CLUSTER_LABEL}={cluster}"]})
        found = self._ask("GET", "containers/json", all="1", filters=wanted)
        return [self._container(self._ask("GET", f"containers/{one['Id']}/json")) for one in found]

    def find(self, name: str) -> Container | None:
        document = self._ask("GET", f"containers/{name}/json", absent=True)
        found = self._container(document) if document else None
        # The engine also accepts a prefix of an ID as a name.
        return found if found and found.name == name else None

    def _container(self, document: Mapping[str, Any]) -> Container:
        # None for an image that was untagged and removed by force
        image = self._ask("GET", f"images/{document['Image']}/json", absent=True)
        return container_from(document, image_from(image).env if image else {})

    def run(self, spec: ContainerSpec) -> str:
        answer = self._ask("POST", "containers/create", create_request(spec), name=spec.name)
        made = str(answer["Id"])
        try:
            self.start(made)
        except ClusterctlError:
            self.remove(made)
            raise
        return made

    def start(self, container: str) -> None:
        self._ask("POST", f"containers/{container}/start")

    def stop(self, container: str, timeout: int) -> None:
        limit = self._limit + timeout
        path = f"containers/{container}/stop"
        self._ask("POST", path, absent=True, limit=limit, t=str(timeout))

    def remove(self, container: str) -> None:
        self._ask("DELETE", f"containers/{container}", absent=True, v="1", force="1")

    def logs(self, container: str, tail: int = 100) -> str:
        script = 'docker logs --tail "$1" "$2" 2>&1'
        done = self.host_run(("sh", "-c", script, "logs", str(tail), container))
        if not done.ok:
            raise engine_error(done.stdout, self.host)
        return done.stdout

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
        self._ask("POST", f"images/{_quoted(image)}/tag", repo=repository, tag=tag or "")

    def published(self, reference: str) -> str:
        limit = deadlines.REGISTRY_LOOK
        try:
            answer = self._ask("GET", f"distribution/{_quoted(reference)}/json", limit=limit)
        except EngineSilent as error:
            raise StepFailed(
                f"the registry of {reference} did not answer within {limit:.0f} s", host=self.host
            ) from error
        try:
            digest = str(answer["Descriptor"]["digest"])
        except MALFORMED:
            digest = ""
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise StepFailed("the engine did not report the image's digest", host=self.host)
        return digest

    def pull(self, reference: str, say: Say) -> None:
        # By the client, which uses the host's own login
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
        # The classic builder uses base images by tag without contacting a registry, and is in every
        # engine since 20.10; BuildKit needs a plugin that Debian does not install.
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as tar:
            for name, text in {**(files or {}), "Dockerfile": dockerfile}.items():
                data, entry = text.encode(), tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        query = {"t": reference, "networkmode": "host", "rm": "true", "forcerm": "true"}
        query["buildargs"] = json.dumps(dict(arguments))
        steps: list[str] = []
        try:
            path, limit = f"v{self._version}/build?{urlencode(query)}", deadlines.BUILD_SILENCE
            tar_type = "application/x-tar"
            with self._answer("POST", path, context.getvalue(), limit, tar_type) as answer:
                _insist(answer, self.host)
                _follow_build(_by_line(answer.iter_stream()), say, steps)
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
        path = f"images/{_quoted(reference)}"
        self._ask("DELETE", path, absent=True, limit=deadlines.IMAGE_REMOVAL)

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

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        absent: bool = False,
        limit: float | None = None,
        **query: str,
    ) -> Any:
        """Return the engine's answer to a request, parsed; None for an empty one.

        `absent`: return None if the object is not there. Raises EngineUnavailable if there is no
        answer within `limit` seconds, StepFailed if the engine refuses.
        """
        where = f"v{self._version}/{path}?{urlencode(query)}"
        data = b"" if body is None else json.dumps(body).encode()
        with self._answer(method, where, data, limit or self._limit) as answer:
            said = answer.read()
            if absent and answer.status == HTTPStatus.NOT_FOUND:
                return None
            _insist(answer, self.host)
            return json.loads(said) if said else None

    @cached_property
    def _version(self) -> str:
        """The newest version of the API that both sides know."""
        with self._answer("GET", "version", b"", self._limit) as answer:
            _insist(answer, self.host)
            known = json.loads(answer.read())
        spoken = min(known["ApiVersion"], _API, key=_numbers)
        return str(max(spoken, known.get("MinAPIVersion", spoken), key=_numbers))

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, data: bytes, limit: float, kind: str = "application/json"
    ) -> Iterator[httpcore2.Response]:
        """Send a request, and yield the answer; translate the errors of the way there. `limit`:
        seconds of silence; `kind`: the type of `data`."""
        url, headers = f"http://docker/{path}", [("Content-Type", kind)] if data else []
        timeout = {"timeout": {"read": limit}}
        try:
            with self._pool.stream(
                method, url, headers=headers, content=data, extensions=timeout
            ) as answer:
                yield answer
        except httpcore2.TimeoutException as error:
            raise EngineSilent(
                "the Docker engine accepts connections but does not answer in time",
                host=self.host,
                hint="systemctl restart docker (containers with live-restore keep running)",
            ) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, json.JSONDecodeError) as error:
            raise EngineUnavailable(
                "the connection to the Docker engine broke",
                host=self.host,
                hint="systemctl status docker",
                detail=str(error),
            ) from error


class EngineSilent(EngineUnavailable):
    """The engine does not answer in time."""


def _insist(answer: httpcore2.Response, host: str) -> None:
    """Raise the engine's error if the response is one."""
    if answer.status < HTTPStatus.BAD_REQUEST:
        return
    try:
        message = str(json.loads(answer.read())["message"])
    except MALFORMED:
        message = f"HTTP status {answer.status}"
    raise engine_error(message, host)


def _quoted(reference: str) -> str:
    return quote(reference, safe="/:@")


def _by_line(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream as they are complete."""
    pending = b""
    for part in parts:
        *complete, pending = (pending + part).split(b"\n")
        yield from complete
    yield pending


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
    for document in filter(bytes.strip, output):
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
