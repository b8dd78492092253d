"""Every refusal names the argument it is about."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from cases import Case, make_case

from ms_deform_attn import ms_deform_attn
from ms_deform_attn._library import check_cuda, check_torch

CASE = make_case(batch=2, heads=3, channels=4, queries=5)

WRONG = {
    "value-3d": ("value", CASE.value[0]),
    "value-int": ("value", CASE.value.long()),
    "value-complex": ("value", CASE.value.to(torch.complex128)),
    "shapes-1d": ("spatial_shapes", CASE.spatial_shapes[0]),
    "shapes-columns": ("spatial_shapes", torch.zeros(2, 3, dtype=torch.int64)),
    "shapes-int32": ("spatial_shapes", CASE.spatial_shapes.int()),
    "starts-2d": ("level_start_index", CASE.level_start_index[None]),
    "starts-short": ("level_start_index", CASE.level_start_index[:1]),
    "starts-float": ("level_start_index", CASE.level_start_index.double()),
    "loc-5d": ("sampling_loc", CASE.sampling_loc[0]),
    "loc-heads": ("sampling_loc", CASE.sampling_loc[:, :, :2]),
    "loc-levels": ("sampling_loc", CASE.sampling_loc[:, :, :, :1]),
    "loc-xyz": ("sampling_loc", torch.rand(*CASE.sampling_loc.shape[:-1], 3)),
    "loc-int": ("sampling_loc", CASE.sampling_loc.long()),
    "weight-5d": ("attn_weight", CASE.attn_weight[..., None]),
    "weight-points": ("attn_weight", CASE.attn_weight[..., :1]),
    "weight-queries": ("attn_weight", CASE.attn_weight[:, :3]),
    "weight-bool": ("attn_weight", CASE.attn_weight > 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument_is_named(name: str):
    argument, wrong = WRONG[name]
    with pytest.raises(RuntimeError, match=rf"ms_deform_attn: {argument} must"):
        ms_deform_attn(*CASE._replace(**{argument: wrong}))


@pytest.mark.parametrize("name", WRONG)
def test_fake_refuses_the_same(name: str):
    """A shape that the kernel refuses must not pass tracing."""
    argument, wrong = WRONG[name]
    wrong_case = Case(*(tensor.to("meta") for tensor in CASE._replace(**{argument: wrong})))
    with pytest.raises(RuntimeError, match=rf"ms_deform_attn: {argument} must"):
        ms_deform_attn(*wrong_case)


@pytest.mark.parametrize(
    "shapes, starts",
    [
        ([[8, 4], [3, 2]], [0, 24]),
        ([[6, 4], [3, 2]], [0, 25]),
        ([[6, 4], [3, 2]], [-1, 24]),
        ([[-6, -4], [3, 2]], [0, 24]),
        ([[2**62, 4], [3, 2]], [0, 24]),
        ([[2**32, 2**32], [3, 2]], [0, 24]),
    ],
)
def test_levels_that_do_not_fit_are_named(shapes: list, starts: list):
    case = CASE._replace(spatial_shapes=torch.tensor(shapes), level_start_index=torch.tensor(starts))
    with pytest.raises(RuntimeError, match=r"spatial_shapes\[[01]\] = .* level_start_index\[[01]\] = .* does not fit"):
        ms_deform_attn(*case)


def test_list_of_shapes_is_checked():
    ms_deform_attn(*CASE, value_spatial_shapes_list=[(6, 4), (3, 2)])
    with pytest.raises(RuntimeError, match="value_spatial_shapes_list has 1 levels"):
        ms_deform_attn(*CASE, value_spatial_shapes_list=[(6, 4)])
    with pytest.raises(RuntimeError, match="value_spatial_shapes_list holds 31 pixels, value has 30 rows"):
        ms_deform_attn(*CASE, value_spatial_shapes_list=[(6, 4), (7, 1)])


@pytest.mark.parametrize("wrong", [torch.zeros(2, 5, 11).double(), torch.zeros(2, 5, 12)], ids=["shape", "dtype"])
def test_backward_checks_the_gradient(wrong: torch.Tensor):
    with pytest.raises(RuntimeError, match="ms_deform_attn: grad_output must"):
        torch.ops.ms_deform_attn.backward(*CASE, wrong)


def test_loader_names_the_fault():
    check_torch("2.10.0+cu130", "2.11", True)
    check_torch("2.2.2+cu121", "2.2", False)
    check_cuda("13.2", "13.0")
    with pytest.raises(ImportError, match=r"needs torch 2\.10 or later, but torch 2\.9\.1 is installed"):
        check_torch("2.9.1", "2.11", True)
    with pytest.raises(ImportError, match=r"needs torch 2\.2, but torch 2\.3\.0 is installed"):
        check_torch("2.3.0", "2.2", False)
    with pytest.raises(ImportError, match=r"is for CUDA 13, but torch .* brings CUDA 12\.8"):
        check_cuda("12.8", "13.0")


def test_a_torch_without_cuda_loads_only_the_cpu_library(tmp_path):
    """_C_cuda is linked against libraries such a torch does not have: it must not even be tried."""
    script = (
        "import sys, torch; torch.version.cuda = None; import ms_deform_attn;"
        "assert not ms_deform_attn.HAS_CUDA and 'ms_deform_attn._C_cuda' not in sys.modules;"
        "assert torch._C._dispatch_has_kernel_for_dispatch_key('ms_deform_attn::forward', 'CPU');"
        "assert not torch._C._dispatch_has_kernel_for_dispatch_key('ms_deform_attn::forward', 'CUDA')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
