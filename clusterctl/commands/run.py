"""`run`: your own Python script in the head's node container, next to Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterctl.engine.events import Note
from clusterctl.engine.interrupt import interruptible
from clusterctl.errors import DoesNotFit, Interrupted, UsageError
from clusterctl.operations.session import Session
from clusterctl.planning.free_gpus import gpus_held
from clusterctl.serving.job import Job, JobOutput, run_job
from clusterctl.survey.formation import require_formed
from clusterctl.survey.survey import Survey, take_survey

LARGEST_SCRIPT = 2**20  # bytes

MP_NOTE = (
    'without distributed_executor_backend="ray" vLLM takes only GPUs of the head, '
    "without Ray knowing about it"
)


def run(
    session: Session, script: Path, arguments: Sequence[str], gpus: int, output: JobOutput
) -> int:
    """Run the script until it ends; return its exit status.

    Raises UsageError for an unreadable script, DoesNotFit if fewer than `gpus` GPUs are free,
    RayNotFormed, Interrupted once the script has ended after Ctrl-C, ConnectionFailed.
    """
    text = read_script(script)
    inventory, sink = session.inventory, session.progress
    with session.connected() as transports:
        survey = take_survey(inventory, transports).require_answers()
        require_free(survey, gpus)
        if "vllm" in text and "distributed_executor_backend" not in text:
            sink(Note(MP_NOTE))
        job = Job(["python3", f"./{script.name}", *arguments], {script.name: text})
        head = transports[inventory.head.name]
        with interruptible(sink) as cancelled:
            result = run_job(head, inventory.cluster, job, output, cancelled)
        if cancelled.is_set():
            raise Interrupted("interrupted: the script has ended, and its GPUs are free again")
        return result.status


def read_script(script: Path) -> str:
    """Return the script's text. Raises UsageError."""
    try:
        if script.stat().st_size > LARGEST_SCRIPT:
            raise UsageError(f"{script} is larger than 1 MiB")
        return script.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{script} cannot be read", detail=str(error)) from error


def require_free(survey: Survey, gpus: int) -> None:
    """Raise DoesNotFit if fewer than `gpus` GPUs are free, naming the services that hold others."""
    state = require_formed(survey)
    held = gpus_held(survey, state.nodes)
    free = sum(host.free for host in held.free)
    if free >= gpus:
        return
    stop = " && ".join(f"clusterctl stop {name}" for name in survey.services)
    raise DoesNotFit(
        f"the script needs {gpus} GPU{'s' * (gpus > 1)} (--gpus), and {free} "
        f"{'is' if free == 1 else 'are'} free{''.join(f'; {each}' for each in held.holders)}",
        hint="add --gpus 0 if it needs none; else "
        + (stop or "clusterctl status: another clusterctl run may use them"),
    )
