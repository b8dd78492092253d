// Vertex attributes at the pixels of a raster, their screen derivatives, and the gradients of both. Torch-free.
//
// With the corners a0, a1, a2 of the pixel's triangle:
//   out = u a0 + v a1 + (1 - u - v) a2
//   d out / dX = du/dX (a0 - a2) + dv/dX (a1 - a2), the same for Y
#pragma once

#include "triangle_id.h"

namespace diffrast {

// Attributes that one item of a grid blends: one 16-byte piece of a pixel, so that neighbours write full sectors.
constexpr int64_t kAttributesPerItem = 4;
// Pixels of a row whose sum one item makes before it adds to the vertices: neighbours mostly share their triangle,
// and on the device one addition then stands for up to so many atomics on the same address.
constexpr int64_t kPixelsPerRun = 8;
// Selected attributes per pass: the selection travels inside the functor, so no list is copied to the device.
constexpr int kSelectedPerPass = 64;

template <class T>
struct InterpolateProblem {
  int64_t batch, height, width;
  int64_t vertices, attributes, triangles;
  int64_t attr_stride;     // elements from one image's attributes to the next one's; 0 where all share them
  const T* attr;           // (batch or 1, vertices, attributes)
  const T* rast;           // (batch, height, width, 4): u, v, z/w, id
  const int32_t* tri;      // (triangles, 3)
  const T* rast_db;        // (batch, height, width, 4): du/dX, du/dY, dv/dX, dv/dY; null without selection
  const int64_t* selected;  // host memory: the attributes whose derivatives are asked for
  int64_t selected_count;

  DIFFRAST_HD int64_t pixels() const { return batch * height * width; }
};

template <class T>
struct InterpolateGradients {
  const T* out;     // (batch, height, width, attributes)
  const T* out_da;  // (batch, height, width, 2 * selected_count)
  T* attr;          // like attr, zeros to add to; null where it is not wanted, or empty
  T* rast;          // like rast
  T* rast_db;       // like rast_db; null without rast_db
};

// A part of the selection, and where it lies in the last axis of out_da.
struct Selection {
  int32_t attribute[kSelectedPerPass];
  int32_t count;
  int64_t first;
};

// The pixel's triangle as rows of attr; false where there is none.
template <class T>
struct Corners {
  int64_t row[3];
  DIFFRAST_HD bool find(const InterpolateProblem<T>& p, int64_t pixel) {
    int32_t v[3];
    if (!triangle_vertices(p.tri, p.triangles, p.vertices, get_triangle_id(p.rast[4 * pixel + 3]), v)) return false;
    const int64_t base = pixel / (p.height * p.width) * p.attr_stride;
    for (int k = 0; k < 3; ++k) row[k] = base + v[k] * p.attributes;
    return true;
  }
};

// out, one item per pixel and piece of its attributes.
template <class T>
struct BlendAttributes {
  InterpolateProblem<T> p;
  int64_t pieces;
  T* out;
  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t pixel = item / pieces, begin = item % pieces * kAttributesPerItem;
    const int64_t end = begin + kAttributesPerItem < p.attributes ? begin + kAttributesPerItem : p.attributes;
    T* to = out + pixel * p.attributes;
    Corners<T> at;
    if (!at.find(p, pixel)) {
      for (int64_t c = begin; c < end; ++c) to[c] = 0;
      return;
    }
    const T u = p.rast[4 * pixel], v = p.rast[4 * pixel + 1], w = 1 - u - v;
    for (int64_t c = begin; c < end; ++c) {
      to[c] = u * p.attr[at.row[0] + c] + v * p.attr[at.row[1] + c] + w * p.attr[at.row[2] + c];
    }
  }
};

// out_da, one item per pixel.
template <class T>
struct BlendDerivatives {
  InterpolateProblem<T> p;
  Selection selection;
  T* out_da;
  DIFFRAST_HD void operator()(int64_t pixel) const {
    T* to = out_da + 2 * (pixel * p.selected_count + selection.first);
    Corners<T> at;
    const bool drawn = at.find(p, pixel);
    const T* db = p.rast_db + 4 * pixel;
    for (int i = 0; i < selection.count; ++i) {
      T along_x = 0, along_y = 0;
      if (drawn) {
        const int64_t c = selection.attribute[i];
        const T by_u = p.attr[at.row[0] + c] - p.attr[at.row[2] + c];
        const T by_v = p.attr[at.row[1] + c] - p.attr[at.row[2] + c];
        along_x = db[0] * by_u + db[2] * by_v;
        along_y = db[1] * by_u + db[3] * by_v;
      }
      to[2 * i] = along_x;
      to[2 * i + 1] = along_y;
    }
  }
};

// The gradient of rast, one item per pixel.
template <class T>
struct GradRast {
  InterpolateProblem<T> p;
  InterpolateGradients<T> g;
  DIFFRAST_HD void operator()(int64_t pixel) const {
    T by_u = 0, by_v = 0;
    Corners<T> at;
    if (at.find(p, pixel)) {
      const T* from = g.out + pixel * p.attributes;
      for (int64_t c = 0; c < p.attributes; ++c) {
        const T last = p.attr[at.row[2] + c];
        by_u += from[c] * (p.attr[at.row[0] + c] - last);
        by_v += from[c] * (p.attr[at.row[1] + c] - last);
      }
    }
    T* to = g.rast + 4 * pixel;
    to[0] = by_u;
    to[1] = by_v;
    to[2] = to[3] = 0;
  }
};

// The gradient of rast_db, one item per pixel; later passes add to what the first one wrote.
template <class T>
struct GradDerivatives {
  InterpolateProblem<T> p;
  InterpolateGradients<T> g;
  Selection selection;
  DIFFRAST_HD void operator()(int64_t pixel) const {
    T sum[4] = {0, 0, 0, 0};
    Corners<T> at;
    if (at.find(p, pixel)) {
      const T* from = g.out_da + 2 * (pixel * p.selected_count + selection.first);
      for (int i = 0; i < selection.count; ++i) {
        const int64_t c = selection.attribute[i];
        const T by_u = p.attr[at.row[0] + c] - p.attr[at.row[2] + c];
        const T by_v = p.attr[at.row[1] + c] - p.attr[at.row[2] + c];
        sum[0] += from[2 * i] * by_u;
        sum[1] += from[2 * i + 1] * by_u;
        sum[2] += from[2 * i] * by_v;
        sum[3] += from[2 * i + 1] * by_v;
      }
    }
    T* to = g.rast_db + 4 * pixel;
    for (int k = 0; k < 4; ++k) to[k] = selection.first ? to[k] + sum[k] : sum[k];
  }
};

// The loops over sums have a fixed end, so that the device keeps them in registers.
//
// Walks the pixels of a run and keeps sums for `count` attributes of the triangle it is on; `share(pixel, sums)`
// adds a pixel's part, `column(i)` is the attribute behind the i-th sum.
template <class T, class Share, class Column>
DIFFRAST_HD void add_run(const InterpolateProblem<T>& p, int64_t run, int64_t count, T* grad_attr, const Share& share,
                         const Column& column) {
  const int64_t runs = (p.width + kPixelsPerRun - 1) / kPixelsPerRun;
  const int64_t row = run / runs, begin = run % runs * kPixelsPerRun;
  const int64_t end = begin + kPixelsPerRun < p.width ? begin + kPixelsPerRun : p.width;
  T sums[3][kAttributesPerItem] = {};
  Corners<T> on = {};
  T open = 0;  // the id whose sums these are
  for (int64_t x = begin; x <= end; ++x) {
    const int64_t pixel = row * p.width + x;
    Corners<T> at;
    const T id = x < end ? p.rast[4 * pixel + 3] : T(0);
    if (open != 0 && id != open) {
      for (int k = 0; k < 3; ++k) {
        for (int64_t i = 0; i < kAttributesPerItem; ++i) {
          if (i < count) atomic_add(grad_attr + on.row[k] + column(i), sums[k][i]);
        }
      }
      open = 0;
    }
    if (x == end || !at.find(p, pixel)) continue;
    if (open == 0) {
      on = at;
      open = id;
      for (int k = 0; k < 3; ++k) {
        for (int64_t i = 0; i < kAttributesPerItem; ++i) sums[k][i] = 0;
      }
    }
    share(pixel, sums);
  }
}

// What reaches attr through out: adds, one item per run of pixels and piece of the attributes.
template <class T>
struct GradAttributes {
  InterpolateProblem<T> p;
  InterpolateGradients<T> g;
  int64_t pieces;
  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t first = item % pieces * kAttributesPerItem, left = p.attributes - first;
    const int64_t count = left < kAttributesPerItem ? left : kAttributesPerItem;
    add_run(
        p, item / pieces, count, g.attr,
        [&](int64_t pixel, T sums[3][kAttributesPerItem]) {
          const T u = p.rast[4 * pixel], v = p.rast[4 * pixel + 1], w = 1 - u - v;
          const T* from = g.out + pixel * p.attributes + first;
          for (int64_t i = 0; i < kAttributesPerItem; ++i) {
            if (i >= count) break;
            sums[0][i] += u * from[i];
            sums[1][i] += v * from[i];
            sums[2][i] += w * from[i];
          }
        },
        [&](int64_t i) { return first + i; });
  }
};

// What reaches attr through out_da: the same over pieces of the selection.
template <class T>
struct GradSelected {
  InterpolateProblem<T> p;
  InterpolateGradients<T> g;
  Selection selection;
  int64_t pieces;
  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t first = item % pieces * kAttributesPerItem, left = selection.count - first;
    const int64_t count = left < kAttributesPerItem ? left : kAttributesPerItem;
    add_run(
        p, item / pieces, count, g.attr,
        [&](int64_t pixel, T sums[3][kAttributesPerItem]) {
          const T* db = p.rast_db + 4 * pixel;
          const T* from = g.out_da + 2 * (pixel * p.selected_count + selection.first + first);
          for (int64_t i = 0; i < kAttributesPerItem; ++i) {
            if (i >= count) break;
            const T by_u = db[0] * from[2 * i] + db[1] * from[2 * i + 1];
            const T by_v = db[2] * from[2 * i] + db[3] * from[2 * i + 1];
            sums[0][i] += by_u;
            sums[1][i] += by_v;
            sums[2][i] -= by_u + by_v;
          }
        },
        [&](int64_t i) { return static_cast<int64_t>(selection.attribute[first + i]); });
  }
};

// Runs pass(selection) for each part of the selected attributes.
template <class T, class Pass>
void each_selection(const InterpolateProblem<T>& p, const Pass& pass) {
  for (int64_t first = 0; first < p.selected_count; first += kSelectedPerPass) {
    Selection selection;
    selection.first = first;
    const int64_t left = p.selected_count - first;
    selection.count = static_cast<int32_t>(left < kSelectedPerPass ? left : kSelectedPerPass);
    for (int i = 0; i < selection.count; ++i) {
      selection.attribute[i] = static_cast<int32_t>(p.selected[first + i]);
    }
    pass(selection);
  }
}

constexpr int64_t pieces_of(int64_t attributes) { return (attributes + kAttributesPerItem - 1) / kAttributesPerItem; }

// Writes out (batch, height, width, attributes) and out_da (batch, height, width, 2 * selected_count).
template <class Backend, class T>
void interpolate(Backend& backend, const InterpolateProblem<T>& p, T* out, T* out_da) {
  const int64_t pieces = pieces_of(p.attributes);
  backend.each(p.pixels() * pieces, BlendAttributes<T>{p, pieces, out});
  each_selection(p, [&](const Selection& s) { backend.each(p.pixels(), BlendDerivatives<T>{p, s, out_da}); });
}

template <class Backend, class T>
void interpolate_backward(Backend& backend, const InterpolateProblem<T>& p, const InterpolateGradients<T>& g) {
  backend.each(p.pixels(), GradRast<T>{p, g});
  each_selection(p, [&](const Selection& s) { backend.each(p.pixels(), GradDerivatives<T>{p, g, s}); });
  if (!g.attr) return;
  const int64_t runs = p.batch * p.height * ((p.width + kPixelsPerRun - 1) / kPixelsPerRun);
  const int64_t pieces = pieces_of(p.attributes);
  backend.each_in_order(runs * pieces, GradAttributes<T>{p, g, pieces});
  each_selection(p, [&](const Selection& s) {
    const int64_t parts = pieces_of(s.count);
    backend.each_in_order(runs * parts, GradSelected<T>{p, g, s, parts});
  });
}

}  // namespace diffrast
