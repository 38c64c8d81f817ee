"""Real Docker engines, and images of what this machine has."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError
from tests.contract.containers.dockerd import Engine, dockerd, running
from tests.contract.containers.newer_engine import inside, newer_tree


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with running("gpu1") as found:
        yield found


@pytest.fixture(scope="session")
def second_engine() -> Iterator[Engine]:
    with running("gpu2") as found:
        yield found


@pytest.fixture(scope="session")
def newer_engine() -> Iterator[Engine]:
    """Docker 26 with the containerd image store, where this machine's own is 20.10 or like it."""
    try:
        tree = newer_tree()
    except ClusterctlError as error:
        pytest.skip(f"no newer Docker: {error}")
    with running("gpu3", lambda home: inside(tree, home, dockerd(home))) as found:
        yield found


def _libraries(program: str) -> list[Path]:
    """What a program needs to run; nothing for a static one."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [Path(word) for word in told.split() if word.startswith("/") and Path(word).is_file()]


@pytest.fixture(scope="session")
def import_busybox(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Engine, str], str]:
    """Makes an image of nothing but busybox; its ID."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.fail("busybox is not installed")
    root = tmp_path_factory.mktemp("busybox")
    for source in (Path(busybox), *_libraries(busybox)):
        into = root / ("bin" if source.name == "busybox" else str(source.parent).lstrip("/"))
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, into / source.name)
    for name in ("sh", "sleep", "cat", "echo", "env", "true", "false"):
        (root / "bin" / name).symlink_to("busybox")
    tar = subprocess.run(["tar", "-C", str(root), "-c", "."], capture_output=True, check=True)

    def make(engine: Engine, reference: str) -> str:
        changes = ("--change", "ENV PATH=/bin", "--change", 'CMD ["/bin/sleep", "1000"]')
        return engine.docker("import", *changes, "-", reference, stdin=tar.stdout)

    return make


@pytest.fixture(scope="session")
def import_python() -> Callable[[Engine, str], str]:
    """Makes an image of nothing but this machine's own Python; its ID."""
    python = "/usr/bin/python3"
    ask = "import os, _ssl; print(os.path.dirname(os.__file__), _ssl.__file__)"
    told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    library, extension = told.stdout.split()
    paths = {python, library, *map(str, _libraries(python)), *map(str, _libraries(extension))}
    # --dereference: /usr/bin/python3 and most libraries are symbolic links.
    tar = subprocess.run(
        [
            "tar",
            "--dereference",
            "--hard-dereference",
            "--exclude=*/test",
            "--exclude=*.pyc",
            "-c",
            *sorted(paths),
        ],
        capture_output=True,
    )

    def make(engine: Engine, reference: str) -> str:
        return engine.docker("import", "-", reference, stdin=tar.stdout)

    return make
