"""Real outputs of `--json` against their schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

from scripts.json_outputs import OUTPUTS, SCHEMAS

_PUBLISHED = json.loads(SCHEMAS.read_text())


def require_valid(words: Sequence[str], document: Any) -> None:
    """Raise ValidationError unless `document` is what the command of these words may print."""
    said = f" {' '.join(words)} "
    named = [name for name in OUTPUTS if f" {name} " in said]
    assert named, f"scripts/json_outputs.py does not know what {said.strip()} prints"
    command = min(named, key=lambda name: said.index(f" {name} "))
    schema = {"$defs": _PUBLISHED["$defs"], "$ref": f"#/$defs/{command.replace(' ', '%20')}"}
    Draft202012Validator(schema).validate(document)
