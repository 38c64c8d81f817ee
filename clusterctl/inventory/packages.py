"""Where hosts get packages from, according to the inventory."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from clusterctl.inventory.strict import StrictModel as _Model
from clusterctl.inventory.values import IndexUrl, PackageVersion


class PackageSource(_Model):
    """A package repository: the vendor's own, or a mirror of it."""

    url: IndexUrl | None = Field(
        default=None, description="Of a mirror with the vendor's layout. Default: the vendor's."
    )
    key: Path | None = Field(
        default=None,
        description="The public key that signs it, on the operator's machine. Default: the "
        "vendor's, got from the repository and compared with its known fingerprint. Relative "
        "paths start at the inventory file.",
    )


class Packages(_Model):
    """Where hosts get packages from. Default: the sources that a host already has."""

    offline: Path | None = Field(
        default=None,
        description="Packages on the operator's machine, for hosts that reach no source: a "
        "directory or a tar from `clusterctl bundle packages`, or a directory of .deb or .rpm "
        "files or with Docker's static archive. Relative paths start at the inventory file.",
    )
    docker: PackageSource | None = Field(
        default=None,
        description="Docker's own packages instead of the distribution's; {} for those at "
        "download.docker.com, which RHEL and its like always get.",
    )
    nvidia: PackageSource = Field(
        default=PackageSource(), description="NVIDIA's container toolkit, on hosts with GPUs."
    )
    toolkit: PackageVersion | None = Field(
        default=None,
        description="Version of NVIDIA's container toolkit, such as 1.19.1-1, for all four of "
        "its packages. Default: the one a host has, or the one that this version was made with.",
    )

    pip_index: IndexUrl | None = Field(
        default=None,
        description="URL of a simple index (PEP 503) for what a derived image needs.",
    )
