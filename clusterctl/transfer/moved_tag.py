"""Whether the tag of the inventory's image has moved in its registry since hosts were given it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from clusterctl import deadlines
from clusterctl.containers.reference import parse, pinned
from clusterctl.errors import ClusterctlError
from clusterctl.inventory.outside import outside_of
from clusterctl.survey.survey import Survey
from clusterctl.transfer.registry_image import tag_digest

Answer = Callable[[], list[str]]


def ask_registry(survey: Survey, *, limit: float = deadlines.TAG_LOOK) -> Answer:
    """Ask the registry in the background. The answer is a note if the tag has moved, and empty if
    not, or if the registry has not answered `limit` seconds from now. It is not asked about an
    image that is pinned, or that no host was given from there."""
    inventory, held = survey.inventory, set(survey.image_digests.values())
    image = parse(inventory.image)
    if image.digest or not held:
        return list
    answers: SimpleQueue[str] = SimpleQueue()
    until = time.monotonic() + limit

    def ask() -> None:
        with suppress(ClusterctlError, OSError):
            ca = outside_of(inventory).ca
            answers.put(tag_digest(inventory.image, say=lambda _: None, ca=ca))

    # A daemon: a registry that is silent does not keep the command from ending.
    threading.Thread(target=ask, name="tag", daemon=True).start()

    def answer() -> list[str]:
        with suppress(Empty):
            now = answers.get(timeout=max(0.0, until - time.monotonic()))
            if now not in held:
                return [_note(inventory.image, image.registry, min(held), now)]
        return []

    return answer


def _note(reference: str, registry: str, held: str, now: str) -> str:
    return (
        f"the tag of {reference} has moved: the hosts have {held}, and {registry} has {now} now; "
        f"to keep what the hosts have, put `image: {pinned(reference, held)}` into the inventory"
    )
