"""Says its argument, or what the argument asks for instead."""

import json
import time
from typing import Any

from tests.fakes.host_programs import words


def main(argument: Any) -> None:
    told = argument if isinstance(argument, dict) else {}
    if "fail" in told:
        raise KeyError("fail")
    time.sleep(told.get("sleep", 0))
    print(json.dumps({words.KEY: argument}) + " " * told.get("repeat", 0), flush=True)  # noqa: T201
