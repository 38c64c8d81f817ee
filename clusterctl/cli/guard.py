"""Error handling for every command: errors become messages and an exit code, never a traceback."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import ParamSpec, TypeVar

import typer

from clusterctl.cli.streams import OutputLost, drop_stdout
from clusterctl.errors import ClusterctlError, Interrupted

P = ParamSpec("P")
R = TypeVar("R")


def pretty(document: object) -> str:
    """Return the document as JSON, as --json prints it."""
    return json.dumps(document, indent=2)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap `command` to report its failures, with the path of the run's log if there is one."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        failure: ClusterctlError
        try:
            return command(*args, **kwargs)
        except (OutputLost, typer.Exit, typer.Abort):
            raise  # `main` reports OutputLost, also for output written after this
        except ClusterctlError as error:
            failure = error
        except KeyboardInterrupt:
            failure = Interrupted(
                "interrupted",
                hint="run the same command again: it continues from the hosts' current state",
            )
        except BrokenPipeError:
            # The reader of our stdout ended (`clusterctl logs | head`): not an error.
            drop_stdout()
            raise typer.Exit(0) from None
        except Exception:
            text = traceback.format_exc()
            path = _kept(text)
            failure = ClusterctlError(
                f"a bug in clusterctl: {text.strip().splitlines()[-1]}",
                hint=f"please report it with {path}" if path else "please report it",
            )
        raise _reported(failure, as_json=bool(kwargs.get("as_json")))

    return run


def _reported(error: ClusterctlError, *, as_json: bool) -> typer.Exit:
    from clusterctl.cli.session import current_log
    from clusterctl.reporting.error_view import error_document, error_lines
    from clusterctl.reporting.text import line_width

    log = current_log()
    if as_json:
        print(pretty({"error": error_document(error, log)}))
    else:
        lines = error_lines(error, log, width=line_width(sys.stderr))
        print("\n".join(lines), file=sys.stderr)
    return typer.Exit(error.exit_code)


def _kept(text: str) -> Path | None:
    """Write the traceback to the state directory, else to a temporary file; return its path."""
    from clusterctl.reporting.run_log import private, state_directory

    with suppress(OSError, RuntimeError):
        path = private(state_directory()) / "bug.log"
        path.write_text(text)
        return path
    try:
        with NamedTemporaryFile("w", prefix="clusterctl-bug-", suffix=".log", delete=False) as file:
            file.write(text)
        return Path(file.name)
    except OSError:
        return None
