"""What a host fetches passes through the proxy of the inventory, and what is in the cluster does
not: a real urllib and a real apt-get, and a proxy that alone knows the servers outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed, StepFailed
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Host
from clusterctl.inventory.outside import Outside, outside_of
from clusterctl.steps.host_proxy import HostProxy
from clusterctl.steps.package_manager import Apt
from clusterctl.transfer.weights.host_transport import HostTransport
from clusterctl.transfer.weights.hub import hub_session, needed
from clusterctl.transfer.weights.hub_source import HubSource
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transport.command import Wire
from clusterctl.transport.local import LocalTransport
from tests.contract.transfer.hosts_here import read_by_a_relay
from tests.fakes.host import FakeHost, fake_view
from tests.fakes.http_proxy import FakeProxy, running_proxy
from tests.fakes.hubs import FakeHubs, running_hubs
from tests.unit.steps.stage import facts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts are worked on as root")

MODEL = "Org/Tiny-1B"
FILES = {"config.json": b"{}", "model.safetensors": bytes(5000)}
OWN = ("/var/lib/clusterctl", "/etc/systemd/system")
BINDS = 'mount --bind "$1" "$2"; mount --bind "$3" "$4"; shift 4; exec "$@"'


@pytest.fixture
def hubs() -> Iterator[FakeHubs]:
    with running_hubs(FakeHubs(models={MODEL: dict(FILES)})) as running:
        yield running


@pytest.fixture
def proxy(hubs: FakeHubs) -> Iterator[FakeProxy]:
    port = urlsplit(hubs.endpoint).port
    assert port
    with running_proxy({"hub.invalid": port}) as running:
        yield running


def outside(proxy: FakeProxy, folder: Path, *without: str) -> Outside:
    file = folder / "site.yaml"
    file.write_text(
        "cluster: demo\nimage: vllm/vllm-openai:v0.33.0\n"
        f"packages: {{proxy: {{http: '{proxy.url}', no_proxy: [{', '.join(without)}]}}}}\n"
        "hosts: {gpu1: {address: 10.0.0.1}}\n"
    )
    return outside_of(load(file))


def test_a_host_asks_a_hub_through_the_proxy_and_the_cluster_without_it(
    hubs: FakeHubs, proxy: FakeProxy, tmp_path: Path
) -> None:
    here = LocalTransport(Host(name="gpu1", address="localhost"))
    hub, way = HuggingFace("http://hub.invalid", False), outside(proxy, tmp_path)
    with hub_session(HostTransport(here)), pytest.raises(StepFailed) as refused:
        hub.listing(MODEL, None)
    assert "packages.proxy" in str(refused.value.hint)
    with hub_session(HostTransport(here, way)):
        source = HubSource(hub, needed(hub.listing(MODEL, None)), say=print)
        manifest = source.manifest("Tiny")
    read = read_by_a_relay(here, manifest, source.read_by("gpu1", way, entrusted=False), tmp_path)
    assert read == FILES
    assert set(proxy.asked) == {"hub.invalid"}, "127.0.0.1, where the weights are, needs none"


class HostOfItsOwn(LocalTransport):
    """This machine, with directories of its own for what clusterctl keeps and for units."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Host(name="gpu1", address="localhost"))
        self._binds = [str(word) for path in OWN for word in (folder / path[1:], path)]
        for path in OWN:
            (folder / path[1:]).mkdir(parents=True)

    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        words = ["unshare", "-m", "sh", "-c", BINDS, "host", *self._binds, *argv]
        return super()._start(words)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[HostView]:
    missing = [Path(path) for path in OWN if not Path(path).is_dir()]
    for path in missing:
        path.mkdir(parents=True)  # where its own are mounted
    transport = HostOfItsOwn(tmp_path / "host")
    yield replace(fake_view(FakeHost("gpu1"), facts()), transport=transport)
    for path in missing:
        path.rmdir()


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_apt_get_uses_the_proxy_until_it_is_removed(
    view: HostView, proxy: FakeProxy, tmp_path: Path
) -> None:
    way = outside(proxy, tmp_path, "direct.invalid")
    # Without the step's look at Docker: this machine's has a proxy of its own, or none.
    step = HostProxy("demo", way.proxy)
    for path, text in step.files.items():
        view.transport.run(["mkdir", "-p", path.rpartition("/")[0]], sudo=True)
        view.transport.put(text.encode(), path, sudo=True)

    lists = tmp_path / "lists"
    (lists / "lists/partial").mkdir(parents=True)
    (lists / "offline.list").write_text(
        "deb [trusted=yes] http://mirror.invalid/debian ./\n"
        "deb [trusted=yes] http://direct.invalid/debian ./\n"
    )
    with suppress(CommandFailed):  # nothing answers at these names
        Apt(view, lambda _: None, only=str(lists)).update()
    assert proxy.asked_for("mirror.invalid")
    assert not proxy.asked_for("direct.invalid")

    proxy.asked.clear()
    gone = HostProxy("demo", {})
    change = gone.check(view)
    assert isinstance(change, Change)
    gone.apply(view, change)
    assert gone.check(view) is None
    with suppress(CommandFailed):  # nothing answers at these names
        Apt(view, lambda _: None, only=str(lists)).update()
    assert proxy.asked == []
