"""As many projects do: the CUDA sources are compiled only if the machine that builds has a GPU."""

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

sources = ["csrc/ops.cpp", "csrc/cuda_binding.cpp"]
extension = CppExtension
if torch.cuda.is_available():
    extension = CUDAExtension
    sources += ["csrc/forward.cu"]

setup(
    name="toy_attn",
    version="1.0",
    packages=["toy_attn"],
    install_requires=["torch"],
    ext_modules=[extension("toy_attn._C", sources)],
    cmdclass={"build_ext": BuildExtension},
)
