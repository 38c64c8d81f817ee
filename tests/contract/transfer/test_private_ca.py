"""A registry and model hubs whose certificates a company's own CA has signed."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import StepFailed
from clusterctl.inventory.model import Host
from clusterctl.inventory.outside import NOTHING, Outside, parse_certificates
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.registry_image import registry_image, tag_digest
from clusterctl.transfer.weights.host_transport import HostTransport
from clusterctl.transfer.weights.hub import hub_session, needed
from clusterctl.transfer.weights.hub_source import HubSource
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transport.local import LocalTransport
from tests.contract.transfer.hosts_here import read_by_a_relay
from tests.fakes.docker_registry import docker_registry
from tests.fakes.hubs import FakeHubs, running_hubs
from tests.fakes.image_archives import MadeImage, layer_tar
from tests.fakes.private_ca import PrivateCa, private_ca

NAME = "registry.corp"
MODEL = "Org/Tiny-1B"
FILES = {"config.json": b"{}", "model.safetensors": bytes(5000)}


@pytest.fixture
def ca() -> PrivateCa:
    return private_ca()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of this machine; a registry that is called by a loopback address needs no
    certificate."""
    real = socket.getaddrinfo

    def found(host: Any, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host in (NAME, NAME.encode()) else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.usefixtures("named")
@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="needs docker-registry")
def test_docker_s_registry_is_trusted_by_the_ca_of_the_inventory(
    ca: PrivateCa, tmp_path: Path
) -> None:
    image = MadeImage("acme/vllm:1", (layer_tar("base", 5000),))
    certificate = ca.issue(tmp_path, NAME, "127.0.0.1")
    (tmp_path / "ca.pem").write_text(ca.pem)
    store = BlobStore(tmp_path / "cache")
    with docker_registry(tmp_path, certificate=certificate) as registry:
        registry.push(image)
        reference = f"{NAME}:{registry.address.partition(':')[2]}/{image.name}"

        with pytest.raises(StepFailed, match="is not trusted here") as refused:
            registry_image(reference, "linux/amd64", store, say=print)
        assert "packages.ca" in str(refused.value.hint)
        with pytest.raises(StepFailed, match="is not trusted here"):
            registry_image(reference, "linux/amd64", store, say=print, ca=private_ca().pem)

        found = registry_image(reference, "linux/amd64", store, say=print, ca=ca.pem)
        assert b"".join(found.open(found.content.layers[0])) == image.layers[0]
        assert tag_digest(reference, say=print, ca=ca.pem) == found.digest


@pytest.fixture
def hubs(ca: PrivateCa, tmp_path: Path) -> Iterator[FakeHubs]:
    tls = ca.server_context(tmp_path / "tls", "127.0.0.1")
    with running_hubs(FakeHubs(models={MODEL: dict(FILES)}), tls=tls) as running:
        yield running


def test_a_hub_is_trusted_by_the_ca_of_the_inventory(ca: PrivateCa, hubs: FakeHubs) -> None:
    hub = HuggingFace(hubs.endpoint, False)
    with hub_session(), pytest.raises(StepFailed, match="is not trusted here") as refused:
        hub.listing(MODEL, None)
    assert "packages.ca" in str(refused.value.hint)
    with hub_session(ca=ca.pem):
        assert {file.path for file in hub.listing(MODEL, None).files} == set(FILES)


@pytest.mark.skipif(os.geteuid() != 0, reason="hosts are worked on as root")
def test_a_host_downloads_from_a_hub_that_it_does_not_trust_by_itself(
    ca: PrivateCa, hubs: FakeHubs, tmp_path: Path
) -> None:
    hub, outside = (
        HuggingFace(hubs.endpoint, False),
        Outside(parse_certificates(ca.pem, time.time())),
    )
    here = LocalTransport(Host(name="gpu1", address="localhost"))
    with hub_session(HostTransport(here)), pytest.raises(StepFailed) as refused:
        hub.listing(MODEL, None)
    assert "certificate verify failed" in refused.value.summary
    assert "packages.ca" in str(refused.value.hint)
    with hub_session(HostTransport(here, outside)):
        source = HubSource(hub, needed(hub.listing(MODEL, None)), say=print)
        manifest = source.manifest("Tiny")
    with pytest.raises(StepFailed, match="certificate verify failed") as untrusted:
        read_by_a_relay(here, manifest, source.read_by("gpu1", NOTHING, entrusted=False), tmp_path)
    assert "packages.ca" in str(untrusted.value.hint)
    read = read_by_a_relay(
        here, manifest, source.read_by("gpu1", outside, entrusted=False), tmp_path
    )
    assert read == FILES
