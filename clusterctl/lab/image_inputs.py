"""What the lab image is made from, and the tags that follow from it."""

from __future__ import annotations

from pathlib import Path

from clusterctl.errors import RequirementsNotMet
from clusterctl.lab.cache import content_key, files_key

IMAGE = "clusterctl/lab"
BARE_IMAGE = "clusterctl/lab-bare"
_BUILD = "1"
_INPUTS = ("Dockerfile", "environment", "install.sh", "packages.txt", "vllm.lock", "ray.lock")
_PACKAGES = ("platform-plugin", "vllm-metadata")


def image_directory() -> Path:
    """docker/lab of this checkout."""
    directory = Path(__file__).resolve().parents[2] / "docker" / "lab"
    if not (directory / "install.sh").is_file():
        raise RequirementsNotMet(
            "the lab's image is built from docker/lab of a clusterctl checkout",
            hint="run clusterctl from a clone, installed with `pip install -e .`",
        )
    return directory


def image_inputs(directory: Path) -> tuple[Path, ...]:
    """Every file that goes into the image."""
    sources = (
        file
        for package in _PACKAGES
        for file in (directory / package).rglob("*")
        if file.suffix in (".py", ".toml") and "build" not in file.relative_to(directory).parts
    )
    return (*(directory / name for name in _INPUTS), *sources)


def image_key() -> str:
    """Names the image: changes with every input, and with how they are put together."""
    directory = image_directory()
    return content_key(_BUILD, files_key(directory, image_inputs(directory)))


def image_tag() -> str:
    """The image with vLLM and Ray."""
    return f"{IMAGE}:{image_key()}"


def bare_tag() -> str:
    """The same image without Ray, as vLLM's own images are."""
    return f"{BARE_IMAGE}:{image_key()}"


def image_environment(directory: Path) -> dict[str, str]:
    """The variables that the image sets, from the file that its Dockerfile also follows."""
    lines = (directory / "environment").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value for name, value in pairs}  # noqa: C416
