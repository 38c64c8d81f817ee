"""`clusterctl`, and `python -m clusterctl`."""

from __future__ import annotations

import sys

from clusterctl.cli import streams
from clusterctl.cli.app import app


def main() -> None:
    """Run the command line."""
    streams.prepare()
    status: str | int | None = 0
    try:
        try:
            app.leave_out_others(sys.argv[1:])
            app()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left (`clusterctl logs | head`): nothing is wrong
        streams.drop_stdout()
    except streams.OutputLost as lost:
        streams.drop_stdout()
        sys.stderr.write(f"error: {lost}\n  fix: {lost.hint}\n")
        status = lost.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
