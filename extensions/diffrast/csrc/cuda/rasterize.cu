// rasterize on the GPU: its phases as grids, but for three that a plain grid would do poorly.
#include <cub/device/device_scan.cuh>

#include "device.cuh"
#include "rasterize_run.h"

namespace diffrast {
namespace {

constexpr int kWarp = 32;
constexpr int kBlocksPerProcessor = 8;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kRows = kWarp / kTile;  // of a tile that a warp works on at once

// A warp takes 32 pairs at a time. Each lane finds one of them, its triangle and its outline; then the warp draws
// the tiles that are not empty, one after the other, a pixel per lane. How many pairs there are is read here: the
// grid is the same for any number of them, and the host need not wait.
__global__ void __launch_bounds__(kThreads, 2) draw_pairs(RasterizeProblem<float> p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t pairs = p.pairs();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x - lane; first < pairs;
       first += threads) {
    Pair<float> own;
    const bool found = first + lane < pairs && own.find(p, first + lane);
    for (unsigned left = __ballot_sync(kAllLanes, found); left != 0; left &= left - 1) {
      const int from = __ffs(left) - 1;
      Slot<float> slot;
      slot.image = __shfl_sync(kAllLanes, static_cast<long long>(own.slot.image), from);
      slot.number = __shfl_sync(kAllLanes, own.slot.number, from);
      PixelBox box;
      box.first_x = __shfl_sync(kAllLanes, own.box.first_x, from);
      box.first_y = __shfl_sync(kAllLanes, own.box.first_y, from);
      box.last_x = __shfl_sync(kAllLanes, own.box.last_x, from);
      box.last_y = __shfl_sync(kAllLanes, own.box.last_y, from);
      const int corners = __shfl_sync(kAllLanes, own.outline.count, from);
      int32_t x[3], y[3];
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        x[k] = __shfl_sync(kAllLanes, own.outline.x[k], from);
        y[k] = __shfl_sync(kAllLanes, own.outline.y[k], from);
      }
      if (!load_triangle(p, slot.image, slot.number, slot.v)) continue;

      const int32_t px = box.first_x / kTile * kTile + lane % kTile;
      for (int32_t py = box.first_y / kTile * kTile + lane / kTile; py <= box.last_y; py += kRows) {
        if (px < box.first_x || px > box.last_x || py < box.first_y) continue;
        const int32_t at_x = centre_of_pixel(px, p.width), at_y = centre_of_pixel(py, p.height);
        bool covered;
        if (corners == 3) {
          covered = covers(x, y, 3, at_x, at_y);
        } else {  // clipped: few are, and their corners are sooner found again than passed on
          Outline outline;
          clip_outline(slot.v, p.height, p.width, &outline);
          covered = covers(outline.x, outline.y, outline.count, at_x, at_y);
        }
        if (covered) draw(p, slot, px, py);
      }
      __syncwarp();
    }
  }
}

// Lanes that see the same triangle add up first: a large one would otherwise have a few addresses take an atomic from
// each of its pixels. Below this number of lanes the atomics are cheaper.
constexpr int kWorthAddingUp = 4;

// A warp works on a block of 8 x 4 pixels, which see fewer triangles than 32 in a row.
__global__ void add_pixel_shares(RasterizeGradients<float> p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t across = (p.width + kTile - 1) / kTile, down = (p.height + kRows - 1) / kRows;
  const int64_t blocks = p.images * down * across;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  for (int64_t block = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp; block < blocks;
       block += warps) {
    const int64_t image = block / (down * across);
    const int64_t py = block / across % down * kRows + lane / kTile, px = block % across * kTile + lane % kTile;
    PixelShare<float> share;
    const bool found = py < p.height && px < p.width && share.find(p, (image * p.height + py) * p.width + px);
    bool adds = found;
    for (unsigned left = __ballot_sync(kAllLanes, found); left != 0;) {
      const int leader = __ffs(left) - 1;
      const int32_t number = __shfl_sync(kAllLanes, share.number, leader);
      const bool same = found && share.number == number;
      const unsigned group = __ballot_sync(kAllLanes, same);
      left &= ~group;
      if (__popc(group) < kWorthAddingUp) continue;
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        float sum = same ? share.of[i / 3][i % 3] : 0.0f;
#pragma unroll
        for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        if (lane == leader) share.of[i / 3][i % 3] = sum;
      }
      if (same && lane != leader) adds = false;
    }
    if (adds) share.add(p);
  }
}

struct RasterDevice : Device {
  void* scratch = nullptr;
  size_t bytes = 0;

  void running_sum(int64_t* at, int64_t count) {
    if (error != cudaSuccess) return;
    error = cub::DeviceScan::ExclusiveSum(scratch, bytes, at, at, static_cast<int>(count), stream);
  }
  void each_pair(const DrawPair<float>& phase) {
    int device = 0, processors = 0;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return;
    error = launch(draw_pairs, processors * kBlocksPerProcessor, stream, phase.p);
  }
  void each_in_order(int64_t pixels, const AddPixelShare<float>& phase) {
    if (pixels == 0 || error != cudaSuccess) return;
    // About one block of pixels for each warp: the rim's blocks, which are not full, make some warps take two.
    error = launch(add_pixel_shares, pixels / kThreads + 1, stream, phase.p);
  }
};

}  // namespace

cudaError_t rasterize_scratch(const RasterizeProblem<float>& problem, size_t* bytes) {
  const int64_t count = problem.slots > problem.images ? problem.slots : problem.images;
  int64_t* sums = nullptr;
  return cub::DeviceScan::ExclusiveSum(nullptr, *bytes, sums, sums, static_cast<int>(count + 1));
}

cudaError_t run_rasterize(const RasterizeProblem<float>& problem, void* scratch, size_t bytes, cudaStream_t stream) {
  RasterDevice device;
  device.stream = stream;
  device.scratch = scratch;
  device.bytes = bytes;
  rasterize(device, problem);
  return device.error;
}

cudaError_t run_rasterize_backward(const RasterizeGradients<float>& problem, cudaStream_t stream) {
  RasterDevice device;
  device.stream = stream;
  rasterize_backward(device, problem);
  return device.error;
}

}  // namespace diffrast
