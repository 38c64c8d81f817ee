"""Hash files, on this machine and as a program on a host. Python 3.9, standard library only.

The argument of `main` is {"paths": [...], "piece": BYTES, "samples": COUNT, "every": SECONDS}. It
prints lines of JSON: every so many seconds {"at": BYTES}, read so far in all files, and for every
readable file {"path", "sha256", "pieces"}, the last with the SHA-256 of every `piece` bytes. If
`samples` is not 0, only that many MiB of each file are hashed, spread evenly over it.
"""

import hashlib
import json
import os
import threading
from typing import Any, Callable, Optional, Union

from clusterctl.transfer.reaching import open_file

READ = 1 << 20


def hash_file(
    file: Union[str, int], piece: int, told: Callable[[int], None]
) -> tuple[str, list[str]]:
    """Return the SHA-256 of a file and of every `piece` bytes of it (of none if 0), in one read.
    `file`: its path, or a descriptor, which is closed.

    `told` is called with the bytes of each read.
    """
    whole, part, pieces, filled = hashlib.sha256(), hashlib.sha256(), [], 0
    with open(file, "rb", buffering=0) as opened:
        while data := opened.read(min(READ, piece - filled) if piece else READ):
            whole.update(data)
            told(len(data))
            if piece:
                part.update(data)
                filled += len(data)
                if filled == piece:
                    pieces.append(part.hexdigest())
                    part, filled = hashlib.sha256(), 0
    if filled:
        pieces.append(part.hexdigest())
    return whole.hexdigest(), pieces


def hash_samples(file: int, samples: int, told: Callable[[int], None]) -> str:
    """Return the SHA-256 of `samples` MiB (2 or more) of a larger file, including its first and
    last. `file`: a descriptor, which is closed."""
    whole = hashlib.sha256()
    with open(file, "rb") as opened:
        last = os.fstat(file).st_size - READ
        for number in range(samples):
            opened.seek(last * number // (samples - 1))
            whole.update(opened.read(READ))
            told(READ)
    return whole.hexdigest()


def main(argument: Optional[dict[str, Any]]) -> None:
    """Hash the files of `argument`: see the module's docstring."""
    if not argument:
        return
    at, printing = 0, threading.Lock()

    def tell(**fields: object) -> None:
        with printing:
            print(json.dumps(fields), flush=True)

    def told(size: int) -> None:
        nonlocal at
        at += size

    def report(ended: threading.Event) -> None:
        while not ended.wait(argument["every"]):
            try:
                tell(at=at)
            except OSError:  # the session is closed, and there may be hours of reading left
                os._exit(1)

    ended = threading.Event()
    threading.Thread(target=report, args=(ended,), daemon=True).start()
    for path in argument["paths"]:
        whole, pieces = "", []  # type: str, list[str]
        try:
            if argument["samples"]:
                whole = hash_samples(open_file(path), argument["samples"], told)
            else:
                whole, pieces = hash_file(open_file(path), argument["piece"], told)
        except OSError:
            continue
        tell(path=path, sha256=whole, pieces=pieces)
    ended.set()
    tell(at=at)
