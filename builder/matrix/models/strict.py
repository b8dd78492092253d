"""The base of all models of YAML files."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class StrictModel(BaseModel):
    """A mapping in a file. It refuses unknown keys; a known key without a value counts as not given."""

    # Building the validators takes time that commands which read no YAML do not have to spend.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:  # noqa: ANN401
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {k: v for k, v in data.items() if v is not None or k not in known} if isinstance(data, dict) else data
