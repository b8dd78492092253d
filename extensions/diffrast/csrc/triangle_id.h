// How a raster names its triangles, and what stands behind a name. Torch-free.
//
// The fourth channel of a raster is the triangle's number plus one as a floating value, 0 where nothing was drawn.
// f32 counts exactly up to 2^24. From there on the numbers go through the following floats one after the other, so
// every id up to 2^30 has a float of its own, and ids still compare like the numbers they stand for.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend.h"

namespace diffrast {

constexpr int32_t kExactInFloat = 1 << 24;
constexpr int32_t kBitsOfExact = 0x4b800000;  // 2^24 as f32

// `number`: 1-based, 0 for nothing.
DIFFRAST_HD void put_triangle_id(int32_t number, float* to) {
  if (number <= kExactInFloat) {
    *to = static_cast<float>(number);
    return;
  }
  const int32_t bits = kBitsOfExact + (number - kExactInFloat);
  memcpy(to, &bits, sizeof bits);
}
DIFFRAST_HD void put_triangle_id(int32_t number, double* to) { *to = number; }

// 0 for nothing, and for what is not an id (negative, NaN).
DIFFRAST_HD int32_t get_triangle_id(float id) {
  if (!(id > 0)) return 0;
  if (id <= static_cast<float>(kExactInFloat)) return static_cast<int32_t>(id);
  int32_t bits;
  memcpy(&bits, &id, sizeof bits);
  return bits - kBitsOfExact + kExactInFloat;
}
DIFFRAST_HD int32_t get_triangle_id(double id) {
  return id > 0 && id <= 2147483647.0 ? static_cast<int32_t>(id) : 0;
}

// The vertices of triangle `number` (1-based) of a mesh; false for nothing, and for a triangle or a vertex that the
// mesh does not have: a raster is an input like any other, and must not make a kernel read elsewhere.
DIFFRAST_HD bool triangle_vertices(const int32_t* tri, int64_t triangles, int64_t vertices, int32_t number,
                                   int32_t v[3]) {
  if (number <= 0 || number > triangles) return false;
  bool inside = true;
  for (int k = 0; k < 3; ++k) {
    v[k] = tri[3 * static_cast<int64_t>(number - 1) + k];
    inside = inside && v[k] >= 0 && v[k] < vertices;
  }
  return inside;
}

}  // namespace diffrast
