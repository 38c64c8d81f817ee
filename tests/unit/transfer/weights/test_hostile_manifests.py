"""A host writes any manifest it likes; what is placed of it on others stays in that model's
directory. The real parser, the real scripts, in temporary directories."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from clusterctl.inventory.model import Host
from clusterctl.transfer.weights import staging
from clusterctl.transfer.weights.manifest import Manifest, parse
from clusterctl.transfer.weights.on_host import look_at_models
from clusterctl.transfer.weights.staging import need
from clusterctl.transport.local import LocalTransport

DATA = b"{}"
DIGEST = hashlib.sha256(DATA).hexdigest()

NAMES = st.sampled_from(["a", "b", "config.json", "blobs", "x", "snapshots", "1"])
ODD = st.sampled_from(
    [
        "..", "../../outside/planted", "/OUTSIDE/planted", "a/../../../outside/planted", "", ".",
        "~", "a\nlink\t/OUTSIDE\td", "a\tb", "-rf", "$(touch planted)", "a\x00b", "a\\nb", "x.part",
        ".clusterctl-model.json", ".clusterctl-model.json.new", "a b", "'", "*", "\u202e",
        "\ud800",
    ]
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join) | ODD
TARGETS = PATHS | PATHS.map("../".__add__) | PATHS.map("../../".__add__)
MODES = st.sampled_from([0o644, 0o755, 0o4755, 0o6777, 0o2755, 0, -1, 2**70])
DOCUMENTS = st.fixed_dictionaries(
    {
        "format": st.just(1),
        "name": st.sampled_from(["m", "o/m"]) | ODD,
        "origin": st.just(""),
        "files": st.lists(
            st.fixed_dictionaries(
                {
                    "path": PATHS,
                    "size": st.just(len(DATA)),
                    "mode": MODES,
                    "sha256": st.just(DIGEST),
                    "chunks": st.just([]),
                }
            ),
            max_size=4,
        ),
        "links": st.lists(st.fixed_dictionaries({"path": PATHS, "target": TARGETS}), max_size=3),
    }
)


def entry(path: str, mode: int = 0o644) -> dict[str, object]:
    return {"path": path, "size": len(DATA), "mode": mode, "sha256": DIGEST, "chunks": []}


def document(files: list[dict[str, object]], *links: tuple[str, str]) -> dict[str, object]:
    pairs = [{"path": path, "target": target} for path, target in links]
    return {"format": 1, "name": "m", "origin": "", "files": files, "links": pairs}


def text_of(said: dict[str, object], root: str) -> str:
    """The manifest as a host writes it: with the right identity, and names that lead to `root`."""
    said = json.loads(json.dumps(said).replace("/OUTSIDE", f"{root}/outside"))
    files, links = said["files"], said["links"]
    assert isinstance(files, list)
    assert isinstance(links, list)
    lines = [f"{file['path']}\0{file['sha256']}\n" for file in files]
    lines += [f"{link['path']}\0-> {link['target']}\n" for link in links]
    whole = "".join(sorted(lines)).encode("utf-8", "surrogatepass")
    return json.dumps({**said, "identity": hashlib.sha256(whole).hexdigest()})


def place(manifest: Manifest, models: str) -> None:
    """Put the model on this machine as on a host; the chain's part is done here."""
    here = LocalTransport(Host(name="gpu1", address="localhost"))
    found = need(manifest, look_at_models(here, models))
    staging.prepare(here, manifest, found, models)
    for spot in staging.places(manifest, models).values():
        descriptor = os.open(spot.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
        os.write(descriptor, DATA)
        os.fchmod(descriptor, spot.mode)
        os.close(descriptor)
    staging.settle(here, manifest, models)


def below(root: Path) -> dict[str, tuple[int, str]]:
    """Every entry: its mode, and what it holds or leads to."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            held = str(path.readlink())
        else:
            held = path.read_text() if path.is_file() else ""
        found[str(path.relative_to(root))] = (mode, held)
    return found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(DOCUMENTS)
@example(document([entry("config.json", 0o4755)]))
@example(document([entry("blobs/x")], ("snapshots/1/config.json", "../../blobs/x")))
@example(document([entry("config.json")], ("d", "/OUTSIDE")))
@example(document([entry("config.json"), entry("d/planted")], ("d", "../../outside")))
@example(document([entry("config.json")], ("d", "x\nlink\t/OUTSIDE\te")))
def test_what_is_placed_stays_in_the_models_directory(said: dict[str, object]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        models, outside = root / "models", root / "outside"
        for directory in (models / "other", outside):
            directory.mkdir(parents=True)
            (directory / "config.json").write_text("kept")
        before = below(outside), below(models / "other")
        try:
            manifest = parse(text_of(said, folder))
        except ValueError:
            event("refused")
            return
        event("placed")
        for _ in range(2):  # the second time through whatever the first one left
            place(manifest, str(models))
        assert (below(outside), below(models / "other")) == before
        assert sorted(path.name for path in root.iterdir()) == ["models", "outside"]
        final = models / manifest.name
        for path, (mode, _) in below(models).items():
            assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX), path
            assert not mode & 0o022 or stat.S_ISLNK(mode), path
            assert (models / path).resolve().is_relative_to(models), path
        assert {file.path for file in manifest.files} <= set(below(final))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '"\\ud800"', "NaN"])
def test_no_text_is_more_than_a_wrong_manifest(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@given(st.text() | st.recursive(st.none() | st.text(), st.lists, max_leaves=9).map(json.dumps))
def test_any_text_is_a_manifest_or_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)
