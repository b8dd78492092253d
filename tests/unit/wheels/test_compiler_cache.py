"""The compiler cache: its statistics, and the sources that must not use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.records import CacheStatistics
from builder.wheels.sccache.configure import read_statistics, unsafe_source
from builder.wheels.variables import shell_variables

#: From `sccache --show-stats --stats-format=json` of sccache 0.16.0, shortened: one CUDA file for two architectures,
#: which share some results with an earlier call, two host files, and one call that is not cached.
STATISTICS = {
    "stats": {
        "compile_requests": 6,
        "requests_not_cacheable": 1,
        "requests_executed": 19,
        "cache_hits": {"counts": {"CUBIN": 1, "PTX": 1}, "adv_counts": {"cubin [ptxas]": 1, "ptx [cicc]": 1}},
        "cache_misses": {"counts": {"CUDA (Device code)": 3, "C/C++": 2, "PTX": 3, "CUDA": 3, "CUBIN": 3}},
        "compilations": 17,
        "non_cacheable_compilations": 3,
        "not_cached": {"-save-temps": 1},
    },
    "version": "0.16.0",
}


def test_steps_of_compilers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(json.dumps(STATISTICS))
    found = read_statistics(tmp_path)
    assert found == CacheStatistics(reused=2, compiled=14, not_cached={"-save-temps": 1})
    assert found.sentence() == "compiler cache: 2 of 16 steps reused; 1 not cached (-save-temps)"
    assert CacheStatistics(**json.loads(json.dumps(found.to_json()))) == found


def test_a_cache_that_was_not_used_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "refused").write_text("it is not used\n")
    (tmp_path / "stats.json").write_text(json.dumps(STATISTICS))
    found = read_statistics(tmp_path)
    assert found == CacheStatistics(refused="it is not used")
    assert found.sentence() == "compiler cache not used: it is not used"
    assert CacheStatistics(**found.to_json()) == found


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "sccache's server ended before the build"),
        ("Compile requests 1\n", "buildfarm cannot read the statistics of this sccache"),
        ('{"stats": {"hits": 1}, "version": "9"}', "buildfarm cannot read the statistics of this sccache"),
    ],
    ids=["no statistics", "no JSON", "a different form"],
)
def test_statistics_that_cannot_be_read_are_no_figures(tmp_path: Path, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / "stats.json").write_text(content)
    found = read_statistics(tmp_path)
    assert found == CacheStatistics(unreadable=why)
    assert found.sentence() == f"compiler cache: cannot tell how many steps were reused: {why}"
    assert CacheStatistics(**found.to_json()) == found


def test_a_source_with_incbin_is_unsafe(tmp_path: Path) -> None:
    (tmp_path / "plain.cpp").write_text("int incbin;\n")
    (tmp_path / "notes.md").write_text('.incbin "x"\n')
    assert unsafe_source(tmp_path) == ""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "blob.S").write_text('.incbin "weights.bin"\n')
    assert "deep/blob.S" in unsafe_source(tmp_path)


def test_a_build_gets_no_variables_of_a_remote_cache() -> None:
    shell = {"SCCACHE_REDIS_PASSWORD": "x", "SCCACHE_BUCKET": "b", "AWS_SECRET_ACCESS_KEY": "s"}
    assert shell_variables({**shell, "SCCACHE_CACHE_SIZE": "1"}) == {"SCCACHE_CACHE_SIZE": "1"}
