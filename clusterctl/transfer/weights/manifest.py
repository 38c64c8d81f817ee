"""Manifest of a model's directory: its files with their sizes and hashes. Pure.

Manifests come from hosts and listings from hubs, and root on other hosts writes the files that they
name. So a Manifest whose files could end up outside the model's directory, or be anything but data,
cannot be created.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.content import Blob, is_digest

FORMAT = 1  # Version of the manifest's text; others are rejected

# Beside the weights on a host. It is written once they are complete and verified.
FILE_NAME = ".clusterctl-model.json"


MOST_PARTS = 3  # Of a name: NAME, ORGANISATION/NAME, or DIRECTORY/hub/models--ORGANISATION--NAME

MODES = (0o644, 0o755)


@dataclass(frozen=True)
class WeightFile:
    """One regular file."""

    path: str  # Below the model's directory, with `/`
    size: int  # Bytes
    mode: int  # One of MODES
    sha256: str  # Of the whole file, 64 hexadecimal digits
    chunks: tuple[str, ...] = ()  # sha256 of every PIECE bytes in order; empty when unknown

    @property
    def blob(self) -> Blob:
        return Blob(f"sha256:{self.sha256}", self.size)


@dataclass(frozen=True)
class WeightLink:
    """A symbolic link, such as from a snapshot to a blob in a Hugging Face cache."""

    path: str
    target: str  # Relative to the directory of `path`

    @property
    def leads_to(self) -> str:
        """The path that it leads to, below the model's directory; starts with `/` or `..` if
        outside."""
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.path), self.target))


@dataclass(frozen=True)
class Manifest:
    """The files of a model's directory, in the order in which they are transferred."""

    name: str  # Of the directory, below the hosts' models path: Qwen2.5-1.5B-Instruct
    files: tuple[WeightFile, ...]
    links: tuple[WeightLink, ...] = ()
    # Its first source: hf:Qwen/Qwen2.5-1.5B-Instruct@<commit>; empty for a directory.
    origin: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError unless names are distinct and stay inside the directory."""
        if inside(self.name).count("/") >= MOST_PARTS or self.name.startswith("."):
            raise ValueError(f"{self.name!r} is not the name of a model's directory")
        if _has_control(self.origin):
            raise ValueError(f"{self.origin!r} is not a source of a model")
        files, names = {file.path for file in self.files}, set[str]()
        for path in (*(file.path for file in self.files), *(link.path for link in self.links)):
            if inside(path) in names or _is_ours(path):
                raise ValueError(f"{path!r} is the path of two files")
            names.add(path)
        directories = {path.rpartition("/")[0] for path in names} - {""}
        while directories:
            if both := names & directories:
                raise ValueError(f"{min(both)!r} is both a directory and a file")
            directories = {path.rpartition("/")[0] for path in directories} - {""}
        for file in self.files:
            for digest in (file.sha256, *file.chunks):
                if not is_digest(digest):
                    raise ValueError(f"{digest!r} is not a sha256")
            if not 0 <= file.size < 2**60 or file.mode not in MODES:
                raise ValueError(f"{file.path!r} has size {file.size} and mode {file.mode:o}")
        for link in self.links:
            if inside(link.leads_to) not in files:
                raise ValueError(f"{link.path!r} leads to {link.target!r}, not a file of the model")

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
    outside the directory, or content that does not match its identity. Modes are those of
    `plain_mode`."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        manifest = Manifest(
            _text(document["name"]),
            tuple(_file(entry) for entry in document["files"]),
            tuple(
                WeightLink(_text(link["path"]), _text(link["target"])) for link in document["links"]
            ),
            _text(document["origin"]),
        )
        identity = document["identity"]
    except UnicodeError:
        raise ValueError("the manifest has a name that is not valid Unicode") from None
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a manifest of a model: {error!r}") from error
    if identity != manifest.identity:
        raise ValueError("the manifest was truncated or edited by hand")
    return manifest


def _file(entry: dict[str, object]) -> WeightFile:
    chunks = entry["chunks"]
    if not isinstance(chunks, list):
        raise TypeError(f"{chunks!r} is not a list")
    return WeightFile(
        path=_text(entry["path"]),
        size=int(str(entry["size"])),
        mode=plain_mode(int(str(entry["mode"]))),
        sha256=_text(entry["sha256"]),
        chunks=tuple(map(_text, chunks)),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def plain_mode(mode: int) -> int:
    """Return the mode that a model's file gets on hosts: only the executable bit is taken over."""
    return 0o755 if mode & 0o111 else 0o644


def inside(path: str) -> str:
    """Return the path; raise ValueError unless it is a plain path below its directory."""
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or _has_control(path):
        raise ValueError(f"{path!r} is not a path below the model's directory")
    return path


def _has_control(text: str) -> bool:
    """Whether the text has characters that terminals or line-reading scripts could misinterpret:
    control characters, surrogates, line separators."""
    odd = {"Cc", "Cs", "Zl", "Zp"}
    return not text.isprintable() and any(unicodedata.category(each) in odd for each in text)


def _is_ours(path: str) -> bool:
    """Whether it is the name of a file that clusterctl itself creates beside a model."""
    name = path.rpartition("/")[2]
    return name.startswith(".clusterctl-") or name.endswith((".part", ".part.pieces"))
