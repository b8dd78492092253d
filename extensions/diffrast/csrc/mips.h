// Mip levels: each is the 2x2 box average of the one above it. Torch-free.
//
// A side is halved until it is 1 and then stays; an odd side larger than 1 cannot be halved. The levels below the base
// lie packed behind each other, the finest first: (batch, texels of all levels, channels).
#pragma once

#include <cstdint>

#include "backend.h"

namespace diffrast {
namespace texturing {

constexpr int kMaxLevels = 24;        // beyond the base
constexpr int64_t kMaxSide = 1 << 24;  // a float tells every texel of it apart

// The sides of a level and where it starts; level 0 is the base, in memory of its own.
struct MipLayout {
  int height, width, faces;
  int levels;                      // beyond the base
  int64_t start[kMaxLevels + 2];   // in texels: of level l at start[l]; start[levels + 1] is the length of the pack

  DIFFRAST_HD int height_of(int level) const { return height >> level > 1 ? height >> level : 1; }
  DIFFRAST_HD int width_of(int level) const { return width >> level > 1 ? width >> level : 1; }
  DIFFRAST_HD int64_t texels_of(int level) const {
    return static_cast<int64_t>(faces) * height_of(level) * width_of(level);
  }
};

inline MipLayout mip_layout(int64_t height, int64_t width, int faces, int64_t levels) {
  MipLayout layout{static_cast<int>(height), static_cast<int>(width), faces, static_cast<int>(levels), {0, 0}};
  for (int l = 1; l <= layout.levels; ++l) layout.start[l + 1] = layout.start[l] + layout.texels_of(l);
  return layout;
}

// Whether that many levels can be made: no odd side but 1 is halved, and the last step halves something.
inline bool can_halve(int64_t height, int64_t width, int64_t levels) {
  for (; levels > 0; --levels) {
    if (height == 1 && width == 1) return false;
    if ((height > 1 && height % 2) || (width > 1 && width % 2)) return false;
    height = height > 1 ? height / 2 : 1;
    width = width > 1 ? width / 2 : 1;
  }
  return true;
}

// Makes one level. An item is one number of it, over the whole batch.
template <class T>
struct AverageLevel {
  MipLayout layout;
  int level;
  int64_t channels;
  const T* tex;
  T* mip;

  DIFFRAST_HD void operator()(int64_t item) const {
    const int height = layout.height_of(level), width = layout.width_of(level);
    const int above_height = layout.height_of(level - 1), above_width = layout.width_of(level - 1);
    const int64_t c = item % channels;
    int64_t rest = item / channels;
    const int64_t x = rest % width;
    rest /= width;
    const int64_t y = rest % height;
    rest /= height;
    const int64_t face = rest % layout.faces, image = rest / layout.faces;

    const int64_t pack = layout.start[layout.levels + 1];
    const T* above = level == 1 ? tex + image * layout.texels_of(0) * channels
                                : mip + (image * pack + layout.start[level - 1]) * channels;
    const int rows = above_height > 1 ? 2 : 1, columns = above_width > 1 ? 2 : 1;
    T sum = T(0);
    for (int dy = 0; dy < rows; ++dy) {
      for (int dx = 0; dx < columns; ++dx) {
        const int64_t texel = (face * above_height + y * rows + dy) * above_width + x * columns + dx;
        sum += above[texel * channels + c];
      }
    }
    const int64_t texel = layout.start[level] + (face * height + y) * width + x;
    mip[(image * pack + texel) * channels + c] = sum / static_cast<T>(rows * columns);
  }
};

// The gradient of the base: each of its texels lies in one texel of every level, so it gathers. An item is one number
// of the base.
template <class T>
struct SpreadLevels {
  MipLayout layout;
  int64_t channels;
  const T* grad_mip;
  T* grad_tex;

  DIFFRAST_HD void operator()(int64_t item) const {
    const int64_t c = item % channels;
    int64_t rest = item / channels;
    int64_t x = rest % layout.width;
    rest /= layout.width;
    int64_t y = rest % layout.height;
    rest /= layout.height;
    const int64_t face = rest % layout.faces, image = rest / layout.faces;

    const T* grad = grad_mip + image * layout.start[layout.levels + 1] * channels;
    T share = T(1), sum = T(0);
    for (int l = 1; l <= layout.levels; ++l) {
      if (layout.height_of(l - 1) > 1) {
        share /= T(2);
        y /= 2;
      }
      if (layout.width_of(l - 1) > 1) {
        share /= T(2);
        x /= 2;
      }
      const int64_t texel = layout.start[l] + (face * layout.height_of(l) + y) * layout.width_of(l) + x;
      sum += share * grad[texel * channels + c];
    }
    grad_tex[item] = sum;
  }
};

struct MipProblem {
  MipLayout layout;
  int64_t batch, channels;
};

template <class Backend, class T>
void build_mips(Backend& backend, const MipProblem& p, const T* tex, T* mip) {
  for (int l = 1; l <= p.layout.levels; ++l) {
    backend.each(p.batch * p.layout.texels_of(l) * p.channels, AverageLevel<T>{p.layout, l, p.channels, tex, mip});
  }
}

template <class Backend, class T>
void build_mips_backward(Backend& backend, const MipProblem& p, const T* grad_mip, T* grad_tex) {
  backend.each(p.batch * p.layout.texels_of(0) * p.channels,
               SpreadLevels<T>{p.layout, p.channels, grad_mip, grad_tex});
}

}  // namespace texturing
}  // namespace diffrast
