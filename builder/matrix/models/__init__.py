"""The keys of matrix.yaml and extension.yaml as pydantic models; schemas and reference pages come from them."""

from __future__ import annotations

from builder.matrix.models.matrix import ExcludeModel, ImageModel, MatrixModel
from builder.matrix.models.recipe import AbiModel, AcceptModel, RecipeModel, SourceModel

__all__ = ["AbiModel", "AcceptModel", "ExcludeModel", "ImageModel", "MatrixModel", "RecipeModel", "SourceModel"]
