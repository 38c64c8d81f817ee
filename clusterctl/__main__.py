"""`clusterctl`, and `python -m clusterctl`."""

from __future__ import annotations

import io
import sys

from clusterctl.cli.app import app


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a host says may not exist in this terminal's encoding; a `?` beats a crash.
            stream.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
