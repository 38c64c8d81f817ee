"""Which host has what, side by side."""

from __future__ import annotations

from clusterctl.transfer.weights.manifest import Manifest, WeightFile
from clusterctl.transfer.weights.on_host import HostFile, HostModels, HostTree, holdings

FILE = WeightFile("model.safetensors", 100, 0o644, "a" * 64)
OTHER = WeightFile("model.safetensors", 100, 0o644, "b" * 64)


def host(
    *trees: tuple[str, WeightFile | None, int], incoming: dict[str, int] | None = None
) -> HostModels:
    """Trees by name; without a file there is no manifest; last, when the file was written."""
    return HostModels(
        "/data/models",
        10**12,
        tuple(
            HostTree(
                name,
                {FILE.path: HostFile(100, written=f"{written:02}")},
                manifest=Manifest(name, (file,), origin="hf:o/m@1") if file else None,
                sealed="10",
            )
            for name, file, written in trees
        ),
        incoming or {},
    )


def test_every_state_of_a_model_on_a_host() -> None:
    found = holdings(
        {
            "gpu1": host(("Tiny", FILE, 5)),
            "gpu2": host(("Tiny", FILE, 5)),
            "gpu3": host(("Tiny", OTHER, 5)),
            "gpu4": host(("Tiny", FILE, 11)),
            "gpu5": host(("Tiny", None, 5)),
            "gpu6": host(incoming={"Tiny.0123456789ab": 50}),
            "gpu7": host(),
        }
    )
    (tiny,) = found
    assert list(tiny.hosts.values()) == [
        "complete", "complete", "differs", "partial", "unverified", "coming", "absent",
    ]  # fmt: skip
    assert (tiny.name, tiny.size, tiny.origin) == ("Tiny", 100, "hf:o/m@1")


def test_a_model_below_its_organisation_keeps_its_name_on_the_way() -> None:
    found = holdings({"gpu1": host(incoming={"Org@Tiny.0123456789ab": 1}), "gpu2": host()})
    assert [(each.name, dict(each.hosts)) for each in found] == [
        ("Org/Tiny", {"gpu1": "coming", "gpu2": "absent"})
    ]


def test_models_stand_by_name() -> None:
    found = holdings({"gpu1": host(("b", FILE, 5), ("A", FILE, 5))})
    assert [each.name for each in found] == ["A", "b"]
