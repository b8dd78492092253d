from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from builder.errors import Code
from builder.images import network
from builder.images.network import ca_bundle, ca_variables, index_variables, package_settings, shell_settings
from tests.refused import refused


@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        ({}, {}),
        ({"PATH": "/bin", "UV_CACHE_DIR": "/c", "UV_FIND_LINKS": "/wheels", "PIP_CERT": "/ca"}, {}),
        ({"UV_DEFAULT_INDEX": ""}, {}),
        ({"UV_DEFAULT_INDEX": "u"}, {"UV_DEFAULT_INDEX": "u", "PIP_INDEX_URL": "u"}),
        ({"UV_INDEX_URL": "u"}, {"UV_INDEX_URL": "u", "PIP_INDEX_URL": "u"}),
        ({"PIP_INDEX_URL": "p"}, {"UV_DEFAULT_INDEX": "p", "PIP_INDEX_URL": "p"}),
        ({"PIP_INDEX_URL": "p", "UV_DEFAULT_INDEX": "u"}, {"PIP_INDEX_URL": "p", "UV_DEFAULT_INDEX": "u"}),
        ({"UV_DEFAULT_INDEX": "own=https://u"}, {"UV_DEFAULT_INDEX": "own=https://u", "PIP_INDEX_URL": "https://u"}),
        ({"UV_INDEX_FARM_PASSWORD": "x", "https_proxy": "h"}, {"UV_INDEX_FARM_PASSWORD": "x", "https_proxy": "h"}),
    ],
    ids=["nothing", "not ours", "empty", "uv", "old uv", "pip", "both", "named", "credentials and proxy"],
)
def test_network_variables_of_a_container(environ: dict[str, str], variables: dict[str, str]) -> None:
    assert index_variables(environ) == variables


def test_a_bundle_in_the_environment_precedes_the_systems(tmp_path: Path) -> None:
    (tmp_path / "own.pem").touch()
    assert ca_bundle({"SSL_CERT_FILE": str(tmp_path / "own.pem")}) == tmp_path / "own.pem"
    assert ca_bundle({"SSL_CERT_FILE": "/nowhere", "PIP_CERT": str(tmp_path / "own.pem")}) == tmp_path / "own.pem"


def test_a_missing_bundle_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_CA_FILES", (str(tmp_path / "none.pem"),))
    monkeypatch.setattr("ssl.get_default_verify_paths", _Paths)
    with refused(Code.CERTIFICATE_NOT_USABLE) as caught:
        ca_bundle({})
    assert "SSL_CERT_FILE" in caught.value.hints[0]


class _Paths:
    cafile = None


def test_settings_are_quoted_for_the_shell() -> None:
    awkward = {"A": 'it\'s $HOME; `x` "y"', **ca_variables("/ca.pem")}
    sh = shutil.which("sh")
    assert sh
    script = shell_settings(awkward) + 'printf "%s\\n%s" "$A" "$SSL_CERT_FILE"'
    answer = subprocess.run([sh, "-eu"], input=script, capture_output=True, text=True, check=True, env={})
    assert answer.stdout == f"{awkward['A']}\n/ca.pem"


def test_only_places_of_packages_are_taken_from_the_settings_of_uv(tmp_path: Path) -> None:
    own, shared = tmp_path / "config" / "uv" / "uv.toml", tmp_path / "shared" / "uv" / "uv.toml"
    for path in (own, shared):
        path.parent.mkdir(parents=True)
    own.write_text(
        'prerelease = "allow"\noverride-dependencies = ["torch==1"]\noffline = true\nfind-links = ["/one", "/two"]\n'
        '[pip]\ntorch-backend = "cpu"\nindex-strategy = "unsafe-best-match"\n'
        '[[index]]\nname = "own"\nurl = "https://own"\n[[index]]\nurl = "https://main"\ndefault = true\n'
        '[[index]]\nurl = "https://flat"\nformat = "flat"\n'
        '[[index]]\nname = "rare"\nurl = "https://rare"\nexplicit = true\n'
    )
    shared.write_text('index-url = "https://shared"\nextra-index-url = ["https://more"]\ncache-dir = "/cache"\n')
    shell = {"XDG_CONFIG_HOME": str(own.parents[1]), "XDG_CONFIG_DIRS": str(shared.parents[1])}
    assert package_settings({**shell, "UV_TORCH_BACKEND": "auto", "UV_INDEX": "https://first"}) == {
        **shell,
        "UV_INDEX": "https://first own=https://own",
        "UV_DEFAULT_INDEX": "https://main",
        "UV_EXTRA_INDEX_URL": "https://more",
        "UV_FIND_LINKS": "/one,/two,https://flat",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_OFFLINE": "True",
        "UV_CACHE_DIR": "/cache",
    }
    given = {**shell, "PIP_INDEX_URL": "https://pip", "UV_NO_CONFIG": "1", "PIP_CONSTRAINT": "/x", "PIP_CERT": "/ca"}
    assert package_settings(given) == {**shell, "PIP_INDEX_URL": "https://pip", "PIP_CERT": "/ca"}
    for wrong in ("[", "[[index]]\nname = 'own'\n", "pip = 1\n"):
        own.write_text(wrong)
        with refused(Code.VALUE_INVALID, str(own)):
            package_settings(shell)
