#include "kernels.h"

#include <cstring>
#include <vector>

#include "../sample.h"

namespace msda {
namespace cpu {
namespace {

// 16-bit floats as plain bits: torch's own types would tie this file to torch.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

inline float as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

inline uint32_t as_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

inline float widen(float v) { return v; }
inline double widen(double v) { return v; }
inline float widen(BF16 v) { return as_float(static_cast<uint32_t>(v.bits) << 16); }
inline float widen(F16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(v.bits & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return as_float(sign | 0x70000000u | rest);  // inf, NaN
  // The exponent is rebased by a multiplication, which is exact and handles
  // subnormals too.
  return as_float(sign | as_bits(as_float(rest) * as_float(0x77800000u)));  // * 2^112
}

inline void narrow(float v, float* to) { *to = v; }
inline void narrow(double v, double* to) { *to = v; }
inline void narrow(float v, BF16* to) {
  const uint32_t bits = as_bits(v);
  if (v != v) {
    to->bits = 0x7fc0u;
    return;
  }
  to->bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to nearest even
}
inline void narrow(float v, F16* to) {
  const uint32_t bits = as_bits(v);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t rest = bits & 0x7fffffffu;
  uint16_t half;
  if (rest > 0x7f800000u) {
    half = 0x7e00u;  // NaN
  } else if (rest >= 0x477ff000u) {
    half = 0x7c00u;  // from 65520 on, the nearest is infinity
  } else if (rest >= 0x38800000u) {
    half = static_cast<uint16_t>((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13);
  } else {
    // Subnormal: adding 0.5 lets the FPU round at the right bit.
    half = static_cast<uint16_t>(as_bits(as_float(rest) + 0.5f) - 0x3f000000u);
  }
  to->bits = static_cast<uint16_t>(sign | half);
}

template <typename T>
struct AccOf {
  using type = float;
};
template <>
struct AccOf<double> {
  using type = double;
};

// Base pointers of one (batch, head) plane. Rows are heads * channels apart.
template <typename T>
struct Plane {
  using A = typename AccOf<T>::type;

  Plane(const Problem& p, int64_t n, int64_t head, const T* zero_row)
      : problem(p),
        stride(p.heads * p.channels),
        offset(n * p.rows * stride + head * p.channels),
        value(static_cast<const T*>(p.value) + offset),
        zeros(zero_row) {}

  // An outside corner reads zeros, so the channel loops need no branches.
  const T* row(int64_t index) const { return index < 0 ? zeros : value + index * stride; }

  const Problem& problem;
  const int64_t stride;
  const int64_t offset;
  const T* const value;
  const T* const zeros;
};

template <typename T>
void forward_item(const Plane<T>& plane, int64_t item, typename AccOf<T>::type* acc, T* out) {
  using A = typename AccOf<T>::type;
  const Problem& p = plane.problem;
  const int64_t D = p.channels;
  int64_t point = item * p.levels * p.points;
  for (int64_t c = 0; c < D; ++c) acc[c] = 0;
  for (int64_t l = 0; l < p.levels; ++l) {
    const Level level = level_at(p.shapes, p.starts, l);
    for (int64_t i = 0; i < p.points; ++i, ++point) {
      const A* loc = static_cast<const A*>(p.loc) + 2 * point;
      const Sample<A> s = locate(loc[0], loc[1], level);
      if (!s.hit) continue;
      A coef[4];
      corner_weights(s, coef);
      const A weight = static_cast<const A*>(p.weight)[point];
      const T *v0 = plane.row(s.row[0]), *v1 = plane.row(s.row[1]);
      const T *v2 = plane.row(s.row[2]), *v3 = plane.row(s.row[3]);
      for (int64_t c = 0; c < D; ++c) {
        acc[c] += weight * blend(coef, widen(v0[c]), widen(v1[c]), widen(v2[c]), widen(v3[c]));
      }
    }
  }
  for (int64_t c = 0; c < D; ++c) narrow(acc[c], out + c);
}

template <typename T>
void forward_range(const Problem& p, T* out, int64_t begin, int64_t end) {
  std::vector<typename AccOf<T>::type> acc(static_cast<size_t>(p.channels));
  const std::vector<T> zeros(static_cast<size_t>(p.channels));
  for (int64_t item = begin; item < end; ++item) {
    const Plane<T> plane(p, item / (p.queries * p.heads), item % p.heads, zeros.data());
    forward_item(plane, item, acc.data(), out + item * p.channels);
  }
}

template <typename T>
void backward_item(const Plane<T>& plane, int64_t item, const Gradients& g) {
  using A = typename AccOf<T>::type;
  const Problem& p = plane.problem;
  const int64_t D = p.channels;
  const T* grad_out = static_cast<const T*>(g.out) + item * D;
  A* grad_value = static_cast<A*>(g.value) + plane.offset;
  int64_t point = item * p.levels * p.points;
  for (int64_t l = 0; l < p.levels; ++l) {
    const Level level = level_at(p.shapes, p.starts, l);
    for (int64_t i = 0; i < p.points; ++i, ++point) {
      const A* loc = static_cast<const A*>(p.loc) + 2 * point;
      const A weight = static_cast<const A*>(p.weight)[point];
      const Sample<A> s = locate(loc[0], loc[1], level);
      PointSums<A> sums = {0, 0, 0};
      if (s.hit) {
        A coef[4];
        corner_weights(s, coef);
        const T *v0 = plane.row(s.row[0]), *v1 = plane.row(s.row[1]);
        const T *v2 = plane.row(s.row[2]), *v3 = plane.row(s.row[3]);
        for (int64_t c = 0; c < D; ++c) {
          add_channel(sums, s, coef, static_cast<A>(widen(grad_out[c])), widen(v0[c]), widen(v1[c]),
                      widen(v2[c]), widen(v3[c]));
        }
        for (int k = 0; k < 4; ++k) {
          if (s.row[k] < 0) continue;
          A* to = grad_value + s.row[k] * plane.stride;
          const A scale = weight * coef[k];
          for (int64_t c = 0; c < D; ++c) to[c] += scale * widen(grad_out[c]);
        }
      }
      static_cast<A*>(g.weight)[point] = sums.weight;
      static_cast<A*>(g.loc)[2 * point] = grad_loc_x(sums, level, weight);
      static_cast<A*>(g.loc)[2 * point + 1] = grad_loc_y(sums, level, weight);
    }
  }
}

template <typename T>
void backward_range(const Problem& p, const Gradients& g, int64_t begin, int64_t end) {
  const std::vector<T> zeros(static_cast<size_t>(p.channels));
  for (int64_t index = begin; index < end; ++index) {
    const int64_t n = index / p.heads, head = index % p.heads;
    const Plane<T> plane(p, n, head, zeros.data());
    for (int64_t q = 0; q < p.queries; ++q) {
      backward_item(plane, (n * p.queries + q) * p.heads + head, g);
    }
  }
}

}  // namespace

void forward(const Problem& p, void* out, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::f32: return forward_range(p, static_cast<float*>(out), begin, end);
    case DType::f64: return forward_range(p, static_cast<double*>(out), begin, end);
    case DType::f16: return forward_range(p, static_cast<F16*>(out), begin, end);
    case DType::bf16: return forward_range(p, static_cast<BF16*>(out), begin, end);
  }
}

void backward(const Problem& p, const Gradients& g, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::f32: return backward_range<float>(p, g, begin, end);
    case DType::f64: return backward_range<double>(p, g, begin, end);
    case DType::f16: return backward_range<F16>(p, g, begin, end);
    case DType::bf16: return backward_range<BF16>(p, g, begin, end);
  }
}

}  // namespace cpu
}  // namespace msda
