// A triangle as one pixel sees it: barycentrics, their screen derivatives, depth, and the gradients. Torch-free.
//
// Let (fx, fy) be the pixel's centre in [-1, 1] and X_i = x_i - fx w_i, Y_i = y_i - fy w_i. The triangle's point
// b0 p0 + b1 p1 + b2 p2 is seen there when b0 (X0, Y0) + b1 (X1, Y1) + b2 (X2, Y2) = 0, so the perspective-correct b
// are in the proportion of
//   a_i = X_j Y_k - Y_j X_k    with (i, j, k) = (0, 1, 2), (1, 2, 0), (2, 0, 1).
// No division by w: vertices behind the eye need no other formula. With a = a0 + a1 + a2: u = a0 / a, v = a1 / a,
//   da_i/dfx = w_k Y_j - w_j Y_k,    da_i/dfy = w_j X_k - w_k X_j,
//   du/dfx = (da0/dfx - u da/dfx) / a, and so on.
#pragma once

#include "outline.h"

namespace diffrast {

// A pixel's centre, and the step to the next one.
template <class T>
struct ViewRay {
  T fx, fy, step_x, step_y;
};

template <class T>
DIFFRAST_HD ViewRay<T> ray_through(int32_t px, int32_t py, int32_t height, int32_t width) {
  return {static_cast<T>(2 * px + 1 - width) / width, static_cast<T>(2 * py + 1 - height) / height,
          static_cast<T>(2) / width, static_cast<T>(2) / height};
}

// Sums and gradients of u and v and of their derivatives by the pixel's place.
template <class T>
struct PixelGradients {
  T u, v, u_x, u_y, v_x, v_y;
};

template <class T>
struct SeenTriangle {
  T X[3], Y[3], w[3], z[3];
  T area[3];   // a_i
  T inverse;   // 1 / a; 0 where the triangle is seen from its edge and there is no such number
  ViewRay<T> ray;

  DIFFRAST_HD SeenTriangle(const Vertex<T> (&p)[3], const ViewRay<T>& through) : ray(through) {
    for (int i = 0; i < 3; ++i) {
      X[i] = p[i].x - ray.fx * p[i].w;
      Y[i] = p[i].y - ray.fy * p[i].w;
      z[i] = p[i].z;
      w[i] = p[i].w;
    }
    for (int i = 0; i < 3; ++i) {
      const int j = (i + 1) % 3, k = (i + 2) % 3;
      area[i] = X[j] * Y[k] - Y[j] * X[k];
    }
    inverse = 1 / (area[0] + area[1] + area[2]);
    if (!(inverse - inverse == 0)) inverse = 0;
  }

  // Inside the triangle: a pixel is covered by the outline rounded to subpixels, so its centre may lie a trace
  // outside of the exact one.
  DIFFRAST_HD void barycentrics(T* u, T* v) const {
    if (inverse == 0) {
      *u = *v = static_cast<T>(1) / 3;
      return;
    }
    *u = within(area[0] * inverse, 0, 1);
    *v = within(area[1] * inverse, 0, 1);
    const T sum = *u + *v;
    if (sum > 1) {
      *u /= sum;
      *v /= sum;
    }
  }

  // z/w, in [-1, 1].
  DIFFRAST_HD T depth(T u, T v) const {
    const T b2 = 1 - u - v;
    return within((u * z[0] + v * z[1] + b2 * z[2]) / (u * w[0] + v * w[1] + b2 * w[2]), -1, 1);
  }

  // du/dX, du/dY, dv/dX, dv/dY per pixel.
  DIFFRAST_HD void derivatives(T to[4]) const {
    T by_x[3], by_y[3];
    area_derivatives(by_x, by_y);
    const T all_x = by_x[0] + by_x[1] + by_x[2], all_y = by_y[0] + by_y[1] + by_y[2];
    for (int i = 0; i < 2; ++i) {
      const T b = area[i] * inverse;
      to[2 * i] = finite_or_zero(ray.step_x * ((by_x[i] - b * all_x) * inverse));
      to[2 * i + 1] = finite_or_zero(ray.step_y * ((by_y[i] - b * all_y) * inverse));
    }
  }

  // From gradients of u, v and their derivatives to those of x, y and w of the three vertices. The trace outside of
  // the exact triangle (see barycentrics) is taken as if u and v went on there: that is the smooth neighbour's slope.
  DIFFRAST_HD void backward(const PixelGradients<T>& g, T (&to)[3][3]) const {
    const T u = area[0] * inverse, v = area[1] * inverse;
    T by_x[3], by_y[3];
    area_derivatives(by_x, by_y);
    const T all_x = by_x[0] + by_x[1] + by_x[2], all_y = by_y[0] + by_y[1] + by_y[2];
    // The derivatives are (by_x[i] - b all_x) inverse, in steps.
    const T ux = g.u_x * ray.step_x * inverse, uy = g.u_y * ray.step_y * inverse;
    const T vx = g.v_x * ray.step_x * inverse, vy = g.v_y * ray.step_y * inverse;
    const T to_u = g.u - ux * all_x - uy * all_y;
    const T to_v = g.v - vx * all_x - vy * all_y;
    const T to_all_x = -(ux * u + vx * v), to_all_y = -(uy * u + vy * v);
    const T to_sum = -inverse * (to_u * u + to_v * v + ux * (by_x[0] - u * all_x) + uy * (by_y[0] - u * all_y) +
                                 vx * (by_x[1] - v * all_x) + vy * (by_y[1] - v * all_y));
    const T to_area[3] = {to_u * inverse + to_sum, to_v * inverse + to_sum, to_sum};
    const T to_x[3] = {ux + to_all_x, vx + to_all_x, to_all_x};
    const T to_y[3] = {uy + to_all_y, vy + to_all_y, to_all_y};

    for (int i = 0; i < 3; ++i) to[i][0] = to[i][1] = to[i][2] = 0;  // of X, Y and w
    for (int i = 0; i < 3; ++i) {
      const int j = (i + 1) % 3, k = (i + 2) % 3;
      to[j][0] += to_area[i] * Y[k] - to_y[i] * w[k];
      to[k][0] += to_y[i] * w[j] - to_area[i] * Y[j];
      to[j][1] += to_x[i] * w[k] - to_area[i] * X[k];
      to[k][1] += to_area[i] * X[j] - to_x[i] * w[j];
      to[j][2] += to_y[i] * X[k] - to_x[i] * Y[k];
      to[k][2] += to_x[i] * Y[j] - to_y[i] * X[j];
    }
    for (int i = 0; i < 3; ++i) to[i][2] -= ray.fx * to[i][0] + ray.fy * to[i][1];
  }

 private:
  DIFFRAST_HD void area_derivatives(T by_x[3], T by_y[3]) const {
    for (int i = 0; i < 3; ++i) {
      const int j = (i + 1) % 3, k = (i + 2) % 3;
      by_x[i] = w[k] * Y[j] - w[j] * Y[k];
      by_y[i] = w[j] * X[k] - w[k] * X[j];
    }
  }
  // NaN becomes low: a triangle of absurd numbers must not spread them.
  static DIFFRAST_HD T within(T value, T low, T high) { return value > low ? (value < high ? value : high) : low; }
  static DIFFRAST_HD T finite_or_zero(T value) { return value - value == 0 ? value : 0; }
};

}  // namespace diffrast
