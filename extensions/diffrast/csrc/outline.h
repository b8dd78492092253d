// What a triangle covers: its outline on the pixel grid, in whole subpixels. Torch-free.
//
// Vertices are clipped in homogeneous coordinates, projected and rounded to 1/256 pixel; from there on all is exact
// integer arithmetic, so no pixel of a mesh is lost or drawn twice at the edges its triangles share.
#pragma once

#include <cmath>

#include "backend.h"

namespace diffrast {

constexpr int64_t kMaxResolution = 1 << 16;
constexpr int32_t kSubpixels = 256;  // per pixel and axis
// How far from the image's centre a corner may lie, in pixels. Farther ones are clipped; the largest difference of
// two coordinates is then 2^29 subpixels, and edge functions stay below 2^60.
constexpr int32_t kGuardBand = 1 << 20;
// A triangle and six planes make nine corners; three more where rounding bends a clipped edge.
constexpr int kMaxCorners = 12;

// Clip space: visible where |x|, |y| and |z| are at most w.
template <class T>
struct Vertex {
  T x, y, z, w;
};

// A closed polygon. Subpixels from the image's centre, y up; fewer than three corners: nothing to draw.
struct Outline {
  int count;
  int32_t x[kMaxCorners], y[kMaxCorners];
};

// Pixels first to last of both axes, within the image; empty where last < first.
struct PixelBox {
  int32_t first_x, first_y, last_x, last_y;
  DIFFRAST_HD int64_t area() const {
    if (last_x < first_x || last_y < first_y) return 0;
    return static_cast<int64_t>(last_x - first_x + 1) * (last_y - first_y + 1);
  }
};

// Where a pixel's centre lies among `size` of them, in subpixels from the image's centre.
DIFFRAST_HD int32_t centre_of_pixel(int32_t pixel, int32_t size) { return (2 * pixel + 1 - size) * (kSubpixels / 2); }

// The first pixel whose centre is at `at` or after it; may lie outside the image.
DIFFRAST_HD int32_t first_pixel_from(int32_t at, int32_t size) {
  return (at - centre_of_pixel(0, size) + kSubpixels - 1) >> 8;  // floor: coordinates may be negative
}

namespace clipping {

constexpr int kPlanes = 6;

// Signed distance of a vertex from a plane, positive inside. In double whatever T is: exact enough that a vertex
// clipped by one plane does not fall out of another.
template <class T>
DIFFRAST_HD double distance(const Vertex<T>& v, int plane, double guard) {
  const double w = v.w;
  switch (plane) {
    case 0: return w + v.z;
    case 1: return w - v.z;
    case 2: return guard * w + v.x;
    case 3: return guard * w - v.x;
    case 4: return guard * w + v.y;
    default: return guard * w - v.y;
  }
}

// From the inside vertex to the outside one, whichever comes first in the triangle: the neighbour across the edge
// finds the same corner to the last bit.
template <class T>
DIFFRAST_HD Vertex<T> cut(const Vertex<T>& inside, double d_inside, const Vertex<T>& outside, double d_outside) {
  const double t = d_inside / (d_inside - d_outside);
  return {static_cast<T>(inside.x + t * (static_cast<double>(outside.x) - inside.x)),
          static_cast<T>(inside.y + t * (static_cast<double>(outside.y) - inside.y)),
          static_cast<T>(inside.z + t * (static_cast<double>(outside.z) - inside.z)),
          static_cast<T>(inside.w + t * (static_cast<double>(outside.w) - inside.w))};
}

// The part of the polygon inside one plane (Sutherland and Hodgman); the new count of corners.
template <class T>
DIFFRAST_HD int clip(const Vertex<T>* from, int count, int plane, double guard, Vertex<T>* to) {
  int kept = 0;
  if (count == 0) return 0;
  Vertex<T> before = from[count - 1];
  double d_before = distance(before, plane, guard);
  for (int i = 0; i < count; ++i) {
    const Vertex<T> here = from[i];
    const double d_here = distance(here, plane, guard);
    if ((d_before >= 0) != (d_here >= 0)) {
      if (kept == kMaxCorners) return 0;
      to[kept++] = d_before >= 0 ? cut(before, d_before, here, d_here) : cut(here, d_here, before, d_before);
    }
    if (d_here >= 0) {
      if (kept == kMaxCorners) return 0;
      to[kept++] = here;
    }
    before = here;
    d_before = d_here;
  }
  return kept;
}

}  // namespace clipping

// The corner of a vertex; false where there is none (w is 0, or the numbers overflowed).
template <class T>
DIFFRAST_HD bool corner_of(const Vertex<T>& v, int32_t height, int32_t width, int32_t* x, int32_t* y) {
  const T at_x = std::rint(v.x / v.w * static_cast<T>(width * (kSubpixels / 2)));
  const T at_y = std::rint(v.y / v.w * static_cast<T>(height * (kSubpixels / 2)));
  // Written so that NaN fails; a trace more than the guard band, for what rounding adds.
  const T most = static_cast<T>(kGuardBand) * kSubpixels * static_cast<T>(1.001);
  const bool fits = v.w > 0 && at_x <= most && at_x >= -most && at_y <= most && at_y >= -most;
  *x = fits ? static_cast<int32_t>(at_x) : 0;
  *y = fits ? static_cast<int32_t>(at_y) : 0;
  return fits;
}

// Half the width of the guard band, where the image's half is 1.
DIFFRAST_HD double guard_band(int32_t height, int32_t width) {
  return 2.0 * kGuardBand / (width > height ? width : height);
}

// The outline of a triangle of which some lies beyond the guard band, the near or the far plane.
template <class T>
DIFFRAST_HD_SELDOM void clip_outline(const Vertex<T> (&v)[3], int32_t height, int32_t width, Outline* outline) {
  Vertex<T> a[kMaxCorners], b[kMaxCorners];
  for (int k = 0; k < 3; ++k) a[k] = v[k];
  const double guard = guard_band(height, width);
  int count = 3;
  for (int plane = 0; plane < clipping::kPlanes; plane += 2) {
    count = clipping::clip(a, count, plane, guard, b);
    count = clipping::clip(b, count, plane + 1, guard, a);
  }
  bool whole = true;
  for (int k = 0; k < count; ++k) whole = corner_of(a[k], height, width, &outline->x[k], &outline->y[k]) && whole;
  outline->count = whole ? count : 0;
}

// The outline of a triangle in an image; no corners where it cannot be seen or a position is not finite.
template <class T>
DIFFRAST_HD Outline outline_of(const Vertex<T> (&v)[3], int32_t height, int32_t width) {
  Outline outline;
  outline.count = 0;
  const double guard = guard_band(height, width);
  bool clipped = false;
  int out_of_all = (1 << clipping::kPlanes) - 1;
  for (int k = 0; k < 3; ++k) {
    const T zero = (v[k].x - v[k].x) + (v[k].y - v[k].y) + (v[k].z - v[k].z) + (v[k].w - v[k].w);
    if (!(zero == 0)) return outline;  // infinity or NaN
    int out_of = 0;
    for (int plane = 0; plane < clipping::kPlanes; ++plane) {
      if (clipping::distance(v[k], plane, 1.0) < 0) out_of |= 1 << plane;
      clipped = clipped || clipping::distance(v[k], plane, guard) < 0;
    }
    out_of_all &= out_of;
  }
  if (out_of_all) return outline;  // all of it beyond one side of the view
  if (clipped) {
    clip_outline(v, height, width, &outline);
    return outline;
  }
  bool whole = true;
  for (int k = 0; k < 3; ++k) whole = corner_of(v[k], height, width, &outline.x[k], &outline.y[k]) && whole;
  if (whole) outline.count = 3;
  return outline;
}

// The pixels an outline can cover.
DIFFRAST_HD PixelBox box_of(const Outline& outline, int32_t height, int32_t width) {
  if (outline.count < 3) return {0, 0, -1, -1};
  int32_t low_x = outline.x[0], high_x = outline.x[0], low_y = outline.y[0], high_y = outline.y[0];
  for (int k = 1; k < outline.count; ++k) {
    const int32_t x = outline.x[k], y = outline.y[k];
    low_x = x < low_x ? x : low_x;
    high_x = x > high_x ? x : high_x;
    low_y = y < low_y ? y : low_y;
    high_y = y > high_y ? y : high_y;
  }
  // A centre on the right or the upper rim belongs to the neighbour (see covers).
  PixelBox box = {first_pixel_from(low_x, width), first_pixel_from(low_y, height),
                  first_pixel_from(high_x, width) - 1, first_pixel_from(high_y, height) - 1};
  box.first_x = box.first_x > 0 ? box.first_x : 0;
  box.first_y = box.first_y > 0 ? box.first_y : 0;
  box.last_x = box.last_x < width ? box.last_x : width - 1;
  box.last_y = box.last_y < height ? box.last_y : height - 1;
  return box;
}

// Positive where (x, y) lies left of the line from (ax, ay) to (bx, by), 0 on it. Exact; its sign turns with the line.
DIFFRAST_HD int64_t side_of(int32_t ax, int32_t ay, int32_t bx, int32_t by, int32_t x, int32_t y) {
  return static_cast<int64_t>(bx - ax) * (y - ay) - static_cast<int64_t>(by - ay) * (x - ax);
}

// Whether an outline's corners enclose the point: whether their polygon winds around it. A ray goes from the point to
// the right; an edge counts if it crosses the ray strictly to the right of the point, with its lower end and without
// its upper one.
//
// Each edge's share depends on the edge alone and changes its sign with its direction. So the winding numbers of
// neighbours add up to that of their union, edge by edge: a point on a shared edge or at a shared vertex is in
// exactly one of them, however they are clipped and whichever way they turn. A point on a rim belongs to the left
// and to the lower rim.
DIFFRAST_HD bool covers(const int32_t* corner_x, const int32_t* corner_y, int count, int32_t x, int32_t y) {
  int winding = 0;
  int32_t ax = corner_x[count - 1], ay = corner_y[count - 1];
  for (int k = 0; k < count; ++k) {
    const int32_t bx = corner_x[k], by = corner_y[k];
    if ((ay <= y) != (by <= y)) {
      const int64_t side = side_of(ax, ay, bx, by, x, y);
      if (by > ay) {
        winding += side > 0;
      } else {
        winding -= side < 0;
      }
    }
    ax = bx;
    ay = by;
  }
  return winding != 0;
}

// Whether a triangle's outline may cover a centre of these pixels; never wrongly false. Spares the empty corners of
// the box around a long thin triangle.
DIFFRAST_HD bool may_cover(const Outline& outline, const PixelBox& pixels, int32_t height, int32_t width) {
  if (outline.count != 3) return outline.count > 3;
  const int64_t area = side_of(outline.x[0], outline.y[0], outline.x[1], outline.y[1], outline.x[2], outline.y[2]);
  if (area == 0) return false;
  const int32_t low_x = centre_of_pixel(pixels.first_x, width), high_x = centre_of_pixel(pixels.last_x, width);
  const int32_t low_y = centre_of_pixel(pixels.first_y, height), high_y = centre_of_pixel(pixels.last_y, height);
  for (int k = 0; k < 3; ++k) {
    const int from = area > 0 ? k : (k + 1) % 3, to = area > 0 ? (k + 1) % 3 : k;
    const int32_t ax = outline.x[from], ay = outline.y[from], bx = outline.x[to], by = outline.y[to];
    // The centre that lies farthest to the left of the edge.
    if (side_of(ax, ay, bx, by, by > ay ? low_x : high_x, bx > ax ? high_y : low_y) < 0) return false;
  }
  return true;
}

}  // namespace diffrast
