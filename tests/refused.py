"""Expect an error of buildfarm by its code and by the values that it names, so that its sentence can be improved."""

import pytest

from builder.errors import BuildfarmError, Code


def refused(code: Code, *values: str) -> pytest.RaisesExc[BuildfarmError]:
    """Expect an error with this code that names each of the values, such as a version."""

    def is_expected(error: BuildfarmError) -> bool:
        assert error.code is code, error
        for value in values:
            assert value in str(error)
        return True

    return pytest.raises(BuildfarmError, check=is_expected)
