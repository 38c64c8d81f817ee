"""docs/offline.md: a host that reaches nothing, from the files that a connected machine made to an
answer of a served model. The connected machine is the same host before, with package sources."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    pytest.mark.timeout(2400, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]


@pytest.fixture
def document(lab: LabPaths) -> Iterator[dict[str, Any]]:
    """The lab's first host alone, with the image that has no Ray."""
    lifecycle.down(say=quiet)
    found = yaml.safe_load(lifecycle.up(1, say=quiet).inventory.read_text())
    found["image"] = bare_tag()
    found["image_archive"] = str(Path(found["image_archive"]).with_name("lab-bare.tar"))
    yield found
    lifecycle.down(say=quiet)


def test_nothing_is_fetched_on_the_way_to_an_answer(
    document: dict[str, Any], lab: LabPaths, tmp_path: Path, on_host: OnHost
) -> None:
    operator, site = Operator(tmp_path / "state"), tmp_path / "site"
    site.mkdir()

    # Where there is a network: the image with Ray, and the packages, into one directory.
    connected = tmp_path / "connected.yaml"
    connected.write_text(yaml.safe_dump(document))
    operator.ok("bootstrap", str(connected), timeout=1500)
    bundle = site / "image.tar"
    words = ("image", "bundle", document["image"], "-o", str(bundle), "--json")
    made = operator.ok(*words, "--from", "host:gpu1", "--with-ray", timeout=900).json
    (named,) = (each["image"] for each in made["images"])
    assert named.startswith("clusterctl/")
    assert "-ray" in named
    (site / "packages").mkdir()
    for file in (lab.mirror / "debian").glob("*.deb"):
        shutil.copy(file, site / "packages")
    operator.ok("down", "--purge", "--yes")

    # Where there is none: no package source, no index, no registry.
    on_host("gpu1", "rm -rf /etc/apt/sources.list* /var/lib/apt/lists/*; ip route del default")
    here = {**document, "image": named, "image_archive": "image.tar"}
    here["packages"] = {"offline": "packages"}
    inventory = site / "inventory.yaml"
    inventory.write_text(yaml.safe_dump(here))
    checked = operator.run("check", str(inventory))
    assert "bootstrap fetches" not in checked.text, checked.text
    first = operator.ok("bootstrap", str(inventory), timeout=1500)
    assert "1 node, 1 CPU device" in first.stdout, first.text
    assert "adding Ray" not in first.text
    assert "0 changes made" in operator.ok("bootstrap", str(inventory)).stdout
    served = operator.ok("serve", "/data/models/tiny", "--name", "tiny", "--json").json
    assert served["answer"]["tokens"] > 0
    operator.ok("down", "--purge", "--yes")
