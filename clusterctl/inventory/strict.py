"""The base of all that an inventory holds: unknown keys are errors, and nothing changes later."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
