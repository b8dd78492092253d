// The operators antialias, antialias_backward and antialias_topology between torch and the phases.
#pragma once

#include <array>
#include <limits>

#include "antialias.h"
#include "topology.h"
#include "torch_api.h"

namespace diffrast {

// The tensors of one call in the form the phases need, and the scratch they share.
struct AntialiasInputs {
  Tensor color, rast, pos, tri, topology;
  Tensor blends;

  template <class T>
  AntialiasProblem<T> problem() const {
    AntialiasProblem<T> p;
    p.batch = color.size(0);
    p.height = color.size(1);
    p.width = color.size(2);
    p.channels = color.size(3);
    p.vertices = pos.size(-2);
    p.triangles = tri.size(0);
    p.pos_stride = pos.dim() == 3 ? 4 * p.vertices : 0;
    p.color = read<T>(color);
    p.rast = read<T>(rast);
    p.pos = read<T>(pos);
    p.tri = read<int32_t>(tri);
    p.topology = read<int32_t>(topology);
    return p;
  }
};

inline void check_triangles(const char* op, const Tensor& tri) {
  check_int32(op, "tri", tri);
  check_shape(op, "tri", tri, {-1, 3}, "(T, 3)");
  DIFFRAST_CHECK(tri.size(0) <= std::numeric_limits<int32_t>::max() / 3, "diffrast.", op,
                 ": tri has too many triangles for half-edges numbered in int32");
}

inline AntialiasInputs prepare_antialias(const Tensor& color, const Tensor& rast, const Tensor& pos, const Tensor& tri,
                                         const Tensor& topology) {
  const char* op = "antialias";
  check_floating(op, "color", color);
  check_same_dtype(op, "rast", rast, "color", color);
  check_same_dtype(op, "pos", pos, "color", color);
  check_device(op, "rast", rast, color);
  check_device(op, "pos", pos, color);
  check_device(op, "tri", tri, color);
  check_device(op, "topology", topology, color);
  check_triangles(op, tri);
  check_int32(op, "topology", topology);
  check_shape(op, "color", color, {-1, -1, -1, -1}, "(N, h, w, C)");
  const Sizes s = sizes(color), v = sizes(pos);
  check_shape(op, "rast", rast, {s[0], s[1], s[2], 4}, "(N, h, w, 4) with the (N, h, w) of color");
  DIFFRAST_CHECK((v.size() == 2 && v[1] == 4) || (v.size() == 3 && v[0] == s[0] && v[2] == 4),
                 "diffrast.antialias: pos must have shape (V, 4) or (N, V, 4) with N = ", s[0], ", got ", show(v));
  check_shape(op, "topology", topology, sizes(tri), "(T, 3), that of tri");
  return {contiguous(color), contiguous(rast),     contiguous(pos),
          contiguous(tri),   contiguous(topology), empty(color, {s[0], s[1], s[2], 2})};
}

// run(inputs, out)
template <class Run>
Tensor antialias_op(const Tensor& color, const Tensor& rast, const Tensor& pos, const Tensor& tri,
                    const Tensor& topology, const Run& run) {
  const AntialiasInputs in = prepare_antialias(color, rast, pos, tri, topology);
  const Tensor out = empty(color, sizes(color));
  run(in, out);
  return out;
}

// run(inputs, grad_out, grad_color, grad_pos)
template <class Run>
std::tuple<Tensor, Tensor> antialias_backward_op(const Tensor& color, const Tensor& rast, const Tensor& pos,
                                                 const Tensor& tri, const Tensor& topology, const Tensor& grad_out,
                                                 const Run& run) {
  const AntialiasInputs in = prepare_antialias(color, rast, pos, tri, topology);
  check_same_dtype("antialias", "grad_out", grad_out, "color", color);
  check_device("antialias", "grad_out", grad_out, color);
  check_shape("antialias", "grad_out", grad_out, sizes(color), "(N, h, w, C), that of color");
  const Tensor grad_color = empty(color, sizes(color)), grad_pos = zeros(pos, sizes(pos));
  run(in, contiguous(grad_out), grad_color, grad_pos);
  return std::make_tuple(grad_color, grad_pos);
}

// torch.sort(keys, stable=True): on the device's stream, without waiting for it.
inline std::array<Tensor, 2> sort_stable(const Tensor& keys) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(keys), from(std::optional<bool>(true)), from(int64_t{0}), from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

// run_keys(half_edges, EdgeKeys), run_links(half_edges, LinkEdges)
template <class RunKeys, class RunLinks>
Tensor antialias_topology_op(const Tensor& tri, const RunKeys& run_keys, const RunLinks& run_links) {
  check_triangles("antialias_topology", tri);
  const Tensor corners = contiguous(tri);
  const int64_t half_edges = 3 * tri.size(0);
  const Tensor keys = empty(tri, {half_edges}, ScalarType::Long);
  const Tensor topology = empty(tri, sizes(tri));
  run_keys(half_edges, EdgeKeys{read<int32_t>(corners), write<int64_t>(keys)});
  const auto [sorted, order] = sort_stable(keys);
  run_links(half_edges, LinkEdges{half_edges, read<int64_t>(sorted), read<int64_t>(order), write<int32_t>(topology)});
  return topology;
}

}  // namespace diffrast
