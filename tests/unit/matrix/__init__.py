"""Tests of builder/matrix/."""
