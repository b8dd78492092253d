"""Processor seconds of the first build of a cold second worker: with the shared compiler cache, and without a cache.

Run: python -m tests.benchmarks.shared_cache [--extension NAME]. It needs redis-server and sccache. Each worker has a
store of its own. The time to make environments is not measured, and neither is Redis. The first worker fills Redis;
then the second worker, whose cache on disk is empty, builds without a cache and with the shared one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from builder.matrix.axes import Arch
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.wheels.sources.prepare import prepare_source
from tests.conftest import ROOT
from tests.fixtures.redis_server import Compiled, compile_in, running_redis


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extension", default="ms_deform_attn", help="a folder of extensions/")
    parser.add_argument("--arch", default="9.0", help="the GPU architecture")
    parser.add_argument("--stores", type=Path, help="a folder for the stores, to keep their environments")
    options = parser.parse_args()
    select = Selection(torch=("2.11",), cuda=("13.0",), python=("3.12",), extensions=(options.extension,))
    matrix, recipes, plan = read_plan(ROOT / "matrix.yaml", select, (Arch.parse(options.arch),))
    (build,) = plan.builds
    recipe = recipes[options.extension]
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name, running_redis() as redis:
        stores = options.stores or Path(name)
        os.environ["SCCACHE_REDIS_ENDPOINT"] = redis.url

        def measure(worker: str, what: str, *, cache: bool) -> Compiled:
            def write(source: Path) -> None:
                prepare_source(recipe, source, cache=Path(name, "sources"))

            index = matrix.torch_index
            done = compile_in(stores / worker, build, recipe, write, torch_index=index, compiler_cache=cache)
            print(f"{worker} worker, {what}: {done.cpu:.1f} CPU s; {done.objects}", flush=True)
            return done

        first = measure("first", "shared cache, empty", cache=True)
        without = measure("second", "no cache", cache=False)
        shared = measure("second", "shared cache, filled by the first worker", cache=True)
        print(f"{build}: {shared.cpu / without.cpu:.2f} of the processor time without a cache")
        print(f"the wheels of both workers are {'' if shared.wheel == first.wheel else 'not '}equal bit for bit")


if __name__ == "__main__":
    main()
