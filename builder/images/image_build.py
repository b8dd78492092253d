"""Builds an image from its rendered Dockerfile, and records the versions of the tools in it. Each happens once."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.images.dockerfiles import digest, render_template
from builder.images.engine import Engine
from builder.images.network import ca_bundle, ca_variables, index_variables, shell_settings
from builder.images.specs import BuildImage, RuntimeImage
from builder.process import kill_orphans
from builder.store import Store, write_atomic
from builder.untrusted import known_json

#: Prints the versions of the tools in a build image, and its PATH; one `name=value` in each line.
_VERSIONS_SCRIPT = """\
echo "gxx=$(g++ -dumpfullversion)"
echo "nvcc=$(nvcc --version 2>/dev/null | sed -n 's/.*, V\\([0-9.]*\\).*/\\1/p')"
echo "python=$({prefix}/bin/python3 -c 'import platform; print(platform.python_version())')"
echo "path=$PATH"
"""


@dataclass(frozen=True)
class ImageContents:
    """Versions of the tools in a build image."""

    id: str  # the engine's id of the inspected image
    gxx: str  # gxx, nvcc, python: exact versions; `nvcc` is empty when the image has none
    nvcc: str
    python: str
    path: str  # value of PATH in the image


def image_name(image: BuildImage | RuntimeImage, base_ids: Sequence[str]) -> str:
    """The tag of an image, `buildfarm/<name>:<digest>`: a digest of its Dockerfile and the ids of its base images."""
    text = render_template(image.template, image)
    return f"buildfarm/{image.name}:{digest(text + ''.join(sorted(base_ids)))}"


def ensure_image(
    engine: Engine, store: Store, image: BuildImage | RuntimeImage, *, log: Path, index: Sequence[str] = ()
) -> str:
    """The tag of an image, which is built if it is not on this machine. Missing base images are pulled.

    `index` are URLs of package indexes that take precedence over the default one. Raises MissingToolError when a base
    image cannot be pulled, the engine stops answering or the network cannot be reached, and BuildError when the build
    of the image fails. The complete output is in `log`.
    """
    tag = image_name(image, [engine.base_id(base) for base in image.bases])
    owner = store.owner(_job_name(tag))
    with store.lock(_job_name(tag)):
        if engine.image_id(tag) is None:
            kill_orphans(owner)  # the buildx of a killed run may still be running
            with tempfile.TemporaryDirectory(prefix="buildfarm-secrets-") as folder:
                network = Path(folder, "network")
                settings = {**index_variables(index=index), **ca_variables("/run/secrets/ca")}
                network.write_text(shell_settings(settings))
                secrets = {"ca": ca_bundle(), "network": network}
                # Base images have other names on this machine if they came from a mirror.
                names = {base: engine.local_name(base) or base for base in image.bases}
                text = render_template(image.template, image)
                text = re.sub(r"^FROM (\S+)", lambda base: f"FROM {names[base[1]]}", text, flags=re.MULTILINE)
                engine.build(text, tag, log=log, owner=owner, secrets=secrets)
    return tag


def cached_contents(engine: Engine, store: Store, image: BuildImage) -> tuple[str, ImageContents] | None:
    """An image's tag and recorded contents, or None without a record for the current base images."""
    names = [name for base in image.bases if (name := engine.local_name(base))]
    ids = [found for name in names if (found := engine.image_id(name))]
    if len(ids) < len(image.bases):
        return None
    tag = image_name(image, ids)
    contents = known_json(store.root / "envs" / f"{_job_name(tag)}.json", lambda data: ImageContents(**data))
    return (tag, contents) if contents else None


def inspect_image(engine: Engine, store: Store, image: BuildImage, *, log: Path) -> tuple[str, ImageContents]:
    """An image's tag and contents. Builds and inspects the image if necessary; raises what `ensure_image` raises."""
    tag = ensure_image(engine, store, image, log=log)
    image_id = engine.base_id(tag)
    record = store.root / "envs" / f"{_job_name(tag)}.json"
    with store.lock(_job_name(tag)):
        contents = known_json(record, lambda data: ImageContents(**data))
        if contents is None or contents.id != image_id:
            owner = store.owner(_job_name(tag))
            output = engine.run_script(tag, _VERSIONS_SCRIPT.format(prefix=image.pythons.prefix), owner=owner)
            values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
            contents = ImageContents(image_id, *(values.get(name, "") for name in ("gxx", "nvcc", "python", "path")))
            write_atomic(record, json.dumps(asdict(contents), indent=1).encode())
    return tag, contents


def _job_name(tag: str) -> str:
    """Name of an image's lock, and of the job that owns its processes and containers."""
    return f"image-{tag.rsplit(':', 1)[1]}"
