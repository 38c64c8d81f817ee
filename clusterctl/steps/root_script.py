"""Run one of our fixed shell scripts as root; data is passed as "$1", "$2", ..."""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed


def root_script(
    view: HostView,
    script: str,
    *arguments: str,
    doing: str,
    stdin: bytes = b"",
    timeout: float = deadlines.COMMAND,
) -> str:
    """Return the stdout of the POSIX `script`. `doing` describes it in errors, such as "making x".

    Raises CommandFailed with the script's last lines if its exit status is not 0.
    """
    argv = ["sh", "-c", script, "clusterctl", *arguments]
    result = view.transport.run(argv, stdin=stdin, sudo=True, timeout=timeout)
    if not result.ok:
        lines = result.last_lines()
        why = lines.splitlines()[-1] if lines else f"status {result.status}"
        raise CommandFailed(f"{doing} failed: {why}", host=view.host.name, detail=lines)
    return result.stdout
