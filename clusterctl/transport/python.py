"""Run modules of clusterctl on a host's Python, sent over a command's stdin. All programs for hosts
run this way.

Nothing is written to the host. Its Python loads the sources as modules and calls `main(argument)`
of the last one, which then owns stdin and stdout; it ends with the SSH session. The modules may use
the whole standard library of Python 3.9, and nothing else.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from clusterctl import deadlines
from clusterctl.errors import (
    ClusterctlError,
    CommandFailed,
    ConnectionFailed,
    RequirementsNotMet,
)
from clusterctl.transport.base import Channel, Transport

OLDEST = (3, 9)
MISSING = "no Python 3.9 or newer with its standard library"
NOT_FOUND = 127  # exit status of a shell, Docker and `_FIND` for a missing program

# RHEL 8 and Ubuntu 20.04 keep an older `python3` beside the newer one; Red Hat's own Python, which
# every RHEL has, is not on PATH.
CANDIDATES = (
    "python3",
    *(f"python3.{minor}" for minor in range(19, OLDEST[1] - 1, -1)),
    "/usr/libexec/platform-python",
)

LARGEST_ANSWER = 16 * 2**20  # bytes

# Debian's python3-minimal lacks most of the standard library: json up to Debian 12, http in all.
IS_USABLE = f"import sys, json, http; sys.exit(sys.version_info < {OLDEST})"

# -I: ignore the user's directories and environment. -u: unbuffered output.
_FIND = f"""\
for python in {" ".join(CANDIDATES)}; do
  command -v "$python" >/dev/null || continue
  "$python" -I -c '{IS_USABLE}' 2>/dev/null
  [ $? = 1 ] || exec "$python" -I -u -c "$1"  # Killed while it was asked is not missing
done
echo "{MISSING}" >&2
exit {NOT_FOUND}
"""

_LOADER = f"""\
import sys
if sys.version_info < {OLDEST}:
    sys.stderr.write("{MISSING}\\n")
    sys.exit({NOT_FOUND})
import json, types, zlib
stdin = sys.stdin.buffer
sources = json.loads(zlib.decompress(stdin.read(int(stdin.readline()))))
argument = json.loads(stdin.readline())
for name, source in sources:
    parent, _, child = name.rpartition(".")
    module = types.ModuleType(name)
    if source is None:
        module.__path__ = []
    else:
        exec(compile(source, name, "exec"), module.__dict__)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], child, module)
module.main(argument)
"""


class PythonMissing(RequirementsNotMet):
    """The host has no Python that can run clusterctl's programs."""

    def __init__(self, host: str, detail: str | None = None) -> None:
        super().__init__(
            f"has {MISSING}",
            host=host,
            hint="clusterctl bootstrap installs it; or: "
            f"clusterctl exec --limit {host} --sudo -- apt-get install -y python3",
            detail=detail,
        )


@dataclass(frozen=True)
class Program:
    """Modules of `package`, each of which imports only the standard library and earlier modules.
    Modules of a parent package are named in full."""

    package: str
    modules: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the modules."""
        return tuple(each if "." in each else f"{self.package}.{each}" for each in self.modules)

    def sent(self, argument: object = None) -> bytes:
        """Bytes to send first on the program's stdin. `argument`: any JSON value."""
        return _packed(self) + json.dumps(argument).encode() + b"\n"


@functools.cache
def _packed(program: Program) -> bytes:
    """Compress the sources, since a hundred hosts may be behind a slow uplink."""
    parents = program.package.split(".")
    sources: list[tuple[str, str | None]] = [
        (".".join(parents[: count + 1]), None) for count in range(len(parents))
    ]
    for module in program.names:
        package, _, name = module.rpartition(".")
        sources.append((module, resources.files(package).joinpath(f"{name}.py").read_text("utf-8")))
    packed = zlib.compress(json.dumps(sources).encode(), 9)
    return f"{len(packed)}\n".encode() + packed


def argv(interpreter: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a program from its stdin. `interpreter`: argv of a Python, such
    as one in a container; default: the host's first suitable one."""
    if interpreter:
        return [*interpreter, "-I", "-u", "-c", _LOADER]
    return ["sh", "-c", _FIND, "clusterctl", _LOADER]


def begin(channel: Channel, program: Program, argument: object = None) -> None:
    """Send the program to `argv()`, which runs at the other end of `channel`. Does not raise if
    that has already ended: `failure` reads the reason from its stderr."""
    with suppress(ConnectionFailed):
        channel.send(program.sent(argument))


def start(
    transport: Transport, program: Program, argument: object = None, *, sudo: bool = False
) -> Channel:
    """Start the program on the host and return its channel. Raises the errors of `open_channel`."""
    channel = transport.open_channel(argv(), sudo=sudo)
    begin(channel, program, argument)
    return channel


def ask(
    transport: Transport,
    program: Program,
    argument: object = None,
    *,
    doing: str,
    timeout: float,
    sudo: bool = False,
    interpreter: Sequence[str] = (),
) -> Any:
    """Run the program and return the JSON document that it prints. `doing`: the work, for errors.

    Raises PythonMissing, CommandFailed and the errors of `Transport.run`.
    """
    host = transport.host.name
    result = transport.run(
        argv(interpreter), stdin=program.sent(argument), sudo=sudo, timeout=timeout
    )
    if not result.ok:
        raise _why(result.status, result.stderr, doing, host)
    if len(result.stdout) > LARGEST_ANSWER:
        raise CommandFailed(
            f"{doing} failed: the answer is larger than {LARGEST_ANSWER >> 20} MiB", host=host
        )
    try:
        return json.loads(result.stdout)
    except (ValueError, RecursionError):
        raise CommandFailed(
            f"{doing} failed: the answer is not JSON", host=host, detail=result.stdout[:2000]
        ) from None


def failure(channel: Channel, doing: str, host: str) -> ClusterctlError:
    """Return why a program failed, once its output has ended: PythonMissing, CommandFailed, or
    ConnectionFailed."""
    try:
        status: int | None = channel.wait(deadlines.COMMAND_END)
    except TimeoutError:
        status = None
    if status == -1:
        return ConnectionFailed(
            f"the connection was lost: {doing} did not finish",
            host=host,
            hint="run the same clusterctl command again",
        )
    return _why(status, channel.stderr_tail(), doing, host)


def _why(status: int | None, said: str, doing: str, host: str) -> ClusterctlError:
    said = said.strip()[-2000:]
    if status == NOT_FOUND:
        return PythonMissing(host, said or None)
    last = said.splitlines()[-1] if said else f"status {status}"
    return CommandFailed(
        f"{doing} failed: {last}",
        host=host,
        hint=f"clusterctl exec --limit {host} -- python3 --version",
        detail=said or None,
    )
