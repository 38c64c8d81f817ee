"""`clusterctl`, and `python -m clusterctl`."""

from __future__ import annotations

import signal
import sys

from clusterctl.errors import Interrupted

ExitStatus = str | int | None  # As SystemExit has it


def main() -> None:
    """Run the command line."""
    try:
        status = _run()
    except KeyboardInterrupt:  # During the start, or once more while the first one is reported
        status = Interrupted.exit_code
    # Python still waits for threads: a Ctrl-C there would print a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def _run() -> ExitStatus:
    from clusterctl.cli import streams  # The command line's modules load in 0.1 s: see `main`
    from clusterctl.cli.app import app

    streams.prepare()
    status: ExitStatus = 0
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
    return status


if __name__ == "__main__":
    main()
