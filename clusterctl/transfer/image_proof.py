"""Proof that a host has the image: its layers, its ID, and a container that starts from it."""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.failures import engine_error
from clusterctl.errors import StepFailed
from clusterctl.transfer.content import ImageContent
from clusterctl.transfer.load_archive import manifest_digest

# The engine's own init, which it mounts into the container: static, so that it starts in any image,
# one without a shell too; and only from a root that all layers were unpacked into.
START = ("/sbin/docker-init", "--version")


def image_id(content: ImageContent, *, containerd: bool) -> str:
    """The ID that the engine gives the image: the manifest's digest where images live in
    containerd, else the config's."""
    return manifest_digest(content) if containerd else content.config.digest


def prove(driver: ContainerDriver, content: ImageContent, identifier: str) -> None:
    """Raise StepFailed unless the image `identifier` is there with the layers of `content`, and
    a container starts from it."""
    found = driver.image(identifier)
    if found is None:
        raise StepFailed(
            f"{content.reference} arrived under another ID than {identifier}",
            host=driver.host,
            hint="run the same command again",
        )
    if found.layers != content.diff_ids:
        raise StepFailed(
            f"{content.reference} arrived with other layers than it was sent with",
            host=driver.host,
            hint=f"docker image rm {identifier} there, and run the same command again",
        )
    insist_on_start(driver, identifier, content.reference)


def insist_on_start(driver: ContainerDriver, identifier: str, reference: str) -> None:
    """Raise StepFailed unless a container starts from the image `identifier`."""
    started = driver.run_once(identifier, START, timeout=deadlines.FIRST_CONTAINER, init=True)
    if not started.ok:
        words = started.last_lines() or f"status {started.status}"
        error = engine_error(words, driver.host)
        error.summary = f"no container starts from {reference}: {error.summary}"
        raise error
