"""Rendered text to an image on this machine: named by all it is made from, made once, its insides looked at once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.images.engine import Engine
from builder.images.network import ca_bundle, ca_variables, index_variables, shell_settings
from builder.images.render import digest, render_template
from builder.images.specs import BuildImage, RuntimeImage
from builder.process import reap_orphans
from builder.store import Store, write_whole

#: Asks an image what a build in it meets; one `name=value` to a line.
_QUESTIONS = """\
echo "gxx=$(g++ -dumpfullversion)"
echo "nvcc=$(nvcc --version 2>/dev/null | sed -n 's/.*, V\\([0-9.]*\\).*/\\1/p')"
echo "python=$({prefix}/bin/python3 -c 'import platform; print(platform.python_version())')"
echo "path=$PATH"
"""


@dataclass(frozen=True)
class Insides:
    """What a build image holds.

    Attributes:
        id: the engine's id of the image that was looked at.
        gxx, nvcc, python: exact versions; no nvcc where the base has none.
        path: its PATH.

    """

    id: str
    gxx: str
    nvcc: str
    python: str
    path: str


def image_name(image: BuildImage | RuntimeImage, base_ids: Sequence[str]) -> str:
    """The tag of an image: `buildfarm/<name>:<digest>`, over its text and the ids of what its tags stand for now."""
    text = render_template(image.template, image)
    return f"buildfarm/{image.name}:{digest(text + ''.join(sorted(base_ids)))}"


def ensure_image(
    engine: Engine, store: Store, image: BuildImage | RuntimeImage, *, log: Path, index: Sequence[str] = ()
) -> str:
    """The tag of an image, made where it is not there; its bases are pulled where they are not there.

    `index` are URLs of package indexes that go before the default one. Raises MissingToolError for a base that
    cannot be had, an engine that went away or a network that is not there, BuildError with the engine's own line
    where the image cannot be made; then `log` tells the rest.
    """
    tag = image_name(image, [engine.base_id(base) for base in image.bases])
    mark = store.mark(_job(tag))
    with store.lock(_job(tag)):
        if engine.image_id(tag) is None:
            reap_orphans(mark)  # a killed run's buildx would go on
            with tempfile.TemporaryDirectory(prefix="buildfarm-secrets-") as folder:
                network = Path(folder, "network")
                settings = {**index_variables(index=index), **ca_variables("/run/secrets/ca")}
                network.write_text(shell_settings(settings))
                secrets = {"ca": ca_bundle(), "network": network}
                text = render_template(image.template, image, engine.features())
                engine.build(text, tag, log=log, job=mark, secrets=secrets)
    return tag


def known_insides(engine: Engine, store: Store, image: BuildImage) -> tuple[str, Insides] | None:
    """The image's tag and what it holds, if it was looked at before and its bases are still those; else None."""
    ids = [engine.image_id(base) for base in image.bases]
    if None in ids:
        return None
    tag = image_name(image, [found for found in ids if found])
    insides = _read(_record(store, tag))
    return (tag, insides) if insides else None


def look_inside(engine: Engine, store: Store, image: BuildImage, *, log: Path) -> tuple[str, Insides]:
    """The same, after making the image and looking where that was not done yet; raises as `ensure_image` does."""
    tag = ensure_image(engine, store, image, log=log)
    identity = engine.base_id(tag)
    record = _record(store, tag)
    with store.lock(_job(tag)):
        insides = _read(record)
        if insides is None or insides.id != identity:
            mark = store.mark(_job(tag))
            said = engine.ask(tag, _QUESTIONS.format(prefix=image.pythons.prefix), mark=mark)
            answers = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
            insides = Insides(identity, *(answers.get(name, "") for name in ("gxx", "nvcc", "python", "path")))
            write_whole(record, json.dumps(asdict(insides), indent=1).encode())
    return tag, insides


def _job(tag: str) -> str:
    """The name of an image's lock, and of the programs and containers that are about it."""
    return f"image-{tag.rsplit(':', 1)[1]}"


def _record(store: Store, tag: str) -> Path:
    return store.root / "envs" / f"{_job(tag)}.json"


def _read(record: Path) -> Insides | None:
    try:
        return Insides(**json.loads(record.read_bytes()))
    except (OSError, ValueError, TypeError):  # none, or not one of ours: look anew
        return None
