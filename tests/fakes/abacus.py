"""An accelerator that nobody makes: what adding one takes, in one file. `accelerators.names` gets
a line, and nothing else changes (docs/accelerators.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.accelerators.engine_defaults import EngineDefaults
from clusterctl.accelerators.protocol import Accelerator, DeviceAccess
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.step import Change, HostView, Step
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.gpu_probe import GpuProbe
from clusterctl.facts.model import GpuFacts, GpuReport, HostFacts
from clusterctl.facts.sections import Answer
from clusterctl.inventory.model import Host, Inventory, Packages
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend
from clusterctl.packages.bundle import Bundle
from clusterctl.steps.engines import Engines
from clusterctl.units import GIB

SCRIPT = b"""\
with_gpus() {
  if found abacus-list; then
    section abaci
    bounded abacus-list
  fi
  "$@"
}
gpu_kernel_log() { :; }
"""
LISTING = GpuListing(["abacus-list"], "abacus ")


def read_report(answer: Answer, files: object, paths: object) -> GpuReport:
    """`abacus 0 Great Abacus 16`: index, model, GiB."""
    found = []
    for line in answer.lines("abaci"):
        _, index, *model, memory = line.split()
        size = int(memory) * GIB
        found.append(GpuFacts(int(index), f"abacus-{index}", " ".join(model), size, "1.0"))
    return GpuReport(tuple(found), None if found else "no abacus on the shelf")


@dataclass(frozen=True)
class Nothing:
    """A step that finds nothing to do."""

    title: str

    def check(self, view: HostView) -> None:
        return None

    def apply(self, view: HostView, change: Change) -> None:
        return None


class Abacus:
    counted = True
    device = "abacus"
    inventory_note = "Beads on rods."
    gpu_probe = GpuProbe(SCRIPT, "abacus-list", read_report)
    usual_image = GIB
    environment: Mapping[str, str] = {"ABACUS_RODS": "13"}
    gpu_listing = LISTING
    gpu_backend = GpuBackend("abacus", "beads")
    defaults = EngineDefaults(sequences=7, tokens=99)

    def problems(
        self,
        inventory: Inventory,
        host: Host,
        facts: HostFacts,
        image_env: Mapping[str, str] | None,
    ) -> Iterator[RequirementsNotMet]:
        if len(facts.gpus.gpus) < len(host.gpus):
            yield RequirementsNotMet(f"lacks an abacus: {facts.gpus.error}", host=host.name)

    def notes(self, inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
        yield "its beads are dusty"

    def notes_between(self, facts: Mapping[str, HostFacts]) -> Iterator[str]:
        yield "rods differ"

    def access(self, facts: HostFacts) -> DeviceAccess:
        return DeviceAccess(cdi=("example.org/abacus=all",), nodes=("/dev/abacus",))

    def host_steps(self, packages: Packages, bundles: Sequence[Bundle]) -> tuple[Step, ...]:
        return (Nothing("abaci oiled"),)

    def fetched(self, packages: Packages) -> str:
        return ""

    def image_proof(
        self, spec_for: Callable[[HostView], ContainerSpec], engines: Engines, file: str
    ) -> tuple[Step, ...]:
        return (Nothing("beads in the image"),)

    def gpus_lost(
        self, view: HostView, driver: ContainerDriver, container: Container
    ) -> str | None:
        return "its abaci are gone"

    def purge_steps(self, own: str) -> tuple[Step, ...]:
        return (Nothing("abaci shelved"),)

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        return facts.gpus.gpus[:count]


ACCELERATOR: Accelerator = Abacus()
