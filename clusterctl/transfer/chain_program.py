"""The relay as text for a host's Python: its modules, and the loader that makes them of stdin."""

from __future__ import annotations

import functools
import zlib
from importlib import resources

PACKAGE = "clusterctl.transfer.relay"

# Each imports only those before it.
MODULES = (
    "frames",
    "http_wire",
    "stored",
    "parts",
    "upstream",
    "roster",
    "fetching",
    "holdings",
    "delivery",
    "serving",
    "main",
)

LOADER = """\
import io, sys, types, zlib
packed = sys.stdin.buffer
read = io.BytesIO(zlib.decompress(packed.read(int(packed.readline()))))
for name in sys.argv[1].split(","):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
for _ in range(int(read.readline())):
    name, size = read.readline().decode().split()
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(read.read(int(size)), name, "exec"), module.__dict__)
    setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
module.main()
"""

_PARENTS = "clusterctl,clusterctl.transfer,clusterctl.transfer.relay"

# Red Hat's own Python is not on PATH. -I: nothing of the user's has a part in it.
_FIND = """\
for python in python3 /usr/libexec/platform-python
do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 6))' >/dev/null 2>&1
  then exec "$python" -I -u -c "$1" "$2"
  fi
done
echo "no Python 3.6 or later" >&2
exit 127
"""


def argv(python: tuple[str, ...] = (), parents: str = _PARENTS) -> list[str]:
    """What to start on the host; its stdin gets `program()` first. `python` is an argv that
    starts a Python, () looks for one. `parents`: the packages that the modules are in."""
    if python:
        return [*python, "-I", "-u", "-c", LOADER, parents]
    return ["sh", "-c", _FIND, "relay", LOADER, parents]


@functools.cache
def program(package: str = PACKAGE, modules: tuple[str, ...] = MODULES) -> bytes:
    """The modules, each behind a line with its name and size in bytes, packed; `main` of the last
    one runs. A hundred hosts on a slow uplink would wait for it."""
    parts = [f"{len(modules)}\n".encode()]
    folder = resources.files(package)
    for name in modules:
        text = folder.joinpath(f"{name}.py").read_bytes()
        parts.append(f"{package}.{name} {len(text)}\n".encode() + text)
    packed = zlib.compress(b"".join(parts), 9)
    return f"{len(packed)}\n".encode() + packed
