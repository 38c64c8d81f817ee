"""Make the node image on the head: inspect the inventory's image, add Ray if it has none.

vLLM's own images have had no Ray since 0.18, though its multi-host guide needs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Image
from clusterctl.containers.failures import engine_error
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_image import (
    BASE_LABEL,
    RAY_LABEL,
    REFERENCE_LABEL,
    NodeImage,
    content,
    tag_for,
)

PROBE = """\
import json
from importlib.metadata import PackageNotFoundError, version
def release(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({name: release(name) for name in ("ray", "vllm")}))
"""

ADD_RAY = """\
ARG PIP_INDEX_URL
ARG PIP_TRUSTED_HOST
RUN if python3 -m pip --version >/dev/null 2>&1; \\
    then PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir 'ray[default]=={ray}'; \\
    else uv pip install --system --no-cache ${{PIP_INDEX_URL:+--default-index "$PIP_INDEX_URL"}} \\
         ${{PIP_TRUSTED_HOST:+--allow-insecure-host "$PIP_TRUSTED_HOST"}} 'ray[default]=={ray}'; \\
    fi
"""


@dataclass(frozen=True)
class Contents:
    """Releases in an image; None if not installed."""

    ray: str | None
    vllm: str | None


class RayInImage:
    """Step: the head has a node image, made from the inventory's image."""

    title = "Ray in the image"

    def __init__(
        self,
        node_image: NodeImage,
        engines: Engines,
        *,
        pip_index: str | None = None,
        allow_unauthenticated: bool = False,
    ) -> None:
        self._node_image = node_image
        self._engines = engines
        self._pip_index = pip_index
        self._allow_unauthenticated = allow_unauthenticated

    def check(self, view: HostView) -> Change | Unknown | None:
        if self._engines(view).image(self._node_image.reference) is None:
            return Unknown("the image must be on the host before it can be inspected")
        if self._node_image.look() is None:
            return Change(f"make the node image from {self._node_image.reference}, with Ray")
        return None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        driver, reference = self._engines(view), self._node_image.reference
        base = driver.image(reference)
        if base is None:
            raise StepFailed(f"{reference} is not there", host=view.host.name)
        view.say("looking for Ray and vLLM in the image")
        found = look_inside(driver, base)
        if found.ray and not has_tokens(found.ray) and not self._allow_unauthenticated:
            raise RequirementsNotMet(
                f"the image has Ray {found.ray}, which has no authentication: whoever reaches "
                "its ports runs code as root",
                host=view.host.name,
                hint="use an image with Ray 2.52 or later, or, in a network of your own, set "
                "allow_unauthenticated_ray: true in the inventory",
            )
        ray = found.ray or ray_for(found.vllm)
        if found.ray is None:
            view.say(f"adding Ray {ray} beside vLLM {found.vllm or 'unknown'}")
        self._build(view, driver, base, ray, add=found.ray is None)
        self._node_image.look()

    def _build(
        self, view: HostView, driver: ContainerDriver, base: Image, ray: str, *, add: bool
    ) -> None:
        # Build from a tag of our own: after `docker load`, an engine does not know the image by a
        # digest, and the build must not contact a registry.
        start = f"clusterctl/base:{content(base)[:12]}"
        driver.tag(base.id, start)
        try:
            labels = {
                BASE_LABEL: content(base),
                RAY_LABEL: ray,
                REFERENCE_LABEL: self._node_image.reference,
            }
            driver.build(
                dockerfile(start, labels, add_ray=ray if add else None),
                tag_for(self._node_image.reference, ray),
                index_arguments(self._pip_index) if add else {},
                view.say,
            )
        except StepFailed as error:
            if add and not error.hint:
                error.hint = (
                    "the build needs a Python package index: set packages.pip_index in the "
                    "inventory to one that the head reaches, or give an image that has Ray"
                )
            raise
        finally:
            driver.remove_image(start)


def look_inside(
    driver: ContainerDriver, image: Image, *, timeout: float = deadlines.FIRST_CONTAINER
) -> Contents:
    """Return the releases of Ray and vLLM in the image. Raises StepFailed."""
    result = driver.run_once(image.id, ["python3", "-c", PROBE], timeout=timeout)
    if not result.ok:
        error = engine_error(result.last_lines() or f"status {result.status}", driver.host)
        error.summary = f"the image cannot be inspected: {error.summary}"
        error.hint = error.hint or "the image must have python3 and vLLM"
        raise error
    told = json.loads(result.stdout.strip().splitlines()[-1])
    return Contents(told["ray"], told["vllm"])


def dockerfile(start: str, labels: Mapping[str, str], *, add_ray: str | None) -> str:
    """Return the Dockerfile of a node image: labels, and Ray `add_ray` unless that is None."""
    told = " ".join(f'{name}="{value}"' for name, value in labels.items())
    added = ADD_RAY.format(ray=add_ray) if add_ray else ""
    return f"FROM {start}\n{added}LABEL {told}\n"


def index_arguments(pip_index: str | None) -> dict[str, str]:
    """Return build arguments for a package index; plain http needs a trusted host."""
    if pip_index is None:
        return {}
    parts = urlsplit(pip_index)
    arguments = {"PIP_INDEX_URL": pip_index}
    if parts.scheme == "http" and parts.hostname:
        arguments["PIP_TRUSTED_HOST"] = parts.hostname
    return arguments


# Known working pairs: vLLM's minor release to Ray's release
RAY_FOR_VLLM = {
    (0, 25): "2.56.1",  # served with TP 2 and PP 2 over two hosts with one H200 each
    (0, 32): "2.60.0",  # served with TP 2 over two hosts, on CPU
    (0, 33): "2.56.1",  # vLLM's own CI: requirements/test/cuda.in, ray[default]>=2.56.0,<2.57
}

OTHERWISE = "2.56.1"

OLDEST_WITH_TOKENS = (2, 52)  # The first Ray with token authentication (RAY_AUTH_MODE)


def ray_for(vllm: str | None) -> str:
    """Return the Ray release to install with a vLLM release, such as `0.33.0+cu130`."""
    major, minor, *_ = (*release(vllm or ""), 0, 0)
    return RAY_FOR_VLLM.get((major, minor), OTHERWISE)


def has_tokens(ray: str) -> bool:
    """Whether that release of Ray supports token authentication."""
    return release(ray) >= OLDEST_WITH_TOKENS


def release(version: str) -> tuple[int, ...]:
    """Parse the leading numbers: `2.56.1rc1` is (2, 56, 1)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
