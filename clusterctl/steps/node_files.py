"""Step that writes files to a host, after comparing digest and mode of all in one round trip."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from clusterctl.engine.step import Change, HostView
from clusterctl.steps.root_script import root_script
from clusterctl.transport.base import ABSENT

LOOK = """\
for path in "$@"; do
  if [ -f "$path" ]
  then printf '%s %s\\n' "$(stat -L -c %a "$path")" "$(sha256sum <"$path" | cut -c1-64)"
  else echo none
  fi
done
"""


@dataclass(frozen=True)
class RemoteFile:
    """The content and mode that a file should have. Its directory must exist."""

    path: str
    data: bytes = field(repr=False)
    mode: int = 0o644

    @property
    def seal(self) -> str:
        """Line that `LOOK` prints if the file is as it should be."""
        return f"{self.mode:o} {hashlib.sha256(self.data).hexdigest()}"


FilesFor = Callable[[HostView], Sequence[RemoteFile]]

# Whether writing the file restarts something; arguments: the wanted file, its current content
Disrupts = Callable[[RemoteFile, bytes], bool]


class FilesPresent:
    """Step: each file has its content and mode. Other files are not touched."""

    def __init__(
        self, title: str, files_for: FilesFor, *, disrupts: Disrupts | None = None
    ) -> None:
        self.title = title
        self._files_for = files_for
        self._disrupts = disrupts

    def check(self, view: HostView) -> Change | None:
        differing = [file for file, _ in self._differing(view)]
        if not differing:
            return None
        names = ", ".join(PurePosixPath(file.path).name for file in differing)
        disrupts = self._disrupts
        return Change(
            f"write {names}",
            disruptive=disrupts is not None
            and any(
                disrupts(file, view.transport.read_file(file.path) or b"") for file in differing
            ),
        )

    def apply(self, view: HostView, change: Change) -> None:
        del change
        for file, before in self._differing(view):
            view.transport.put(file.data, file.path, mode=file.mode, sudo=True, before=before)

    def _differing(self, view: HostView) -> list[tuple[RemoteFile, str]]:
        """Return files that differ, each with the digest of its current content."""
        wanted = self._files_for(view)
        paths = [file.path for file in wanted]
        told = root_script(view, LOOK, *paths, doing="looking at files").splitlines()
        return [
            (file, ABSENT if seal == "none" else seal.partition(" ")[2])
            for file, seal in zip(wanted, told, strict=True)
            if seal != file.seal
        ]
