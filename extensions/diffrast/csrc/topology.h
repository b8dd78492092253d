// Which triangles share an edge, as a table of rings. Torch-free.
//
// Half-edge 3t + k is the edge of triangle t that lies opposite its corner k. topology[3t + k] is the next half-edge
// with the same two vertices, and the last one's next is the first: an edge that one triangle owns points to itself,
// and one shared by three or more is a longer ring. Edges meet by vertex index, in either direction.
//
// Equal keys are brought together by a stable sort, so the table is the same in every run and on every device.
#pragma once

#include "backend.h"

namespace diffrast {

struct EdgeKeys {
  const int32_t* tri;
  int64_t* key;
  DIFFRAST_HD void operator()(int64_t half_edge) const {
    const int64_t first = half_edge / 3 * 3;
    const uint32_t a = static_cast<uint32_t>(tri[first + (half_edge + 1) % 3]);
    const uint32_t b = static_cast<uint32_t>(tri[first + (half_edge + 2) % 3]);
    key[half_edge] = static_cast<int64_t>(static_cast<uint64_t>(a < b ? a : b) << 32 | (a < b ? b : a));
  }
};

struct LinkEdges {
  int64_t half_edges;
  const int64_t* key;    // sorted
  const int64_t* order;  // the half-edge each key belongs to
  int32_t* topology;
  DIFFRAST_HD void operator()(int64_t i) const {
    int64_t next = i + 1;
    if (next == half_edges || key[next] != key[i]) {
      for (next = i; next > 0 && key[next - 1] == key[i];) --next;
    }
    topology[order[i]] = static_cast<int32_t>(order[next]);
  }
};

}  // namespace diffrast
