// Where the outline of a surface passes between two neighbouring pixels, and what moves it. Torch-free.
//
// Everything is in homogeneous coordinates around one pixel centre, in pixels: a along the pair, b across it, both
// times w. Edges behind the eye then need no case of their own: a point counts where its w is positive.
#pragma once

#include "triangle_id.h"

namespace diffrast {

template <class T>
struct AntialiasProblem {
  int64_t batch, height, width, channels;
  int64_t vertices, triangles;
  int64_t pos_stride;       // elements from one image's positions to the next one's; 0 in range mode
  const T* color;           // (batch, height, width, channels)
  const T* rast;            // (batch, height, width, 4): u, v, z/w, id
  const T* pos;             // (batch, vertices, 4), or (vertices, 4) in range mode: clip space
  const int32_t* tri;       // (triangles, 3)
  const int32_t* topology;  // (triangles, 3): next half-edge around the same edge, see topology.h

  DIFFRAST_HD int64_t pixels() const { return batch * height * width; }
};

// The rasterizer rounds vertices to a fraction of a pixel before it tells which centres they cover, and a slanting
// edge moves further along the pair than its vertices do: so the crossing may lie a little beyond either centre.
template <class T>
constexpr T kCrossingSlack = T(1) / 16;

template <class T>
struct Point {
  T a, b, w;
};

// Its sign tells on which side of the line through p and q, taken in that order, r lies.
template <class T>
DIFFRAST_HD T orientation(const Point<T>& p, const Point<T>& q, const Point<T>& r) {
  return (p.b * q.w - p.w * q.b) * r.a + (p.w * q.a - p.a * q.w) * r.b + (p.a * q.b - p.b * q.a) * r.w;
}

// A pixel and its right (axis 0) or upper (axis 1) neighbour, with an outline between them.
template <class T>
struct Crossing {
  int64_t pixel, neighbour;
  int64_t end[2];   // elements of pos: the vertices of the edge
  Point<T> at[2];   // the same around the centre of the nearer pixel
  T a_scale, b_scale, a_centre, b_centre;  // a = a_scale * (x or y) - a_centre * w, the same for b
  int axis;
  T place;          // along the pair's axis, in pixels from the centre of the nearer pixel
  T blend;          // in [-1/2, 1/2] but for the slack: above 0 the pixel takes that much of its neighbour, below 0
                    // the neighbour takes as much of the pixel. d blend / d place is -1

};

template <class T>
struct OutlineFinder {
  AntialiasProblem<T> p;

  // Whether an outline passes between `pixel` and its right or upper neighbour; fills `c` if so.
  DIFFRAST_HD bool find(int64_t pixel, int axis, Crossing<T>& c) const {
    const int64_t x = pixel % p.width, y = pixel / p.width % p.height;
    if (axis == 0 ? x + 1 >= p.width : y + 1 >= p.height) return false;
    c.pixel = pixel;
    c.neighbour = pixel + (axis == 0 ? 1 : p.width);
    c.axis = axis;
    const T* here = p.rast + 4 * c.pixel;
    const T* there = p.rast + 4 * c.neighbour;
    if (here[3] == there[3]) return false;
    // The nearer surface is the one with an outline here; nothing at all is behind everything.
    const bool neighbour_nearer = here[3] == 0 || (there[3] != 0 && there[2] < here[2]);
    const int32_t triangle = get_triangle_id(neighbour_nearer ? there[3] : here[3]);
    int32_t v[3];
    if (!triangle_vertices(p.tri, p.triangles, p.vertices, triangle, v)) return false;

    const bool moved_x = neighbour_nearer && axis == 0, moved_y = neighbour_nearer && axis == 1;
    const T half_width = T(p.width) / 2, half_height = T(p.height) / 2;
    const T centre_x = T(x + moved_x) + T(0.5) - half_width, centre_y = T(y + moved_y) + T(0.5) - half_height;
    c.a_scale = axis == 0 ? half_width : half_height;
    c.b_scale = axis == 0 ? half_height : half_width;
    c.a_centre = axis == 0 ? centre_x : centre_y;
    c.b_centre = axis == 0 ? centre_y : centre_x;
    const int64_t base = pixel / (p.height * p.width) * p.pos_stride;
    Point<T> corner[3];
    for (int k = 0; k < 3; ++k) corner[k] = around(c, base + 4 * static_cast<int64_t>(v[k]));
    const T area = orientation(corner[0], corner[1], corner[2]);
    const T towards = neighbour_nearer ? T(-1) : T(1);
    for (int k = 0; k < 3; ++k) {
      const int i = (k + 1) % 3, j = (k + 2) % 3;
      if (!leaves(corner[i], corner[j], area, towards, c.place)) continue;
      if (!is_outline(c, base, triangle - 1, k, corner[i], corner[j], area)) return false;
      c.end[0] = base + 4 * static_cast<int64_t>(v[i]);
      c.end[1] = base + 4 * static_cast<int64_t>(v[j]);
      c.at[0] = corner[i];
      c.at[1] = corner[j];
      // Halfway between the centres nothing changes; towards a centre, up to half a pixel changes hands.
      c.blend = neighbour_nearer ? -c.place - T(0.5) : T(0.5) - c.place;
      return true;
    }
    return false;
  }

  // A vertex of pos around the centre that `c` names.
  DIFFRAST_HD Point<T> around(const Crossing<T>& c, int64_t vertex) const {
    const T* at = p.pos + vertex;
    const T along = at[c.axis], across = at[1 - c.axis], w = at[3];
    return {c.a_scale * along - c.a_centre * w, c.b_scale * across - c.b_centre * w, w};
  }

  // Whether one that walks from the centre towards the other pixel leaves the triangle through this edge before the
  // other centre; `place` is where. `area` is the orientation of the triangle that the edge runs around.
  DIFFRAST_HD bool leaves(const Point<T>& p0, const Point<T>& p1, T area, T towards, T& place) const {
    if ((p0.b >= 0) == (p1.b >= 0)) return false;
    const T slope = p0.b * p1.w - p0.w * p1.b;  // of the orientation along a: leaving is going to the other sign
    if (area == 0 || slope == 0 || (slope > 0) == (towards > 0 ? area > 0 : area < 0)) return false;
    // The point of the edge on b = 0 must be in front of the eye.
    if ((slope > 0) != (p0.b > p1.b)) return false;
    place = (p0.b * p1.a - p0.a * p1.b) / slope;
    return place * towards >= -kCrossingSlack<T> && place * towards <= 1 + kCrossingSlack<T>;
  }

  // Whether the surface ends at this edge as seen from the eye: no triangle goes on at its other side.
  DIFFRAST_HD bool is_outline(const Crossing<T>& c, int64_t base, int64_t triangle, int corner, const Point<T>& p0,
                              const Point<T>& p1, T area) const {
    const int64_t start = 3 * triangle + corner;
    int64_t at = p.topology[start];
    // The ring closes; the count is for tables that are none.
    for (int64_t left = 3 * p.triangles; at != start && left > 0; --left) {
      if (at < 0 || at >= 3 * p.triangles) return true;
      const int32_t opposite = p.tri[at];
      if (opposite >= 0 && opposite < p.vertices) {
        const T side = orientation(p0, p1, around(c, base + 4 * static_cast<int64_t>(opposite)));
        if ((side > 0 && area < 0) || (side < 0 && area > 0)) return false;
      }
      at = p.topology[at];
    }
    return true;
  }
};

// What a crossing passes on to the two vertices of its edge: d place / d (x, y, z, w) of each.
template <class T>
DIFFRAST_HD void place_by_vertices(const Crossing<T>& c, T by[2][4]) {
  const Point<T>&p0 = c.at[0], &p1 = c.at[1];
  const T scale = 1 / (p0.b * p1.w - p0.w * p1.b);
  const Point<T> d[2] = {{-p1.b * scale, (p1.a - c.place * p1.w) * scale, c.place * p1.b * scale},
                         {p0.b * scale, (c.place * p0.w - p0.a) * scale, -c.place * p0.b * scale}};
  for (int k = 0; k < 2; ++k) {
    by[k][c.axis] = c.a_scale * d[k].a;
    by[k][1 - c.axis] = c.b_scale * d[k].b;
    by[k][2] = 0;
    by[k][3] = d[k].w - c.a_centre * d[k].a - c.b_centre * d[k].b;
  }
}

}  // namespace diffrast
