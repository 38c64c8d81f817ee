"""Real outputs of `--json` against their schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

from scripts.json_outputs import SCHEMAS

_PUBLISHED = json.loads(SCHEMAS.read_text())


def require_valid(words: Sequence[str], document: Any) -> None:
    """Raise ValidationError unless `document` is what the command of these words may print."""
    command = next((name for name in _PUBLISHED["$defs"] if _begins(words, name)), None)
    assert command, f"scripts/json_outputs.py does not know what {' '.join(words)} prints"
    schema = {"$defs": _PUBLISHED["$defs"], "$ref": f"#/$defs/{command.replace(' ', '%20')}"}
    Draft202012Validator(schema).validate(document)


def _begins(words: Sequence[str], command: str) -> bool:
    given = [word for word in words if not word.startswith("-")]
    return given[: len(command.split())] == command.split()
