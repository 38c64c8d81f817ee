"""Probes composed from a captured one and what a report says of its host: data of `cases.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.facts.parse import Probe, parse_probe
from clusterctl.facts.sections import split_sections
from clusterctl.inventory.model import Gpu, Host, Inventory

HERE = Path(__file__).parent
CAPTURES = HERE.parent / "captures"
RECEIVED = 1795262400.0


@dataclass(frozen=True)
class Case:
    """A report, retold. Sections, files and paths replace those of the captured host; a section's
    key is its name with its argument, such as `gpus 9`."""

    name: str
    source: str
    problem: str = ""  # Part of the only problem; empty: no problem is right
    fix: tuple[str, ...] = ()  # Parts of its hint
    never: tuple[str, ...] = ()  # Parts that neither problems, hints nor notes may have
    note: str = ""
    gpus: int = 1
    image: dict[str, str] | None = None
    image_gib: int | None = None
    sections: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()

    @property
    def inventory(self) -> Inventory:
        gpus = tuple(Gpu() for _ in range(self.gpus))
        head = Host(name="a", address="10.0.0.1", role="head", gpus=gpus)
        return Inventory(cluster="demo", image="vllm:1", hosts=(head,))

    def probe(self) -> Probe:
        text = (HERE / "host.txt").read_text()
        return parse_probe(
            split_sections(self._composed(text), "MARK"), sudo_error=None, received=RECEIVED
        )

    def _composed(self, text: str) -> str:
        sections: dict[str, list[str]] = {}
        for part in text.split("\nMARK ")[1:]:
            head, *lines = part.strip("\n").split("\n")
            sections[head] = lines
        for head, body in self.sections.items():
            name = head.split()[0]
            end = sections.pop("end")
            sections = {key: of for key, of in sections.items() if key.split()[0] != name}
            sections |= {head: body.strip("\n").split("\n"), "end": end}
        for path, lines in self.files.items():
            kept = [line for line in sections["files"] if not line.startswith(f"{path}:")]
            sections["files"] = [*kept, *(f"{path}:{line}" for line in lines)]
        sections["paths"] += self.paths
        sections["shell"] += self.shell
        return "\n".join(f"\nMARK {head}\n" + "\n".join(of) for head, of in sections.items()) + "\n"


def cases() -> list[Case]:
    document: dict[str, list[dict[str, Any]]] = tomllib.loads((HERE / "cases.toml").read_text())
    return [_case(one) for one in document["case"]]


def _case(one: dict[str, Any]) -> Case:
    values: dict[str, Any] = {}
    for key, value in one.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    return Case(**values)
