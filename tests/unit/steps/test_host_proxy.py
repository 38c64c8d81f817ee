"""The proxy of the inventory on a host: what it says it does, and to whom it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.engine.step import Change
from clusterctl.errors import InventoryError, RequirementsNotMet
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.outside import proxy_variables
from clusterctl.operations.bootstrap_stages import host_stages
from clusterctl.steps.host_proxy import HostProxy
from tests.fakes.container_engine import foreign
from tests.fakes.private_ca import private_ca
from tests.unit.steps.stage import PROXY, cluster

INVENTORY = """\
cluster: demo
image: vllm/vllm-openai:v0.33.0
network: {subnet: 10.0.0.0/24}
packages:
  proxy: %s
hosts:
  gpu1: {address: gpu1.corp, node_ip: 10.0.0.1, role: head}
  gpu2: {address: 10.0.0.2}
"""


def read(folder: Path, proxy: str) -> Inventory:
    (folder / "site.yaml").write_text(INVENTORY % proxy)
    return load(folder / "site.yaml")


def problem(folder: Path, proxy: str) -> str:
    with pytest.raises(InventoryError) as caught:
        read(folder, proxy)
    return str(caught.value.detail).removeprefix(str(folder))


def test_the_cluster_is_reached_without_the_proxy(tmp_path: Path) -> None:
    proxy = "{https: 'http://proxy.corp:3128/', no_proxy: [.corp, gpu2]}"
    assert proxy_variables(read(tmp_path, proxy)) == {
        "https_proxy": "http://proxy.corp:3128",
        "no_proxy": "localhost,127.0.0.1,::1,gpu1,gpu1.corp,10.0.0.1,gpu2,10.0.0.2,10.0.0.0/24,"
        ".corp",
    }


def test_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    said = problem(tmp_path, "{http: 'http://ann:s3cret@proxy.corp:3128'}")
    assert said.startswith("/site.yaml:5:17: `packages.proxy.http` must be http://HOST:PORT")
    assert "s3cret" not in said
    assert 'not "http://***@proxy.corp:3128"' in said


def test_nor_is_one_without_a_scheme(tmp_path: Path) -> None:
    said = problem(tmp_path, "{http: 'ann:s3c/ret@proxy.corp:3128'}")
    assert said.endswith('; not "***@proxy.corp:3128"')
    assert "s3c" not in said


def test_a_proxy_without_a_url(tmp_path: Path) -> None:
    said = problem(tmp_path, "{no_proxy: [.corp]}")
    assert said == "/site.yaml:5:10: `packages.proxy` needs `http` or `https`: the URL of the proxy"


def test_a_restart_that_stops_containers_is_named_and_asked_for() -> None:
    made = cluster()
    step = HostProxy("demo", PROXY, pause=lambda _: None)
    assert step.check(made.head_view) == Change(
        "use the proxy http://proxy.corp:3128 and restart Docker, which stops no container"
    )
    other = foreign("database")
    made.head.engine.containers[other.id] = other
    assert step.check(made.head_view) == Change(
        "use the proxy http://proxy.corp:3128 and restart Docker, which stops database",
        disruptive=True,
    )


def test_a_docker_that_has_the_proxy_by_itself_is_not_restarted() -> None:
    made = cluster()
    made.head.engine_proxy = {"HttpsProxy": PROXY["https_proxy"], "NoProxy": PROXY["no_proxy"]}
    step = HostProxy("demo", PROXY, pause=lambda _: None)
    assert step.check(made.head_view) == Change("use the proxy http://proxy.corp:3128")


def test_with_a_ca_too_the_second_run_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(private_ca("Corp").pem)
    file = tmp_path / "site.yaml"
    file.write_text(INVENTORY % "{https: 'http://proxy.corp:3128'}")
    file.write_text(file.read_text().replace("packages:\n", "packages:\n  ca: ca.pem\n"))
    made = cluster()
    for _ in range(2):
        changes = []
        for step in host_stages(load(file), ("gpu1",), {})[0].steps:
            change = step.check(made.head_view)
            if isinstance(change, Change):
                changes.append(change)
                step.apply(made.head_view, change)
    assert changes == []


def test_docker_is_not_restarted_for_a_host_that_is_new() -> None:
    made = cluster()
    made.head.engine_proxy = {"HttpsProxy": PROXY["https_proxy"], "NoProxy": "localhost,.corp,gpu1"}
    step = HostProxy("demo", PROXY | {"no_proxy": "localhost,gpu1,gpu2,.corp"}, [".corp"])
    assert step.check(made.head_view) == Change("use the proxy http://proxy.corp:3128")
    step.apply(made.head_view, Change("use"))
    assert step.check(made.head_view) is None
    restarted = HostProxy("demo", PROXY, [".corp", "registry.lan"]).check(made.head_view)
    assert isinstance(restarted, Change)
    assert "restart Docker" in restarted.summary


def test_a_running_docker_without_systemd_cannot_be_given_one() -> None:
    made = cluster()
    made.head.systemd = False
    with pytest.raises(RequirementsNotMet, match="needs systemd"):
        HostProxy("demo", PROXY).check(made.head_view)
