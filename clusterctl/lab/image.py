"""The lab's image, made without a container engine and without a registry.

    layer 1  Debian packages         debootstrap
    layer 2  vLLM and its needs      install.sh vllm   in an overlay over layer 1
    layer 3  Ray                     install.sh ray    in an overlay over layers 1 and 2

Layers 1 and 2 are also an image of their own: like vLLM's, one without Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusterctl.lab.archive import Image, write_archive, write_layer
from clusterctl.lab.base import AptSource, debootstrap
from clusterctl.lab.builds import run_in_tree
from clusterctl.lab.image_inputs import (
    bare_tag,
    image_directory,
    image_environment,
    image_tag,
)
from clusterctl.lab.mounts import mount_overlay, remove_tree, unmount_under
from clusterctl.lab.paths import LabPaths

PARTS = ("system", "vllm", "ray")
Say = Callable[[str], None]


def link_archives(paths: LabPaths, place: Path) -> bool:
    """Give the archives in `place` their fixed paths; whether they lacked them."""
    paths.image.mkdir(parents=True, exist_ok=True)
    changed = False
    for link in (paths.image_archive, paths.bare_archive):
        target = place / link.name
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            changed = True
    return changed


def system_packages(directory: Path) -> tuple[str, ...]:
    """The Debian packages of layer 1."""
    lines = (directory / "packages.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def build_image(directory: Path, source: AptSource, wheels: Path, say: Say) -> None:
    """Write `lab.tar` and `lab-bare.tar` into `directory`: with Ray, and without."""
    inputs = image_directory()
    system = directory / "system"
    say("building the image: Debian packages")
    debootstrap(system, source, system_packages(inputs))
    trees = [system]
    for part, what in (("vllm", "vLLM and PyTorch"), ("ray", "Ray")):
        say(f"building the image: {what}")
        trees.append(_install(part, trees, inputs, wheels, directory / part))
    say("building the image: packing")
    layers = [
        write_layer(tree, directory / f"{part}.tar", f"install.sh {part}")
        for tree, part in zip(trees, PARTS, strict=True)
    ]
    environment = image_environment(inputs)
    write_archive(Image(image_tag(), tuple(layers), environment), directory / "lab.tar")
    write_archive(Image(bare_tag(), tuple(layers[:-1]), environment), directory / "lab-bare.tar")
    for layer, part in zip(layers, PARTS, strict=True):
        layer.file.unlink()
        remove_tree(directory / part)


def _install(part: str, lowers: list[Path], inputs: Path, wheels: Path, place: Path) -> Path:
    """Run one part of install.sh over the trees so far; the tree of what it added."""
    merged = place / "root"
    mount_overlay(tuple(reversed(lowers)), place, merged)
    run_in_tree(
        merged,
        ["/build/install.sh", part],
        binds={inputs: "/build", wheels: "/wheels"},
        env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"},
        log=place / "log",
    )
    unmount_under(merged)
    return place / "upper"
