"""Where images come from, what is in them, and what is said when none can be had."""

from __future__ import annotations

import json
import tarfile
import threading
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from clusterctl.engine.plan import Stage
from clusterctl.engine.planner import plan
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.steps.derived_image import RayInImage, dockerfile, index_arguments
from clusterctl.steps.image_copied import ImageCopied
from clusterctl.steps.image_holders import ImageHolders
from clusterctl.steps.image_present import ImagePresent
from clusterctl.steps.images_absent import ImagesAbsent
from clusterctl.steps.node_image import REFERENCE_LABEL, content, tag_for
from clusterctl.steps.ray_pin import has_tokens, ray_for
from tests.fakes.container_engine import image
from tests.unit.steps.stage import REFERENCE, Cluster, cluster, give_base, give_node_image


@pytest.fixture
def made() -> Cluster:
    return cluster()


def listening(view: HostView) -> tuple[HostView, list[str]]:
    said: list[str] = []
    return replace(view, say=said.append), said


def present(made: Cluster, archive: Path | None = None) -> ImagePresent:
    others = (made.head_view, made.worker_view)
    return ImagePresent(
        REFERENCE, made.engines, others=others, node_ip=lambda v: v.host.address, archive=archive
    )


def copied(made: Cluster) -> ImageCopied:
    return ImageCopied(made.node_image, made.engines, lambda view: view.host.address)


def archive_of(path: Path, *layers: str) -> Path:
    """A docker archive that says what is in it, without the layers."""
    files = {
        "manifest.json": [{"Config": "c.json", "RepoTags": [REFERENCE], "Layers": []}],
        "c.json": {"rootfs": {"diff_ids": list(layers)}},
    }
    with tarfile.open(path, "w") as tar:
        for name, content_ in files.items():
            data = json.dumps(content_).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, BytesIO(data))
    return path


def test_another_host_comes_before_the_registry(made: Cluster) -> None:
    give_base(made.worker)
    made.head.engine.registry[REFERENCE] = image("other", REFERENCE)
    view, said = listening(made.head_view)
    present(made).apply(view, Change(""))
    assert said[0] == "from gpu2"
    assert made.head.engine.images["base"].layers == ("layer-base",)


def test_a_host_whose_engine_is_down_gives_nothing_and_hinders_nothing(made: Cluster) -> None:
    made.worker.engine.running = False
    made.head.engine.registry[REFERENCE] = image("base", REFERENCE)
    present(made).apply(made.head_view, Change(""))
    assert "base" in made.head.engine.images


def test_an_image_that_is_nowhere_is_said_so(made: Cluster) -> None:
    with pytest.raises(StepFailed, match="is on no host, and the registry has no such image"):
        present(made).apply(made.head_view, Change(""))


def test_an_image_for_another_processor_is_refused_before_it_is_sent(made: Cluster) -> None:
    give_base(made.worker)
    made.worker.engine.images["base"] = replace(
        made.worker.engine.images["base"], architecture="arm64"
    )
    with pytest.raises(RequirementsNotMet, match="made for arm64, and the host is amd64"):
        present(made).apply(made.head_view, Change(""))


def test_a_full_disk_is_told_with_sizes_before_anything_is_sent(made: Cluster) -> None:
    give_base(made.worker)
    made.worker.engine.images["base"] = replace(
        made.worker.engine.images["base"], size=20 * 1024**3
    )
    made.head.engine.free = 30 * 1024**3
    with pytest.raises(RequirementsNotMet, match=r"20\.0 GiB needs 42\.0 GiB .* 30\.0 GiB free"):
        present(made).apply(made.head_view, Change(""))


def test_an_archive_with_other_layers_replaces_the_image(made: Cluster, tmp_path: Path) -> None:
    give_base(made.head)
    same = archive_of(tmp_path / "same.tar", "layer-base")
    newer = archive_of(tmp_path / "newer.tar", "layer-new")
    assert present(made, same).check(made.head_view) is None
    change = present(made, newer).check(made.head_view)
    assert change is not None
    assert "replace" in change.summary


def test_the_worker_cannot_be_planned_before_the_head_has_its_image(made: Cluster) -> None:
    stages = [Stage("Image", ("gpu2",), (copied(made),))]
    found = plan(stages, {"gpu2": made.worker_view}).changes[0].change
    assert found == Unknown("gpu1 gets the image first")


def test_an_engine_missing_on_the_head_is_unknown_for_the_worker(made: Cluster) -> None:
    made.head.engine.running = False
    assert isinstance(copied(made).check(made.worker_view), Unknown)


def test_a_worker_gets_the_image_by_the_heads_name(made: Cluster) -> None:
    give_base(made.head)
    give_node_image(made.head)
    copied(made).apply(made.worker_view, Change(""))
    found = made.node_image.on(made.worker_view)
    assert found.layers == made.node_image.on(made.head_view).layers


def test_without_a_way_between_the_hosts_it_goes_through_this_machine(made: Cluster) -> None:
    give_base(made.head)
    give_node_image(made.head)
    view, said = listening(made.worker_view)
    copied(made).apply(view, Change(""))
    assert any("through this machine" in line for line in said)


def test_a_host_that_was_served_serves_others(made: Cluster) -> None:
    """With one place on the head, the second worker waits until the first has it."""
    holders = ImageHolders(made.head_view, receivers=1)
    third = cluster().worker_view
    with holders.lend(made.worker_view) as first:
        assert first.host.name == "gpu1"
        got: list[str] = []

        def wait_for_a_turn() -> None:
            with holders.lend(third, patience=10) as holder:
                got.append(holder.host.name)

        waiting = threading.Thread(target=wait_for_a_turn)
        waiting.start()
        holders.add(made.worker_view)
        waiting.join(10)
    assert got == ["gpu2"]


def test_a_wait_for_a_turn_ends(made: Cluster) -> None:
    holders = ImageHolders(made.head_view, receivers=1)
    view, said = listening(made.worker_view)
    with (
        holders.lend(made.worker_view),
        pytest.raises(StepFailed, match="no host came free"),
        holders.lend(view, patience=0.01),
    ):
        pass
    assert said == ["waiting for a turn: gpu1 are sending"]


def ray_step(made: Cluster, *, allow: bool = False, index: str | None = None) -> RayInImage:
    return RayInImage(made.node_image, made.engines, allow_unauthenticated=allow, pip_index=index)


def test_ray_is_added_where_it_lacks(made: Cluster) -> None:
    give_base(made.head)
    ray_step(made).apply(made.head_view, Change(""))
    node = made.node_image.on(made.head_view)
    assert node.tags == ("clusterctl/vllm-openai:v0.33.0-ray2.56.1",)
    assert node.layers == ("layer-base", "ray")
    assert node.labels[REFERENCE_LABEL] == REFERENCE


def test_an_image_with_ray_gets_labels_and_no_layer(made: Cluster) -> None:
    give_base(made.head)
    made.head.engine.contents = {"ray": "2.60.0", "vllm": "0.32.0+cpu"}
    ray_step(made).apply(made.head_view, Change(""))
    node = made.node_image.on(made.head_view)
    assert node.tags == ("clusterctl/vllm-openai:v0.33.0-ray2.60.0",)
    assert node.layers == ("layer-base",)


def test_a_new_image_under_the_old_name_is_derived_anew(made: Cluster) -> None:
    give_base(made.head)
    ray_step(made).apply(made.head_view, Change(""))
    made.head.engine.images["base"] = image("base", REFERENCE, layers=("another",))
    assert ray_step(made).check(made.head_view) is not None


def test_ray_without_authentication_is_refused_unless_allowed(made: Cluster) -> None:
    give_base(made.head)
    made.head.engine.contents = {"ray": "2.40.0", "vllm": "0.7.2"}
    with pytest.raises(RequirementsNotMet, match=r"Ray 2\.40\.0") as raised:
        ray_step(made).apply(made.head_view, Change(""))
    assert "allow_unauthenticated_ray" in str(raised.value.hint)
    ray_step(made, allow=True).apply(made.head_view, Change(""))
    assert made.node_image.on(made.head_view).tags[0].endswith("-ray2.40.0")


def test_the_start_of_the_build_leaves_no_name_behind(made: Cluster) -> None:
    give_base(made.head)
    ray_step(made).apply(made.head_view, Change(""))
    assert made.head.engine.images["base"].tags == (REFERENCE,)


@pytest.mark.parametrize(
    ("vllm", "ray"),
    [("0.33.0", "2.56.1"), ("0.32.0+cpu", "2.60.0"), ("0.99.1", "2.56.1"), (None, "2.56.1")],
)
def test_ray_goes_with_vllm(vllm: str | None, ray: str) -> None:
    assert ray_for(vllm) == ray


@pytest.mark.parametrize(
    ("ray", "knows"), [("2.51.9", False), ("2.52.0", True), ("2.60.0rc1", True), ("3.0.0", True)]
)
def test_tokens_came_with_ray_2_52(ray: str, knows: bool) -> None:
    assert has_tokens(ray) is knows


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        ("vllm/vllm-openai:v0.33.0", "clusterctl/vllm-openai:v0.33.0-ray2.56.1"),
        ("registry:5000/acme/vllm", "clusterctl/vllm:latest-ray2.56.1"),
        ("acme/vllm@sha256:" + "ab" * 32, "clusterctl/vllm:abababababab-ray2.56.1"),
    ],
)
def test_the_node_images_name_says_what_it_is_made_of(reference: str, tag: str) -> None:
    assert tag_for(reference, "2.56.1") == tag


def test_an_index_over_plain_http_is_trusted_by_name() -> None:
    assert index_arguments("http://10.77.0.1:8080/simple") == {
        "PIP_INDEX_URL": "http://10.77.0.1:8080/simple",
        "PIP_TRUSTED_HOST": "10.77.0.1",
    }
    assert index_arguments("https://mirror.example/simple") == {
        "PIP_INDEX_URL": "https://mirror.example/simple"
    }
    assert index_arguments(None) == {}


def test_the_recipe_installs_the_pinned_ray() -> None:
    text = dockerfile("base:1", {"a": "b"}, add_ray="2.56.1")
    assert text.startswith("FROM base:1\n")
    assert text.count("'ray[default]==2.56.1'") == 2
    assert text.endswith('LABEL a="b"\n')
    assert dockerfile("base:1", {"a": "b"}, add_ray=None) == 'FROM base:1\nLABEL a="b"\n'


def test_content_is_the_same_wherever_the_image_is() -> None:
    assert content(image("id-on-one-host", layers=("a", "b"))) == content(
        image("id-on-another", layers=("a", "b"))
    )
    assert content(image("x", layers=("a",))) != content(image("x", layers=("b",)))


def gone(made: Cluster) -> ImagesAbsent:
    return ImagesAbsent(REFERENCE, made.engines, "/etc/clusterctl/demo")


def test_purge_keeps_an_image_that_was_there_before_bootstrap(made: Cluster) -> None:
    give_base(made.head)
    ray_step(made).apply(made.head_view, Change(""))
    gone(made).apply(made.head_view, Change(""))
    assert [found.tags for found in made.head.engine.images.values()] == [(REFERENCE,)]


def test_purge_takes_what_bootstrap_brought_and_nothing_that_comes_later(made: Cluster) -> None:
    made.head.engine.registry[REFERENCE] = image("base", REFERENCE)
    present(made).apply(made.head_view, Change(""))
    assert gone(made).check(made.head_view) == Change(f"remove {REFERENCE}")
    gone(made).apply(made.head_view, Change(""))
    assert made.head.engine.images == {}
    give_base(made.head)  # by somebody else
    assert gone(made).check(made.head_view) is None


def test_purge_leaves_images_to_another_cluster_of_the_host(made: Cluster) -> None:
    give_node_image(made.head)
    made.head.directories["/etc/clusterctl/other"] = 0o700
    assert gone(made).check(made.head_view) is None
