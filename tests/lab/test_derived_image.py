"""One host, and an image without Ray, as vLLM's own are: Ray is added on the host, from the package
index that the inventory names, and a model is served with what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clusterctl.lab import lifecycle
from clusterctl.lab.image import bare_tag
from clusterctl.lab.paths import LabPaths
from tests.lab.cluster import Operator, quiet
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]


@pytest.fixture(scope="module")
def inventory(lab: LabPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The lab's first host alone, with the image that has no Ray."""
    lifecycle.down(say=quiet)
    made = lifecycle.up(1, say=quiet)
    document = yaml.safe_load(made.inventory.read_text())
    document["cluster"] = "alone"
    document["image"] = bare_tag()
    document["image_archive"] = str(Path(document["image_archive"]).with_name("lab-bare.tar"))
    file = tmp_path_factory.mktemp("alone") / "inventory.yaml"
    file.write_text(yaml.safe_dump(document))
    yield str(file)
    lifecycle.down(say=quiet)


def test_ray_is_added_once_and_a_model_served_on_one_host(
    inventory: str, tmp_path: Path, on_host: OnHost
) -> None:
    operator = Operator(tmp_path)
    first = operator.ok("bootstrap", inventory, timeout=1500)
    assert "1 node, 1 CPU device," in first.stdout, first.text
    images = on_host("gpu1", "docker images --format '{{.Repository}}:{{.Tag}}'").stdout
    assert "-ray2.60.0" in images, images
    again = operator.ok("bootstrap", inventory)
    assert "0 changes made" in again.stdout
    assert "no problem found" in operator.ok("check", inventory).stdout
    on_host("gpu1", "chmod 644 /etc/clusterctl/alone/api.key; docker stop -t 5 clusterctl-alone")
    differs = operator.run("check", inventory)
    assert differs.status == 5, differs.text
    assert "gpu1: has drifted from the inventory: " in differs.stderr
    assert "start clusterctl-alone again" in differs.stderr
    assert "api.key" in differs.stderr
    operator.ok("bootstrap", inventory)
    served = operator.ok("serve", "/data/models/tiny", "--name", "tiny", "--json").json
    assert served["answer"]["tokens"] > 0
    words = ("serve", "/data/models/tiny", "--name", "tiny", "--yes", "--json")
    pooled = operator.ok(*words, "--", "--runner", "pooling").json
    assert pooled["changed"]
    assert pooled["answer"]["task"] == "embeddings"
    operator.ok("down", "--purge", "--yes")
    assert on_host("gpu1", "command -v docker").stdout == ""
