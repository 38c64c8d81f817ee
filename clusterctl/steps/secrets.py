"""Steps for the cluster's secrets: generated on the head, copied to the workers that need them.

A value passes through memory and stdin only: never through argv, a log or a plan.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import StepFailed
from clusterctl.steps.files import FilesPresent, RemoteFile, root_script

RAY_TOKEN = "ray.token"  # noqa: S105 - the file's name
API_KEY = "api.key"

LOOK = """\
for path in "$@"; do
  [ -s "$path" ] && stat -c '%a %u' "$path" || echo none
done
"""

MAKE = """\
set -e; umask 077
for path in "$@"; do
  if [ ! -s "$path" ]; then
    od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' >"$path.new"
    [ "$(wc -c <"$path.new")" -eq 64 ]
    mv "$path.new" "$path"
  fi
  chown 0:0 "$path"
  chmod 600 "$path"
done
"""


def secret_path(cluster: str, name: str) -> str:
    return f"/etc/clusterctl/{cluster}/{name}"


class SecretsMade:
    """Step on the head: each secret exists, 0600 and owned by root. Existing ones never change."""

    title = "secrets"

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)

    def check(self, view: HostView) -> Change | None:
        found = root_script(view, LOOK, *self._paths, doing="looking at secrets").splitlines()
        wrong = [path for path, mode in zip(self._paths, found, strict=True) if mode != "600 0"]
        return Change(f"make {', '.join(wrong)}") if wrong else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        root_script(view, MAKE, *self._paths, doing="making secrets")


class HeadSecret:
    """A secret of the head, read once for all workers."""

    def __init__(self, head: HostView, path: str) -> None:
        self.path = path
        self.host = head.host.name
        self._head = head
        self._reading = threading.Lock()
        self._value: bytes | None = None

    def __repr__(self) -> str:
        return f"HeadSecret({self.host}:{self.path})"

    def value(self) -> bytes | None:
        """Return the secret; None if the head does not have it yet."""
        with self._reading:
            if self._value is None:
                self._value = self._head.transport.read_file(self.path) or None
            return self._value


class SecretCopied:
    """Step on a worker: the secret equals the head's."""

    def __init__(self, secret: HeadSecret) -> None:
        self.title = "secrets"
        self._secret = secret
        self._files = FilesPresent(self.title, self._wanted)

    def check(self, view: HostView) -> Change | Unknown | None:
        if self._secret.value() is None:
            return Unknown(f"{self._secret.host} makes {self._secret.path} first")
        if self._files.check(view) is None:
            return None
        return Change(f"copy {self._secret.path} from {self._secret.host}")

    def apply(self, view: HostView, change: Change) -> None:
        self._files.apply(view, change)

    def _wanted(self, view: HostView) -> tuple[RemoteFile, ...]:
        value = self._secret.value()
        if value is None:
            raise StepFailed(
                f"{self._secret.path} is not on {self._secret.host}", host=view.host.name
            )
        return (RemoteFile(self._secret.path, value, 0o600),)
