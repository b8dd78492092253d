// The kernels of rasterize behind a C interface, for ctypes.
#include "../../csrc/cuda/rasterize_run.h"

#include <cstdio>
#include <exception>
#include <vector>

template <class Run>
static int guarded(Run run) {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_on_host: %s\n", error.what());
    return -1;
  }
}

// sizes: images, vertices, triangles, height, width, slots, pos_stride
// tensors: pos, tri, ranges, peel, first_slot, first_pair, nearest, rast, rast_db
extern "C" int rasterize(const int64_t* sizes, void* const* tensors) {
  diffrast::RasterizeProblem<float> p{};
  p.images = sizes[0];
  p.vertices = sizes[1];
  p.triangles = sizes[2];
  p.height = static_cast<int32_t>(sizes[3]);
  p.width = static_cast<int32_t>(sizes[4]);
  p.slots = sizes[5];
  p.pos_stride = sizes[6];
  p.pos = static_cast<const float*>(tensors[0]);
  p.tri = static_cast<const int32_t*>(tensors[1]);
  p.ranges = static_cast<const int32_t*>(tensors[2]);
  p.peel = static_cast<const float*>(tensors[3]);
  p.first_slot = static_cast<int64_t*>(tensors[4]);
  p.first_pair = static_cast<int64_t*>(tensors[5]);
  p.nearest = static_cast<uint64_t*>(tensors[6]);
  p.rast = static_cast<float*>(tensors[7]);
  p.rast_db = static_cast<float*>(tensors[8]);
  return guarded([&] {
    size_t bytes = 0;
    diffrast::rasterize_scratch(p, &bytes);
    std::vector<char> scratch(bytes);
    return diffrast::run_rasterize(p, scratch.data(), bytes, nullptr);
  });
}

// sizes: images, vertices, triangles, height, width, pos_stride
// tensors: pos, tri, rast, grad_rast, grad_rast_db, grad_pos
extern "C" int rasterize_backward(const int64_t* sizes, void* const* tensors) {
  diffrast::RasterizeGradients<float> p{};
  p.images = sizes[0];
  p.vertices = sizes[1];
  p.triangles = sizes[2];
  p.height = static_cast<int32_t>(sizes[3]);
  p.width = static_cast<int32_t>(sizes[4]);
  p.pos_stride = sizes[5];
  p.pos = static_cast<const float*>(tensors[0]);
  p.tri = static_cast<const int32_t*>(tensors[1]);
  p.rast = static_cast<const float*>(tensors[2]);
  p.of_rast = static_cast<const float*>(tensors[3]);
  p.of_rast_db = static_cast<const float*>(tensors[4]);
  p.of_pos = static_cast<float*>(tensors[5]);
  return guarded([&] { return diffrast::run_rasterize_backward(p, nullptr); });
}
