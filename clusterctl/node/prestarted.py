"""What a worker that Ray started before it has a job does: one for a rank imports vLLM.

Every worker imports this module when it starts (RAY_preload_python_modules). All but those of
`prestart` have a job then, and do nothing here.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from typing import Any

from clusterctl.node.prestart import OFF, RANK_VARIABLES

NO_JOB = "f" * 8  # RAY_JOB_ID of a worker without one (JobID::Nil in Ray 2.60)

# The module of the class of ranks. A rank imports it in any case, before vLLM gives it variables or
# a GPU: CUDA is initialised later, in initialize_worker.
RANK_MODULE = "vllm.v1.executor.ray_executor_v2"

# Seconds for vLLM to ask for its ranks: 20 to 30 on GPU hosts, more from a cold disk. Ray keeps
# idle workers, one for each core, so one that nobody takes ends by itself.
LIMIT = "CLUSTERCTL_PRESTARTED_LIMIT"
_LIMIT = 180.0


def await_job() -> None:
    """Import vLLM in a worker of a rank, and end this process if it has no job within LIMIT."""
    threading.Thread(target=_end_unless_taken, daemon=True).start()
    variables = os.environ.get(RANK_VARIABLES, OFF)
    names = [name for name in variables.split(",") if name]
    if variables == OFF or any(os.environ.get(name) != "1" for name in names):
        return
    with contextlib.suppress(Exception):  # The rank's own import fails alike, and is reported
        importlib.import_module(RANK_MODULE)


def _end_unless_taken() -> None:
    time.sleep(float(os.environ.get(LIMIT, _LIMIT)))
    worker: Any = importlib.import_module("ray._private.worker").global_worker
    if worker.current_job_id.is_nil():
        os._exit(0)


if os.environ.get("RAY_JOB_ID") == NO_JOB:
    await_job()
