"""Whether a safetensors file is whole, by its own header: no tensor is read.

A file is 8 bytes of header length (little endian), the header (JSON: a tensor's name to its
`data_offsets`, begin and end), and the data: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from pathlib import Path

MOST_HEADER = 100_000_000  # Bytes of header that the safetensors library itself reads at most


def shortfall(path: Path) -> int:
    """Bytes that the file lacks of what its header promises; 0 when it is whole.

    Raises ValueError when it is no safetensors file, OSError when it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > MOST_HEADER:
            raise ValueError("it does not begin with a safetensors header")
        if size < 8 + length:
            return 8 + length - size
        header = file.read(length)
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("its safetensors header cannot be read") from error
    return max(0, 8 + length + end - size)
