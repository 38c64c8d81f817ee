"""What the probe finds in real directories, and what is made of it over several hosts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import CommandFailed, Problems, RequirementsNotMet, UsageError
from clusterctl.inventory.model import Host
from clusterctl.models.location import locate
from clusterctl.models.name import resolve
from clusterctl.models.probe import ModelDirectory, look_for, parse_probe
from clusterctl.transport.base import Channel, CommandResult
from tests.fakes.catalogue import config_of

CONFIG = json.dumps(config_of("Qwen/Qwen2.5-1.5B-Instruct"))
MODEL = resolve("qwen2.5-1.5b", "/data/models")
PATH = "/data/models/Qwen2.5-1.5B-Instruct"
WHOLE = ModelDirectory(PATH, CONFIG, weight_files=1, chat_template=True)


class ThisMachine:
    """A transport to the machine that the test runs on; commands only."""

    host = Host(name="here", address="127.0.0.1")

    def connect(self) -> None: ...

    breaks = 0

    def another(self) -> ThisMachine:
        return self

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", sudo: bool = False, timeout: float = 60
    ) -> CommandResult:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout)
        out, err = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
        return CommandResult(tuple(argv), done.returncode, out, err)

    def put(
        self,
        data: bytes,
        path: str,
        *,
        mode: int = 0o644,
        sudo: bool = False,
        before: str | None = None,
    ) -> None:
        raise NotImplementedError

    def read_file(self, path: str, *, sudo: bool = True) -> bytes | None:
        raise NotImplementedError

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        raise NotImplementedError

    def open_tcp(self, address: str, port: int) -> Channel:
        raise NotImplementedError

    def close(self) -> None: ...


class Refusing(ThisMachine):
    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", sudo: bool = False, timeout: float = 60
    ) -> CommandResult:
        return CommandResult(tuple(argv), 127, "", "sh: not found")


def model_directory(path: Path, *, weights: int = 1, config: str = CONFIG) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(config, encoding="utf-8")
    for number in range(weights):
        (path / f"model-{number}.safetensors").write_bytes(b"\0" * 2048)
    return path


def probe(*candidates: Path) -> tuple[ModelDirectory, ...]:
    return look_for(ThisMachine(), [str(path) for path in candidates])


def test_a_whole_model_is_found_with_its_config(tmp_path: Path) -> None:
    path = model_directory(tmp_path / "it's a model; $(rm)", weights=2)
    (path / "chat_template.jinja").write_text("x", encoding="utf-8")
    (path / "training_args.bin").write_bytes(b"\0" * 99)

    (found,) = probe(tmp_path / "absent", path)

    assert found == ModelDirectory(str(path), CONFIG, 2, chat_template=True)
    assert found.complete
    assert found.shape is not None
    assert found.shape.heads == 12


def test_a_hugging_face_cache_is_looked_through_to_the_revision_in_use(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    blob = tmp_path / "blob"
    blob.write_bytes(b"\0" * 5000)
    model_directory(cache / "snapshots" / "old")
    new = model_directory(cache / "snapshots" / "new", weights=0)
    (new / "model.safetensors").symlink_to(blob)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("new", encoding="utf-8")

    (found,) = probe(cache)

    assert (found.path, found.weight_files) == (str(new), 1)


def test_a_cache_without_a_main_revision_gives_a_snapshot(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    model_directory(cache / "snapshots" / "only")

    assert [found.path for found in probe(cache)] == [f"{cache}/snapshots/only"]


def test_an_interrupted_copy_names_the_missing_files(tmp_path: Path) -> None:
    path = model_directory(tmp_path / "m")
    shards = {"a": "model-0.safetensors", "b": "model-1.safetensors", "c": "model-1.safetensors"}
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": shards}, indent=2), encoding="utf-8"
    )

    (found,) = probe(path)

    assert found.missing == ("model-1.safetensors",)
    assert not found.complete


def test_pointers_of_git_lfs_are_no_weights(tmp_path: Path) -> None:
    path = model_directory(tmp_path / "m", weights=0)
    (path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\nsize 3\n", encoding="utf-8"
    )

    (found,) = probe(path)

    assert (found.pointers, found.weight_files, found.complete) == (1, 0, False)


def test_a_mark_says_that_weights_are_left_out_on_purpose(tmp_path: Path) -> None:
    path = model_directory(tmp_path / "m", weights=0)
    (path / "RANDOM_WEIGHTS").touch()

    assert probe(path)[0].random_weights


def test_a_config_that_looks_like_the_probes_own_output_is_content(tmp_path: Path) -> None:
    config = '{\n"a":\n"x"}\nend\ndirectory /etc\nweights 9 9'
    path = model_directory(tmp_path / "m", config=config)

    (found,) = probe(path)

    assert found.config == config
    assert found.weight_files == 1


def test_a_record_cut_short_is_left_out() -> None:
    assert parse_probe("directory /m\nweights 1 0\n|{}") == ()


def test_a_host_without_a_shell_is_named() -> None:
    with pytest.raises(CommandFailed) as caught:
        look_for(Refusing(), ["/m"])

    assert caught.value.host == "here"
    assert caught.value.detail == "sh: not found"


def test_a_model_on_every_host_is_located() -> None:
    location = locate(MODEL, {"gpu1": [WHOLE], "gpu2": [WHOLE]})

    assert (location.path, location.random_weights, location.note) == (PATH, False, "")
    assert location.shape is not None
    assert location.chat_template


def test_a_model_missing_on_one_host_names_it_and_the_copy_that_mends_it() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(MODEL, {"gpu1": [WHOLE], "gpu2": []}, head="gpu1")

    assert str(caught.value) == f"gpu2: the model is missing: {PATH}"
    assert caught.value.hint == ("clusterctl model push Qwen2.5-1.5B-Instruct --from host:gpu1")


@pytest.mark.parametrize(
    ("asked", "path", "hint"),
    [
        ("org/name", "/data/models/models--org--name/snapshots/c0ffee",
         "clusterctl model push models--org--name --from host:gpu1"),
        ("/data/models/mine", "/data/models/mine",
         "clusterctl model push mine --from host:gpu1"),
        ("/srv/mine", "/srv/mine",
         "clusterctl ssh gpu1, then on it: rsync -a --partial /srv/mine/ HOST:/srv/mine/"),
    ],
)  # fmt: skip
def test_the_copy_keeps_the_models_place(asked: str, path: str, hint: str) -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(resolve(asked, "/data/models"), {"gpu1": [replace(WHOLE, path=path)], "gpu2": []})

    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("qwen2.5-1.5b", "clusterctl model pull qwen2.5-1.5b"),
        ("org/name", "clusterctl model pull org/name"),
        ("/data/models/mine", "clusterctl model push DIRECTORY --name mine"),
        ("/srv/mine", "put it at /srv/mine on every host"),
    ],
)
def test_a_model_that_no_host_has_is_pulled_or_pushed(asked: str, hint: str) -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(resolve(asked, "/data/models"), {"gpu1": [], "gpu2": []})

    assert caught.value.hint == hint


def test_every_host_that_lacks_it_is_named() -> None:
    with pytest.raises(Problems) as caught:
        locate(MODEL, {"a": [WHOLE], "b": [], "c": [replace(WHOLE, missing=("x.safetensors",))]})

    assert [error.host for error in caught.value.errors] == ["b", "c"]
    assert "x.safetensors" in str(caught.value.errors[1])


def test_a_model_on_no_host_says_where_it_was_looked_for() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(MODEL, {"a": [], "b": []})

    assert "none of the hosts (a, b)" in str(caught.value)
    assert PATH in (caught.value.detail or "")


def test_a_config_without_weights_asks_for_weights_or_says_how_to_go_without() -> None:
    shape_only = replace(WHOLE, weight_files=0)

    with pytest.raises(UsageError) as caught:
        locate(MODEL, {"a": [shape_only], "b": [shape_only]})

    assert "--load-format dummy" in (caught.value.hint or "")


@pytest.mark.parametrize("marked", [True, False])
def test_random_weights_are_served_when_asked_for_or_marked_and_said(marked: bool) -> None:
    shape_only = replace(WHOLE, weight_files=0, random_weights=marked)

    location = locate(MODEL, {"a": [shape_only], "b": [shape_only]}, random_weights=not marked)

    assert location.random_weights
    assert "random weights" in location.note


def test_pointers_are_mended_by_git_lfs() -> None:
    pointers = replace(WHOLE, weight_files=0, pointers=2)

    with pytest.raises(RequirementsNotMet) as caught:
        locate(MODEL, {"a": [WHOLE], "b": [pointers]})

    assert caught.value.hint == f"git -C {PATH} lfs pull"


def test_pointers_everywhere_are_named_on_every_host() -> None:
    pointers = replace(WHOLE, weight_files=0, pointers=2)

    with pytest.raises(Problems) as caught:
        locate(MODEL, {"a": [pointers], "b": [pointers]})

    assert [error.host for error in caught.value.errors] == ["a", "b"]


def test_another_revision_on_one_host_is_named() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(MODEL, {"a": [WHOLE], "b": [replace(WHOLE, config="{}")], "c": [WHOLE]})

    assert caught.value.host == "b"
    assert "differs from the one on a" in str(caught.value)


def test_of_two_places_the_one_that_all_hosts_have_is_taken() -> None:
    other = replace(WHOLE, path="/data/models/Qwen/Qwen2.5-1.5B-Instruct")

    location = locate(MODEL, {"a": [WHOLE, other], "b": [other]})

    assert location.path == other.path


def test_of_two_places_on_all_hosts_the_likelier_is_taken() -> None:
    cached = replace(WHOLE, path="/data/models/models--Qwen--Qwen2.5-1.5B-Instruct/snapshots/1")

    assert locate(MODEL, {"a": [cached, WHOLE]}).path == PATH


def test_an_unreadable_or_missing_config_is_said() -> None:
    with pytest.raises(Problems) as caught:
        locate(
            MODEL,
            {
                "a": [WHOLE],
                "b": [replace(WHOLE, config=None)],
                "c": [replace(WHOLE, config=None, unreadable=("config.json",))],
            },
        )

    assert "has no config.json" in str(caught.value.errors[0])
    assert "only through another user's link" in str(caught.value.errors[1])
    assert caught.value.errors[1].hint == (
        f"name the model by its real path: clusterctl exec --limit c -- realpath {PATH}"
    )
