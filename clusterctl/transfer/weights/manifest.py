"""Manifest of a model's directory: its files with their sizes and hashes. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.content import Blob, is_digest

FORMAT = 1  # Version of the manifest's text; others are rejected

# Beside the weights on a host. It is written once they are complete and verified.
FILE_NAME = ".clusterctl-model.json"


@dataclass(frozen=True)
class WeightFile:
    """One regular file."""

    path: str  # Below the model's directory, with `/`
    size: int  # Bytes
    mode: int  # Permission bits
    sha256: str  # Of the whole file, 64 hexadecimal digits
    chunks: tuple[str, ...] = ()  # sha256 of every PIECE bytes in order; empty when unknown

    @property
    def blob(self) -> Blob:
        return Blob(f"sha256:{self.sha256}", self.size)


@dataclass(frozen=True)
class WeightLink:
    """A symbolic link, such as those from snapshots to blobs in a Hugging Face cache."""

    path: str
    target: str


@dataclass(frozen=True)
class Manifest:
    """The files of a model's directory, in the order in which they are transferred."""

    name: str  # Of the directory, below the hosts' models path: Qwen2.5-1.5B-Instruct
    files: tuple[WeightFile, ...]
    links: tuple[WeightLink, ...] = ()
    # Its first source: hf:Qwen/Qwen2.5-1.5B-Instruct@<commit>; empty for a directory.
    origin: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files; files with the same content are counted separately."""
        return sum(file.size for file in self.files)

    @property
    def identity(self) -> str:
        """sha256 over paths, contents and links; does not depend on the model's name."""
        lines = [f"{file.path}\0{file.sha256}\n" for file in self.files]
        lines += [f"{link.path}\0-> {link.target}\n" for link in self.links]
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()

    @property
    def firsts(self) -> dict[str, WeightFile]:
        """The first file of each content, by sha256, in the order of the files."""
        firsts: dict[str, WeightFile] = {}
        for file in self.files:
            firsts.setdefault(file.sha256, file)
        return firsts

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The contents to transfer, each once, in the order of the files."""
        return tuple(file.blob for file in self.firsts.values())


def in_order(files: Iterable[WeightFile]) -> tuple[WeightFile, ...]:
    """Sort files: small ones (config, tokenizer) first, then large ones; both by path."""
    return tuple(sorted(files, key=lambda file: (file.size > PIECE, file.path)))


def dump(manifest: Manifest) -> str:
    """Format the manifest as JSON, one line per file, so that people can read and diff it."""
    head = {"format": FORMAT, "name": manifest.name, "origin": manifest.origin}
    files = ",\n".join(f"  {json.dumps(asdict(file))}" for file in manifest.files)
    links = ",\n".join(f"  {json.dumps(asdict(link))}" for link in manifest.links)
    return (
        f'{json.dumps(head)[:-1]}, "identity": "{manifest.identity}",\n'
        f'"files": [\n{files}\n],\n"links": [\n{links}\n]}}\n'
    )


def parse(text: str) -> Manifest:
    """Parse the output of `dump`. Raises ValueError for anything else: another format, a path
    outside the directory, or content that does not match its identity."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        manifest = Manifest(
            inside(document["name"]),
            tuple(_file(entry) for entry in document["files"]),
            tuple(WeightLink(inside(link["path"]), link["target"]) for link in document["links"]),
            document["origin"],
        )
        identity = document["identity"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a manifest of a model: {error!r}") from error
    if identity != manifest.identity:
        raise ValueError("the manifest was cut short or changed by hand")
    return manifest


def _file(entry: dict[str, object]) -> WeightFile:
    chunks = entry["chunks"]
    if not isinstance(chunks, list):
        raise TypeError(f"{chunks!r} is not a list")
    return WeightFile(
        path=inside(str(entry["path"])),
        size=int(str(entry["size"])),
        mode=int(str(entry["mode"])),
        sha256=_digest(entry["sha256"]),
        chunks=tuple(map(_digest, chunks)),
    )


def _digest(value: object) -> str:
    """Return the digest; raise ValueError if invalid, since hosts use it as a file name."""
    if not is_digest(str(value)):
        raise ValueError(f"{value!r} is not a sha256")
    return str(value)


def inside(path: str) -> str:
    """Return the path; raise ValueError unless it stays below its directory. Manifests come from
    hosts, listings from hubs: neither is trusted."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or any(ord(c) < 32 for c in path):
        raise ValueError(f"{path!r} is not a path below the model's directory")
    return path
