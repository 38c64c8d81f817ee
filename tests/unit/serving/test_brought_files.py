"""Files of this machine that vLLM's flags name, brought to where vLLM can read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, Problems, StepFailed
from clusterctl.inventory.model import Host
from clusterctl.serving.brought_files import LARGEST, carry, with_brought
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.service import build_service
from clusterctl.serving.vllm_flags import parse_arguments, render
from tests.fakes.transport import FakeTransport, starts
from tests.unit.serving.launches import launch


def request(*flags: str) -> ServiceRequest:
    return read_request(Options("m"), (), parse_arguments(flags))


def test_a_file_gets_a_path_on_the_hosts_that_changes_with_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    template = Path("my template.jinja")
    paths = []
    for text in ("{{ a }}", "{{ b }}", "{{ a }}"):
        template.write_text(text)
        moved, (file,) = with_brought(request("--chat-template", f"./{template}"), "demo")
        assert render(moved.given) == ["--chat-template", file.path]
        assert file.data == text.encode()
        paths.append(file.path)

    assert paths[0] == paths[2] != paths[1]
    assert paths[0].startswith("/etc/clusterctl/demo/files/")
    assert paths[0].endswith("-my-template.jinja")


@pytest.mark.parametrize(
    "flags",
    [
        ("--chat-template", "/data/models/t.jinja"),
        ("--chat-template", "{{ messages[0].content }}"),
        ("--tool-call-parser", "hermes"),
        ("--lora-modules", "a=/data/models/a"),
    ],
)
def test_paths_on_hosts_and_templates_in_words_stay_as_they_are(flags: tuple[str, ...]) -> None:
    asked = request(*flags)
    assert with_brought(asked, "demo") == (asked, ())


def test_every_missing_file_is_named_with_its_flag(tmp_path: Path) -> None:
    flags = ("--chat-template", "./no.jinja", "--tool-parser-plugin=plugins/no.py")
    with pytest.raises(Problems) as caught:
        with_brought(request(*flags), "demo")
    assert [str(error) for error in caught.value.errors] == [
        "--chat-template no.jinja (command line): no such file on this machine",
        "--tool-parser-plugin plugins/no.py (command line): no such file on this machine",
    ]


def test_a_file_without_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.jinja").write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(ClusterctlError, match="larger than 1 MiB"):
        with_brought(request("--chat-template", "~/t.jinja"), "demo")


def test_a_replica_takes_its_files_to_a_host_that_is_newer_than_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.jinja").write_text("{{ a }}")
    asked, (file,) = with_brought(request("--chat-template", "t.jinja"), "demo")
    document = build_service(replace(launch(), request=asked))
    head = FakeTransport().on(("cat", file.path), stdout="{{ a }}")
    new = FakeTransport(Host(name="gpu5", address="192.0.2.5")).on(starts("install", "-d"))
    carry(document, "demo", head, new)
    assert new.files == {file.path: (b"{{ a }}", 0o600, True)}


@pytest.mark.parametrize(
    ("path", "held"),
    [
        ("/etc/clusterctl/demo/files/../../../../var/lib/clusterctl/caches/demo/d/job", "x"),
        ("/etc/clusterctl/demo/files/0123456789abcdef-t.jinja", "other than was brought"),
        ("/etc/clusterctl/demo/files/d/0123456789abcdef-t.jinja", "x"),
        ("/etc/clusterctl/demo/files/t.jinja", "x"),
        ("/etc/clusterctl/demo/files/", "x"),
    ],
)
def test_a_replica_takes_nothing_that_was_not_brought(path: str, held: str) -> None:
    """What lies there by another name, or with another content, is no file of a service."""
    document = build_service(replace(launch(), request=request("--chat-template", path)))
    head = FakeTransport().on(lambda argv: argv[0] == "cat", stdout=held)
    new = FakeTransport(Host(name="gpu5", address="192.0.2.5"))
    with pytest.raises(StepFailed, match="changed since `serve` copied it"):
        carry(document, "demo", head, new)
    assert not new.files
    assert not new.calls


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda it: (it / "t").symlink_to("../outside/x"), "is a link out of its directory"),
        (lambda it: (it / "t").symlink_to(it.parent / "outside" / "x"), "is a link out of"),
        (lambda it: (it / "t").write_text(KEY), "is a private key"),
        (lambda it: (it / "t").write_text(f"{{# x #}}\n{KEY}"), "is a private key"),
        (lambda it: (it / "t").write_text("PuTTY-User-Key-File-3: x"), "is a private key"),
        (lambda it: (it / "t").symlink_to(".netrc"), "is hidden"),
    ],
)
def test_a_cloned_model_brings_nothing_but_its_own_files(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    for name in ("model", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "x").write_text("secret")
    (tmp_path / "model" / ".netrc").write_text("secret")
    make(tmp_path / "model")
    with pytest.raises(ClusterctlError, match=why):
        with_brought(request("--chat-template", "model/t"), "demo", tmp_path)


def test_a_snapshot_of_the_hubs_cache_brings_its_blob(tmp_path: Path) -> None:
    snapshot = tmp_path / ".cache" / "models--a--b" / "snapshots" / "1234"
    blobs = snapshot.parent.parent / "blobs"
    for each in (snapshot, blobs):
        each.mkdir(parents=True)
    (blobs / "abcd").write_text("{{ a }}")
    (snapshot / "chat_template.jinja").symlink_to("../../blobs/abcd")
    name = str(snapshot.relative_to(tmp_path) / "chat_template.jinja")
    _, (file,) = with_brought(request("--chat-template", name), "demo", tmp_path)
    assert file.data == b"{{ a }}"
