#!/bin/sh
# Inside the container, before a source's own tests of its wheel: the build's packages, torch among them, into the
# environment cibuildwheel made for the tests. BUILDFARM_* come from builder/wheels/container.py, VIRTUAL_ENV from
# cibuildwheel.
set -eu

# It moves to where the packages lie, for the sake of hard links: see prepare.sh.
environment=$BUILDFARM_ENVIRONMENT-test
rm -rf "$environment"
mv "$VIRTUAL_ENV" "$environment"
[ "$(id -u)" -ne 0 ] || chown -R 1000:1000 "$environment" # see packages.sh
ln -s "$environment" "$VIRTUAL_ENV"
sh "$BUILDFARM_JOB_DIR/packages.sh" pip install --no-config --no-deps --python "$environment/bin/python" \
    --requirements "$BUILDFARM_JOB_DIR/requirements.txt"

# The top-level tests/ of a recipe's own folder is no source of the build, and comes only now.
if [ -d "$BUILDFARM_JOB_DIR/tests" ] && [ ! -e tests ]; then
    cp -r "$BUILDFARM_JOB_DIR/tests" tests
fi
