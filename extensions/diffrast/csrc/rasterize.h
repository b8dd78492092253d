// Which triangle each pixel sees, where on it, and the gradient of that place. Torch-free.
//
// Phases: a triangle of an image is a slot. Each slot counts the tiles that its box touches (a small one is drawn at
// once and counts none); the counts are summed; each (slot, tile) pair, found again by its number in the sums, draws
// the pixels of its tile; each pixel then shades what it sees. The nearest triangle wins by an atomic minimum of
// (depth, triangle): the order in which pairs are drawn leaves no trace.
//
// The number of pairs is known on the device alone, no memory is kept per pair, and large and small triangles are
// shared out evenly.
#pragma once

#include "barycentrics.h"
#include "triangle_id.h"

namespace diffrast {

constexpr int32_t kTile = 8;           // pixels on each side
constexpr int64_t kDrawnAtOnce = 16;   // pixels of the box of a triangle that needs no tiles
constexpr uint64_t kNothing = ~uint64_t{0};

template <class T>
struct RasterizeProblem {
  int64_t images, vertices, triangles;
  int32_t height, width;
  int64_t slots;               // at least the triangles of all images
  int64_t pos_stride;          // elements from one image's vertices to the next one's; 0 where all share them
  const T* pos;                // (images or 1, vertices, 4): x, y, z, w
  const int32_t* tri;          // (triangles, 3)
  const int32_t* ranges;       // (images, 2): first triangle and count; null: each image has them all
  const T* peel;               // like rast: what is at or in front of it is not drawn; null: all is drawn
  int64_t* first_slot;         // (images + 1), scratch; null without ranges
  int64_t* first_pair;         // (slots + 1), scratch
  uint64_t* nearest;           // (images, height, width), scratch: depth and triangle
  T* rast;                     // (images, height, width, 4): u, v, z/w, id
  T* rast_db;                  // (images, height, width, 4): du/dX, du/dY, dv/dX, dv/dY; null if not wanted

  DIFFRAST_HD int64_t pixels() const { return images * height * width; }
  DIFFRAST_HD int64_t pairs() const { return first_pair[slots]; }
};

template <class T>
struct RasterizeGradients {
  int64_t images, vertices, triangles;
  int32_t height, width;
  int64_t pos_stride;
  const T* pos;
  const int32_t* tri;
  const T* rast;
  const T* of_rast;     // like rast
  const T* of_rast_db;  // (images, height, width, 4), or null
  T* of_pos;            // like pos, zeros to add to

  DIFFRAST_HD int64_t pixels() const { return images * height * width; }
};

// The vertices of triangle `number` (1-based) in an image; false where the mesh has no such triangle or vertex.
template <class Problem, class T>
DIFFRAST_HD bool load_triangle(const Problem& p, int64_t image, int32_t number, Vertex<T> (&v)[3]) {
  int32_t index[3];
  if (!triangle_vertices(p.tri, p.triangles, p.vertices, number, index)) return false;
  for (int k = 0; k < 3; ++k) {
    const T* at = p.pos + image * p.pos_stride + 4 * static_cast<int64_t>(index[k]);
    v[k] = {at[0], at[1], at[2], at[3]};
  }
  return true;
}

// The last place of sums[0..count) that is at most `value`; sums ascend from 0.
DIFFRAST_HD int64_t place_in_sums(const int64_t* sums, int64_t count, int64_t value) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (sums[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// An image's part of tri, whatever stands in ranges: never a triangle that is not there.
DIFFRAST_HD int64_t range_start(const int32_t* ranges, int64_t image, int64_t triangles) {
  const int64_t start = ranges[2 * image];
  return start < 0 ? 0 : (start < triangles ? start : triangles);
}
DIFFRAST_HD int64_t range_count(const int32_t* ranges, int64_t image, int64_t triangles) {
  const int64_t count = ranges[2 * image + 1], most = triangles - range_start(ranges, image, triangles);
  return count < 0 ? 0 : (count < most ? count : most);
}

// A triangle in an image.
template <class T>
struct Slot {
  int64_t image;
  int32_t number;  // of the triangle, 1-based
  Vertex<T> v[3];

  // False: nothing is there to draw.
  DIFFRAST_HD bool find(const RasterizeProblem<T>& p, int64_t slot) {
    if (p.ranges == nullptr) {
      image = slot / p.triangles;
      number = static_cast<int32_t>(slot % p.triangles) + 1;
    } else {
      if (slot >= p.first_slot[p.images]) return false;
      image = place_in_sums(p.first_slot, p.images, slot);
      number = static_cast<int32_t>(range_start(p.ranges, image, p.triangles) + slot - p.first_slot[image]) + 1;
    }
    return load_triangle(p, image, number, v);
  }
};

// Depths as numbers that ascend with them.
DIFFRAST_HD uint32_t ascending(float depth) {
  uint32_t bits;
  depth += 0.0f;  // -0 and 0 are one depth
  memcpy(&bits, &depth, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Offers a pixel its triangle.
template <class T>
DIFFRAST_HD void draw(const RasterizeProblem<T>& p, const Slot<T>& slot, int32_t px, int32_t py) {
  const SeenTriangle<T> seen(slot.v, ray_through<T>(px, py, p.height, p.width));
  T u, v;
  seen.barycentrics(&u, &v);
  const T depth = seen.depth(u, v);
  const int64_t pixel = (slot.image * p.height + py) * p.width + px;
  if (p.peel != nullptr) {
    const T* front = p.peel + 4 * pixel;
    // Behind an empty layer there is none.
    if (get_triangle_id(front[3]) == 0 || !(depth > front[2])) return;
  }
  // Double depths are compared in float, too: within its precision the first triangle wins.
  const uint64_t key = static_cast<uint64_t>(ascending(static_cast<float>(depth))) << 32;
  atomic_min(p.nearest + pixel, key | static_cast<uint32_t>(slot.number));
}

template <class T>
DIFFRAST_HD void draw_covered(const RasterizeProblem<T>& p, const Slot<T>& slot, const Outline& outline,
                              const PixelBox& box) {
  for (int32_t py = box.first_y; py <= box.last_y; ++py) {
    for (int32_t px = box.first_x; px <= box.last_x; ++px) {
      const int32_t x = centre_of_pixel(px, p.width), y = centre_of_pixel(py, p.height);
      if (covers(outline.x, outline.y, outline.count, x, y)) draw(p, slot, px, py);
    }
  }
}

// Per image, and one more for the end of the sums.
template <class T>
struct CountSlots {
  RasterizeProblem<T> p;
  DIFFRAST_HD void operator()(int64_t image) const {
    p.first_slot[image] = image < p.images ? range_count(p.ranges, image, p.triangles) : 0;
  }
};

// Per slot, and one more for the end of the sums.
template <class T>
struct CountTiles {
  RasterizeProblem<T> p;
  DIFFRAST_HD void operator()(int64_t index) const {
    p.first_pair[index] = 0;
    Slot<T> slot;
    if (index == p.slots || !slot.find(p, index)) return;
    const Outline outline = outline_of(slot.v, p.height, p.width);
    const PixelBox box = box_of(outline, p.height, p.width);
    const int64_t area = box.area();
    if (area == 0 || !may_cover(outline, box, p.height, p.width)) return;
    if (area <= kDrawnAtOnce) {
      draw_covered(p, slot, outline, box);
    } else {
      p.first_pair[index] = static_cast<int64_t>(box.last_x / kTile - box.first_x / kTile + 1) *
                            (box.last_y / kTile - box.first_y / kTile + 1);
    }
  }
};

// The part of a triangle in one tile.
template <class T>
struct Pair {
  Slot<T> slot;
  Outline outline;
  PixelBox box;

  // False: the tile has no pixel of the triangle.
  DIFFRAST_HD bool find(const RasterizeProblem<T>& p, int64_t pair) {
    const int64_t index = place_in_sums(p.first_pair, p.slots, pair);
    if (!slot.find(p, index)) return false;
    outline = outline_of(slot.v, p.height, p.width);
    const PixelBox all = box_of(outline, p.height, p.width);
    const int64_t tile = pair - p.first_pair[index];
    const int32_t across = all.last_x / kTile - all.first_x / kTile + 1;
    const int32_t x = (all.first_x / kTile + static_cast<int32_t>(tile % across)) * kTile;
    const int32_t y = (all.first_y / kTile + static_cast<int32_t>(tile / across)) * kTile;
    box.first_x = x > all.first_x ? x : all.first_x;
    box.first_y = y > all.first_y ? y : all.first_y;
    box.last_x = x + kTile - 1 < all.last_x ? x + kTile - 1 : all.last_x;
    box.last_y = y + kTile - 1 < all.last_y ? y + kTile - 1 : all.last_y;
    return may_cover(outline, box, p.height, p.width);
  }
};

template <class T>
struct DrawPair {
  RasterizeProblem<T> p;
  DIFFRAST_HD void operator()(int64_t index) const {
    Pair<T> pair;
    if (pair.find(p, index)) draw_covered(p, pair.slot, pair.outline, pair.box);
  }
};

// Per pixel.
template <class T>
struct ShadePixel {
  RasterizeProblem<T> p;
  DIFFRAST_HD void operator()(int64_t pixel) const {
    T out[4] = {0, 0, 0, 0}, derivatives[4] = {0, 0, 0, 0};
    const uint64_t nearest = p.nearest[pixel];
    const int64_t row = pixel / p.width;
    const int32_t number = static_cast<int32_t>(nearest & 0xffffffffu);
    Vertex<T> v[3];
    if (nearest != kNothing && load_triangle(p, row / p.height, number, v)) {
      const SeenTriangle<T> seen(v, ray_through<T>(static_cast<int32_t>(pixel % p.width),
                                                   static_cast<int32_t>(row % p.height), p.height, p.width));
      seen.barycentrics(&out[0], &out[1]);
      out[2] = seen.depth(out[0], out[1]);
      put_triangle_id(number, &out[3]);
      if (p.rast_db != nullptr) seen.derivatives(derivatives);
    }
    for (int k = 0; k < 4; ++k) p.rast[4 * pixel + k] = out[k];
    if (p.rast_db != nullptr) {
      for (int k = 0; k < 4; ++k) p.rast_db[4 * pixel + k] = derivatives[k];
    }
  }
};

// What one pixel adds to its triangle's vertices: x, y and w of each.
template <class T>
struct PixelShare {
  int64_t image;
  int32_t number;
  T of[3][3];

  // False: nothing.
  DIFFRAST_HD bool find(const RasterizeGradients<T>& p, int64_t pixel) {
    number = get_triangle_id(p.rast[4 * pixel + 3]);
    if (number == 0) return false;
    const int64_t row = pixel / p.width;
    image = row / p.height;
    Vertex<T> v[3];
    if (!load_triangle(p, image, number, v)) return false;
    const SeenTriangle<T> seen(v, ray_through<T>(static_cast<int32_t>(pixel % p.width),
                                                 static_cast<int32_t>(row % p.height), p.height, p.width));
    if (seen.inverse == 0) return false;
    PixelGradients<T> g = {p.of_rast[4 * pixel], p.of_rast[4 * pixel + 1], 0, 0, 0, 0};
    if (p.of_rast_db != nullptr) {
      const T* db = p.of_rast_db + 4 * pixel;
      g.u_x = db[0];
      g.u_y = db[1];
      g.v_x = db[2];
      g.v_y = db[3];
    }
    seen.backward(g, of);
    return true;
  }

  DIFFRAST_HD void add(const RasterizeGradients<T>& p) const {
    for (int k = 0; k < 3; ++k) {
      const int64_t index = p.tri[3 * static_cast<int64_t>(number - 1) + k];
      T* to = p.of_pos + image * p.pos_stride + 4 * index;
      atomic_add(to, of[k][0]);
      atomic_add(to + 1, of[k][1]);
      atomic_add(to + 3, of[k][2]);
    }
  }
};

template <class T>
struct AddPixelShare {
  RasterizeGradients<T> p;
  DIFFRAST_HD void operator()(int64_t pixel) const {
    PixelShare<T> share;
    if (share.find(p, pixel)) share.add(p);
  }
};

template <class Backend, class T>
void rasterize(Backend& backend, const RasterizeProblem<T>& p) {
  backend.clear(p.nearest, 0xff, sizeof(uint64_t) * p.pixels());
  if (p.ranges != nullptr) {
    backend.each(p.images + 1, CountSlots<T>{p});
    backend.running_sum(p.first_slot, p.images + 1);
  }
  if (p.slots > 0 && p.pixels() > 0) {
    backend.each(p.slots + 1, CountTiles<T>{p});
    backend.running_sum(p.first_pair, p.slots + 1);
    backend.each_pair(DrawPair<T>{p});
  }
  backend.each(p.pixels(), ShadePixel<T>{p});
}

template <class Backend, class T>
void rasterize_backward(Backend& backend, const RasterizeGradients<T>& p) {
  backend.each_in_order(p.pixels(), AddPixelShare<T>{p});
}

}  // namespace diffrast
