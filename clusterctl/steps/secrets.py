"""Steps for the cluster's secrets: generated on the head, copied to the workers that need them.

A value passes only through memory and stdin, never through argv, a log or a plan.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.steps.files import line_per_path, root_script

RAY_TOKEN = "ray.token"  # noqa: S105 - the file's name
API_KEY = "api.key"

# The supervisor reads no link, and nothing from a file with white space alone.
LOOK = """\
for path in "$@"; do
  if [ -f "$path" ] && [ ! -L "$path" ] && grep -q '[^[:space:]]' "$path"
  then printf '%s %s\\n' "$(stat -c '%a %u' "$path")" "$(sha256sum <"$path" | cut -c1-64)"
  else echo none
  fi
done
"""

MAKE = """\
set -e; umask 077
for path in "$@"; do
  if ! grep -qs '[^[:space:]]' "$path"; then
    od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' >"$path.new"
    [ "$(wc -c <"$path.new")" -eq 64 ]
    mv -T "$path.new" "$path"
  elif [ -L "$path" ]; then
    cat "$path" >"$path.new"
    mv -T "$path.new" "$path"
  fi
  chown 0:0 "$path"
  chmod 600 "$path"
done
"""


_OURS = "600 0 "  # Mode and owner in a line of LOOK; the digest of the content follows


def secret_path(cluster: str, name: str) -> str:
    return f"/etc/clusterctl/{cluster}/{name}"


class SecretsMade:
    """Step on the head: each secret exists, 0600 and owned by root. Existing ones never change."""

    title = "secrets"

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)

    def check(self, view: HostView) -> Change | None:
        found = line_per_path(view, LOOK, self._paths, doing="looking at secrets")
        wrong = [
            path
            for path, seal in zip(self._paths, found, strict=True)
            if not seal.startswith(_OURS)
        ]
        return Change(f"create {', '.join(wrong)}") if wrong else None

    def apply(self, view: HostView, _change: Change) -> None:
        root_script(view, MAKE, *self._paths, doing="creating secrets")


class HeadSecret:
    """A secret of the head, read once for all workers."""

    def __init__(self, head: HostView, path: str, made_by: Step | None = None) -> None:
        """`made_by`: the head's step that may replace it, for which workers wait."""
        self.path = path
        self.host = head.host.name
        self._head = head
        self._made_by = made_by
        self._reading = threading.Lock()
        self._value: bytes | None = None

    def __repr__(self) -> str:
        return f"HeadSecret({self.host}:{self.path})"

    def value(self) -> bytes | None:
        """Return the secret; None if the head does not have it yet or is about to replace it."""
        with self._reading:
            if self._value is None:
                if self._is_replaced():
                    return None
                self._value = self._head.transport.read_file(self.path) or None
            return self._value

    def _is_replaced(self) -> bool:
        try:
            return bool(self._made_by and self._made_by.check(self._head))
        except ClusterctlError:  # Told for the head
            return True


class SecretCopied:
    """Step on a worker: the secret equals the head's, 0600 and owned by root."""

    def __init__(self, secret: HeadSecret, title: str = "secrets") -> None:
        self.title = title
        self._secret = secret

    def check(self, view: HostView) -> Change | Unknown | None:
        path, value = self._secret.path, self._secret.value()
        if value is None:
            return Unknown(f"{self._secret.host} creates {path} first")
        found = root_script(view, LOOK, path, doing="looking at secrets").strip()
        if found == f"{_OURS}{hashlib.sha256(value).hexdigest()}":
            return None
        return Change(f"copy {path} from {self._secret.host}")

    def apply(self, view: HostView, _change: Change) -> None:
        path, value = self._secret.path, self._secret.value()
        if value is None:
            raise StepFailed(f"{path} is not on {self._secret.host}", host=view.host.name)
        view.transport.put(value, path, mode=0o600, sudo=True)
