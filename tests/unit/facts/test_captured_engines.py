"""What parsers make of the container engines in whole probes of different hosts."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl.facts.parse import Probe

Captured = Callable[[str], Probe]


def test_the_engine_says_its_version_and_where_images_live(captured: Captured) -> None:
    engine = captured("debian-12-docker-20.10").facts.engine
    assert engine.installed
    assert engine.running
    assert (engine.version, engine.data_root) == ("20.10.24+dfsg1", "/var/lib/docker")
    assert not engine.containerd_store
    assert not engine.rootless
    assert not engine.snap


def test_our_containers_come_with_state_labels_and_image(captured: Captured) -> None:
    found = {c.name: c for c in captured("debian-12-docker-20.10").containers}
    assert set(found) == {"clusterctl-demo", "clusterctl-old"}, "not the one without the label"
    demo = found["clusterctl-demo"]
    assert (demo.state, demo.exit_code) == ("running", 0)
    assert demo.labels["clusterctl.cluster"] == "demo"
    assert demo.labels["clusterctl.fingerprint"] == "abc123"
    assert (found["clusterctl-old"].state, found["clusterctl-old"].exit_code) == ("exited", 3)


def test_the_asked_image_comes_with_its_layers(captured: Captured) -> None:
    probe = captured("debian-12-docker-20.10")
    assert probe.image is not None
    assert probe.image.id == probe.containers[0].image
    assert probe.image.labels == {"clusterctl.ray": "2.60.0"}
    assert len(probe.image.layers) == 1
    assert probe.image.size == 2974440


def test_nothing_of_a_containers_environment_leaves_the_host(
    capture_text: Callable[[str], str],
) -> None:
    """The captured container was started with SECRET in its environment."""
    assert "should-not-travel" not in capture_text("debian-12-docker-20.10")


def test_a_daemon_that_is_down_is_told_in_dockers_words(captured: Captured) -> None:
    engine = captured("debian-12-daemon-down").facts.engine
    assert engine.installed
    assert not engine.running
    assert engine.error == (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
        "Is the docker daemon running?"
    )


def test_the_containerd_image_store_is_recognised(captured: Captured) -> None:
    engine = captured("ubuntu-24.04-8-gpus").facts.engine
    assert engine.containerd_store


def test_a_moved_data_root_is_measured_where_it_is(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.engine.data_root == "/data/docker"
    disk = facts.disk("/data/docker")
    assert disk is not None
    assert disk.free == 14100000000 * 1024


def test_podman_under_dockers_name_is_no_engine(captured: Captured) -> None:
    engine = captured("rhel-9-podman").facts.engine
    assert engine.podman
    assert not engine.running
    assert engine.error == "`docker` is Podman under another name"


def test_a_refused_docker_socket(captured: Captured) -> None:
    engine = captured("spark-gb10-docker-denied").facts.engine
    assert engine.installed
    assert engine.error is not None
    assert engine.error.startswith("permission denied")
