"""Which port a service gets on the head."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from clusterctl.errors import UsageError
from clusterctl.node.documents import ServiceDocument

FIRST_PORT = 8000  # vLLM's own default


def choose_port(
    name: str,
    asked: int | None,
    services: Iterable[ServiceDocument],
    listening: Collection[int] = (),
) -> int:
    """The port asked for; else the one that the service of this name has already, so that
    serving it again changes nothing; else the first free one from 8000 on.

    `listening`: ports that something on the head listens on, the service itself included.
    Raises UsageError when the port asked for is taken, naming by whom and a free one.
    """
    known = {service.name: service.port for service in services}
    own = known.pop(name, None)
    taken = {*known.values(), *listening} - ({own} if own is not None else set())
    if asked is None:
        return own if own is not None else _first_free(taken)
    if asked in taken:
        owner = next((other for other, port in known.items() if port == asked), None)
        raise _taken(asked, owner, _first_free(taken))
    return asked


def _first_free(taken: Collection[int]) -> int:
    return next(port for port in range(FIRST_PORT, 65536) if port not in taken)


def _taken(port: int, owner: str | None, free: int) -> UsageError:
    by = f"the service {owner}" if owner else "another program on the head"
    return UsageError(f"port {port} is taken by {by}", hint=f"--port {free} is free")
