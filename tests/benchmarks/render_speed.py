"""How long `buildfarm render` takes for the shipped matrix. Run: python -m tests.benchmarks.render_speed.

It alternates between starting a bare Python and rendering, with cached byte code, as after an installation by pip. It
prints the median wall and processor time of both, and fails if the median wall time of rendering is over 2 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.plan_speed import show, timed

#: Limit of the median wall time for the shipped matrix, seconds.
LIMIT = 2.0

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=5, help="number of timed runs of each, after one run that fills the cache"
    )
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "images.json"
        render = [sys.executable, "-m", "builder", "render", "--json"]
        render += ["--matrix", str(ROOT / "matrix.yaml"), "--out", str(folder / "dockerfiles")]
        bare = [sys.executable, "-c", "pass"]
        timed(render, folder, out)
        pairs = [(timed(bare, folder, folder / "nothing"), timed(render, folder, out)) for _ in range(runs)]
        images = json.loads(out.read_bytes())["images"]
    kinds = [image["kind"] for image in images]
    print(
        f"{kinds.count('build')} build images, {kinds.count('runtime')} runtime images; {runs} runs each, alternating"
    )
    print("                     wall      processor   (medians)")
    show("python -c pass", [pair[0] for pair in pairs])
    show("buildfarm render", [pair[1] for pair in pairs])
    wall = statistics.median(pair[1].wall for pair in pairs)
    if wall > LIMIT:
        sys.exit(f"over the limit of {LIMIT} s")


if __name__ == "__main__":
    main()
