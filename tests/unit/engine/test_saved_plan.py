"""A plan in a file is carried out while it is the plan; else what moved is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.saved_plan import contents, read, require_same, save
from clusterctl.engine.step import Change, Unknown
from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.inventory.model import Gpu, Host, Inventory

ENGINE = PlannedChange("Container engine", "gpu1", "engine", Change("install docker.io"))
LATER = PlannedChange("Image", "gpu1", "image", Unknown("the engine is not running"))
IMAGE = PlannedChange("Image", "gpu1", "image", Change("bring vllm:1"))
RESTART = PlannedChange("Ray head", "gpu1", "container", Change("replace it", disruptive=True))
INVENTORY = Inventory(
    cluster="demo",
    image="vllm:v0.33.0",
    hosts=(Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),),
)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("packages", "ca"),
        ("packages", "offline"),
        ("gateway", "certificate"),
        ("", "image_archive"),
    ],
)
def test_other_files_behind_the_same_paths_are_named(
    inventory: Path, tmp_path: Path, section: str, name: str
) -> None:
    """Another CA of the same name, or another package, is another plan."""
    path, file = tmp_path / "named", tmp_path / "plan.json"
    path.write_text("one")
    whole = INVENTORY
    if section:
        of = getattr(whole, section).model_copy(update={name: path})
        whole = whole.model_copy(update={section: of})
    else:
        whole = whole.model_copy(update={name: path})
    key = f"{section}.{name}".lstrip(".")
    assert key in contents(whole)
    save(Plan((ENGINE,)), whole, inventory, file)
    require_same(read(file), Plan((ENGINE,)), whole, inventory)
    path.write_text("two")
    with pytest.raises(RequirementsNotMet) as raised:
        require_same(read(file), Plan((ENGINE,)), whole, inventory)
    assert f"what {key} in the inventory names has changed" in str(raised.value.detail)


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    file = tmp_path / "inventory.yaml"
    file.write_text("cluster: demo\n")
    return file


def moved(inventory: Path, before: tuple[PlannedChange, ...], *now: PlannedChange) -> str:
    file = inventory.with_name("plan.json")
    save(Plan(before), INVENTORY, inventory, file)
    try:
        require_same(read(file), Plan(now), INVENTORY, inventory)
    except RequirementsNotMet as error:
        return str(error.detail)
    return ""


@pytest.mark.parametrize(
    "now",
    [(ENGINE, LATER), (IMAGE,), (LATER,), ()],
    ids=["the same", "known by now", "partly made", "made"],
)
def test_what_was_planned_is_carried_out(inventory: Path, now: tuple[PlannedChange, ...]) -> None:
    assert moved(inventory, (ENGINE, LATER), *now) == ""


def test_what_was_not_planned_is_named(inventory: Path) -> None:
    assert moved(inventory, (ENGINE,), ENGINE, IMAGE) == "gpu1: Image: bring vllm:1"
    other = PlannedChange("Image", "gpu1", "image", Change("bring vllm:2"))
    said = moved(inventory, (IMAGE,), other)
    assert said == "gpu1: Image: bring vllm:2; the plan had: bring vllm:1"


def test_a_service_is_stopped_only_if_the_plan_says_so(inventory: Path) -> None:
    unknown = PlannedChange("Ray head", "gpu1", "container", Unknown("no image yet"))
    assert "stops running services" in moved(inventory, (unknown,), RESTART)
    assert moved(inventory, (RESTART,), RESTART) == ""


def test_a_changed_inventory_and_another_release_are_named(inventory: Path) -> None:
    file = inventory.with_name("plan.json")
    save(Plan((ENGINE,)), INVENTORY, inventory, file)
    inventory.write_text("cluster: other\n")
    file.write_text(json.dumps({**json.loads(file.read_text()), "clusterctl": "0.0.1"}))
    with pytest.raises(RequirementsNotMet) as raised:
        require_same(read(file), Plan((ENGINE,)), INVENTORY, inventory)
    assert "inventory.yaml was changed" in str(raised.value.detail)
    assert "and was 0.0.1" in str(raised.value.detail)
    assert f"plan {inventory} -o {file}" in str(raised.value.hint)


ODD = {"stage": ["x"], "host": "h", "step": "s", "known": 1, "summary": "", "disruptive": 0}
HEAD = {"format": 2, "contents": {}, "clusterctl": "1", "inventory_sha256": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 3}',
        '{"format": 2, "changes": [1]}',
        json.dumps({**HEAD, "changes": [ODD]}),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json"):
        read(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.json")
