"""Query the registry about the inventory's image while a command does other things: whether its tag
has moved since hosts got it, and its environment if no host has it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import TypeVar

from clusterctl import deadlines
from clusterctl.containers.reference import parse, pinned
from clusterctl.errors import MALFORMED, ClusterctlError
from clusterctl.inventory.outside import outside_of
from clusterctl.survey.survey import Survey
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.engine_state import environment, settings
from clusterctl.transfer.registry_image import registry_image, tag_digest

T = TypeVar("T")


def ask_registry(survey: Survey, *, limit: float = deadlines.TAG_LOOK) -> Callable[[], list[str]]:
    """Query the registry in the background. The answer is a note if the tag has moved; empty if
    not, or if the registry does not answer within `limit` seconds. It is not queried about an image
    that is pinned, or that no host got from it."""
    inventory, held = survey.inventory, set(survey.image_digests.values())
    image = parse(inventory.image)
    if image.digest or not held:
        return list
    asked = _in_background(lambda: tag_digest(inventory.image, say=_silent, ca=_ca(survey)), limit)

    def answer() -> list[str]:
        now = asked()
        moved = now is not None and now not in held
        return [_note(inventory.image, image.registry, min(held), now or "")] if moved else []

    return answer


# As docker's platforms are spelled
_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def ask_environment(
    survey: Survey, *, limit: float = deadlines.TAG_LOOK
) -> Callable[[], dict[str, str]]:
    """Query the registry in the background for the image's environment variables, if no host has
    the image and the inventory names no archive. Empty if there is no answer within `limit`
    seconds."""
    inventory = survey.inventory
    machines = {facts.os.architecture for facts in survey.facts.values()}
    platform = _PLATFORMS.get(machines.pop(), "") if len(machines) == 1 else ""
    has_image = any(answer.image for answer in survey.answers.values())
    if has_image or inventory.image_archive or not platform:
        return dict

    def ask() -> dict[str, str]:
        with TemporaryDirectory() as directory:
            store = BlobStore(Path(directory))
            image = registry_image(inventory.image, platform, store, say=_silent, ca=_ca(survey))
            config = json.loads(b"".join(image.open(image.content.config)))
        return environment(settings(config.get("config")))

    asked = _in_background(ask, limit)
    return lambda: asked() or {}


def _ca(survey: Survey) -> str:
    return outside_of(survey.inventory).ca


def _silent(_text: str) -> None:
    """Show nothing: a query in the background has no progress."""


def _in_background(work: Callable[[], T], limit: float) -> Callable[[], T | None]:
    """Do `work` in a thread. Return a function that waits for its result, until at most `limit`
    seconds from now, and returns None without one."""
    answers: SimpleQueue[T] = SimpleQueue()
    until = time.monotonic() + limit

    def ask() -> None:
        with suppress(ClusterctlError, OSError, *MALFORMED):
            answers.put(work())

    # A daemon: a registry that is silent does not keep the command from ending.
    threading.Thread(target=ask, name="registry", daemon=True).start()

    def answer() -> T | None:
        with suppress(Empty):
            return answers.get(timeout=max(0.0, until - time.monotonic()))
        return None

    return answer


def _note(reference: str, registry: str, held: str, now: str) -> str:
    return (
        f"the tag of {reference} has moved: the hosts have {held}, but {registry} now has {now}; "
        f"to keep what the hosts have, put `image: {pinned(reference, held)}` into the inventory"
    )
