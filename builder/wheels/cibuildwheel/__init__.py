"""The docker executor: compiles in containers that cibuildwheel starts."""
