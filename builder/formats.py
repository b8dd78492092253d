"""Format numbers: the digest of a build and the basis of a proof contain one, and no hash of buildfarm's code.

Raise a number if a change of the code changes the output for the same inputs. Then wheels are built again, or checks
run again. `tests/unit/formats.py` lists the code behind each number, and a test fails if that code has changed.
"""

#: The bytes of a wheel. Templates of images are not part of it: the name of an image covers them.
BUILD_FORMAT = 6
#: The facts that are read from a wheel file and kept in the store.
FACTS_FORMAT = 4
#: Verdicts of the checks of the wheel file.
STATIC_FORMAT = 8
#: Verdicts of the linkage check.
LINKAGE_FORMAT = 3
#: Verdicts of the import in the environment of a cell.
CELL_FORMAT = 2
#: Verdicts of the op gate.
OPS_FORMAT = 11
#: Verdicts of the checks of `buildfarm verify`: before a wheel is published, and of `record` and `loader` in a build.
VERIFY_FORMAT = 7
#: What client and workers send each other.
PROTOCOL = 15
