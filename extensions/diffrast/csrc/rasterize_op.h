// rasterize between torch and the phases: check, allocate, run. Shared by the CPU and the CUDA binding.
#pragma once

#include <string>
#include <tuple>

#include "rasterize.h"
#include "torch_api.h"

namespace diffrast {
namespace rasterize_op {

// The mesh as both directions need it.
inline void check_mesh(const char* op, const Tensor& pos, const Tensor& tri) {
  check_floating(op, "pos", pos);
  DIFFRAST_CHECK((pos.dim() == 2 || pos.dim() == 3) && pos.size(pos.dim() - 1) == 4, "diffrast.", op,
                 ": pos must have shape (N, V, 4), or (V, 4) with ranges, got ", show(sizes(pos)));
  check_shape(op, "tri", tri, {-1, 3}, "(T, 3)");
  check_int32(op, "tri", tri);
  check_device(op, "tri", tri, pos);
  DIFFRAST_CHECK(tri.size(0) < (int64_t{1} << 30), "diffrast.", op, ": tri must have fewer than 2^30 triangles, got ",
                 tri.size(0));
}

inline void check_raster(const char* op, const char* name, const Tensor& t, const Tensor& pos, const Sizes& shape) {
  const std::string meaning = "(N, H, W, 4) = " + show(shape);
  check_shape(op, name, t, shape, meaning.c_str());
  check_same_dtype(op, name, t, "pos", pos);
  check_device(op, name, t, pos);
}

inline void check_resolution(const char* op, int64_t height, int64_t width) {
  DIFFRAST_CHECK(height >= 1 && width >= 1 && height <= kMaxResolution && width <= kMaxResolution, "diffrast.", op,
                 ": height and width must be from 1 to ", kMaxResolution, ", got ", height, " x ", width);
}

// The triangles of all images, or as many as there can be where ranges cannot be read without waiting for the device.
inline int64_t count_slots(const Tensor& ranges, int64_t triangles) {
  const int64_t images = ranges.size(0);
  if (!ranges.is_cpu()) return images * triangles;
  const int32_t* range = read<int32_t>(ranges);
  int64_t slots = 0;
  for (int64_t n = 0; n < images; ++n) {
    const int64_t start = range[2 * n], count = range[2 * n + 1];
    DIFFRAST_CHECK(start >= 0 && count >= 0 && start + count <= triangles, "diffrast.rasterize: ranges[", n, "] = (",
                   start, ", ", count, ") does not lie within the ", triangles, " triangles of tri");
    slots += count;
  }
  return slots;
}

}  // namespace rasterize_op

// run(problem)
template <class T, class Run>
std::tuple<Tensor, Tensor> rasterize_as(const Tensor& pos_in, const Tensor& tri_in, int64_t height, int64_t width,
                                        const std::optional<Tensor>& ranges_in, const std::optional<Tensor>& peel_in,
                                        bool db, const Run& run) {
  using namespace rasterize_op;
  check_mesh("rasterize", pos_in, tri_in);
  check_resolution("rasterize", height, width);
  const Tensor pos = diffrast::contiguous(pos_in), tri = diffrast::contiguous(tri_in);
  RasterizeProblem<T> p{};
  p.triangles = tri.size(0);
  p.height = static_cast<int32_t>(height);
  p.width = static_cast<int32_t>(width);
  p.pos = read<T>(pos);
  p.tri = read<int32_t>(tri);

  std::optional<Tensor> ranges, first_slot, peel;
  if (pos.dim() == 3) {
    DIFFRAST_CHECK(!ranges_in.has_value(), "diffrast.rasterize: ranges are for pos of shape (V, 4), got ",
                   show(sizes(pos)));
    p.images = pos.size(0);
    p.vertices = pos.size(1);
    p.pos_stride = p.vertices * 4;
    p.slots = p.images * p.triangles;
  } else {
    DIFFRAST_CHECK(ranges_in.has_value(), "diffrast.rasterize: pos of shape (V, 4) needs ranges");
    check_shape("rasterize", "ranges", *ranges_in, {-1, 2}, "(N, 2)");
    check_int32("rasterize", "ranges", *ranges_in);
    DIFFRAST_CHECK(ranges_in->is_cpu() || ranges_in->device() == pos.device(),
                   "diffrast.rasterize: ranges must be on the CPU or on the same device as pos");
    ranges = diffrast::contiguous(*ranges_in);
    p.images = ranges->size(0);
    p.vertices = pos.size(0);
    p.slots = count_slots(*ranges, p.triangles);
    if (ranges->device() != pos.device()) ranges = torch::stable::to(*ranges, pos.device());
    first_slot = empty(pos, {p.images + 1}, ScalarType::Long);
    p.ranges = read<int32_t>(*ranges);
    p.first_slot = write<int64_t>(*first_slot);
  }
  DIFFRAST_CHECK(p.slots < (int64_t{1} << 31) - 1, "diffrast.rasterize: ", p.images, " images of ", p.triangles,
                 " triangles are more than 2^31 - 2 in all; rasterize them in parts");
  const Sizes shape = {p.images, height, width, 4};
  if (peel_in.has_value()) {
    check_raster("rasterize", "peel", *peel_in, pos, shape);
    peel = diffrast::contiguous(*peel_in);
    p.peel = read<T>(*peel);
  }

  const Tensor rast = empty(pos, shape);
  const Tensor rast_db = empty(pos, {p.images, height, width, db ? 4 : 0});
  const Tensor nearest = empty(pos, {p.pixels()}, ScalarType::Long);
  const Tensor first_pair = empty(pos, {p.slots + 1}, ScalarType::Long);
  p.nearest = reinterpret_cast<uint64_t*>(write<int64_t>(nearest));
  p.first_pair = write<int64_t>(first_pair);
  p.rast = write<T>(rast);
  p.rast_db = db ? write<T>(rast_db) : nullptr;
  run(p);
  return std::make_tuple(rast, rast_db);
}

// run(problem)
template <class T, class Run>
Tensor rasterize_backward_as(const Tensor& pos_in, const Tensor& tri_in, const Tensor& rast_in,
                             const Tensor& grad_rast_in, const std::optional<Tensor>& grad_rast_db_in, const Run& run) {
  using namespace rasterize_op;
  const char* op = "rasterize_backward";
  check_mesh(op, pos_in, tri_in);
  check_shape(op, "rast", rast_in, {pos_in.dim() == 3 ? pos_in.size(0) : -1, -1, -1, 4}, "(N, H, W, 4)");
  const Sizes shape = sizes(rast_in);
  check_resolution(op, shape[1], shape[2]);
  check_raster(op, "rast", rast_in, pos_in, shape);
  check_raster(op, "grad_rast", grad_rast_in, pos_in, shape);

  const Tensor pos = diffrast::contiguous(pos_in), tri = diffrast::contiguous(tri_in);
  const Tensor rast = diffrast::contiguous(rast_in), grad_rast = diffrast::contiguous(grad_rast_in);
  std::optional<Tensor> grad_rast_db;
  if (grad_rast_db_in.has_value()) {
    check_raster(op, "grad_rast_db", *grad_rast_db_in, pos_in, shape);
    grad_rast_db = diffrast::contiguous(*grad_rast_db_in);
  }
  const Tensor grad_pos = zeros(pos, sizes(pos));
  RasterizeGradients<T> p{};
  p.images = shape[0];
  p.vertices = pos.size(pos.dim() - 2);
  p.triangles = tri.size(0);
  p.height = static_cast<int32_t>(shape[1]);
  p.width = static_cast<int32_t>(shape[2]);
  p.pos_stride = pos.dim() == 3 ? p.vertices * 4 : 0;
  p.pos = read<T>(pos);
  p.tri = read<int32_t>(tri);
  p.rast = read<T>(rast);
  p.of_rast = read<T>(grad_rast);
  p.of_rast_db = grad_rast_db.has_value() ? read<T>(*grad_rast_db) : nullptr;
  p.of_pos = write<T>(grad_pos);
  run(p);
  return grad_pos;
}

}  // namespace diffrast
