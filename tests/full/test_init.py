"""A folder with one CUDA file, `buildfarm init` and `buildfarm build`: a wheel with the functions as ops."""

import json
from pathlib import Path

import pytest

from builder.errors import Exit
from tests.conftest import Farm, lacking, wheel_of

pytestmark = [pytest.mark.network, pytest.mark.slow]

KERNELS = """\
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

__global__ void saxpy(int n, float a, const float* __restrict__ x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

void add_scaled(torch::Tensor& y, const torch::Tensor& x, double a) {
  const int n = static_cast<int>(y.numel());
  saxpy<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      n, static_cast<float>(a), x.const_data_ptr<float>(), y.mutable_data_ptr<float>());
}

template <typename T>
__global__ void scale(T* out, const T* x, T a, size_t n) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i];
}

std::tuple<torch::Tensor, torch::Tensor> both(const torch::Tensor& x) { return {x.clone(), at::zeros_like(x)}; }

std::vector<torch::Tensor> listed(const torch::Tensor& x) { return {x.clone()}; }

torch::Tensor scale_by(const torch::Tensor& x, double a) {
  torch::Tensor out = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", [&] {
    scale<scalar_t><<<(x.numel() + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        out.mutable_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), static_cast<scalar_t>(a), x.numel());
  });
  return out;
}
"""


def test_one_cuda_file_becomes_a_wheel(farm: Farm, store: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels.cu").write_text(KERNELS)
    started = farm("init", "--torch", "2.11", "--cuda", "13.0", "--python", "3.12", cwd=tmp_path)
    assert started.code == 0, started.all
    assert "torch.ops.kernels.scale_by(Tensor x, float a) -> Tensor" in started.out
    assert "torch.ops.kernels.both(Tensor x) -> (Tensor, Tensor)" in started.out
    assert "torch.ops.kernels.listed(Tensor x) -> Tensor[]" in started.out
    built = farm("build", "--executor", "local", "--arch", "9.0", "--store", store, cwd=tmp_path)
    if built.code == Exit.TOOL_MISSING:
        lacking(built.err)
    assert built.code == 0, built.all
    (entry,) = json.loads((tmp_path / "dist" / "report.json").read_text())["builds"]
    verdicts = {proof["check"]: proof["verdict"] for proof in entry["proofs"]}
    assert [verdicts[check] for check in ("device-code", "linkage", "import")] == ["passed"] * 3
    assert verdicts["ops"] == "not run"  # there are no cases
    assert "kernels::add_scaled" in json.dumps(entry["proofs"])
    assert "kernels::scale_by" in json.dumps(entry["proofs"])
    assert wheel_of(tmp_path / "dist").name.startswith("kernels-0.1.0+cu130.torch2.11-cp312-")
