#pragma once
#include <immintrin.h>
#include <cstdint>

struct __half {
  uint16_t bits;
};
inline float __half2float(__half v) { return _cvtsh_ss(v.bits); }
inline __half __float2half_rn(float v) { return {static_cast<uint16_t>(_cvtss_sh(v, 0))}; }
