/* The kernels of the sample ops, called with data pointers through ctypes. */
#include <stdlib.h>

#define EACH_DTYPE(KERNEL) KERNEL(float, f32) KERNEL(double, f64)

#define MULTIPLY(T, SUFFIX)                                                          \
  void multiply_##SUFFIX(const T *x, const T *weight, T *out, long n) {              \
    for (long i = 0; i < n; i++) out[i] = x[i] * weight[i];                          \
  }
EACH_DTYPE(MULTIPLY)

/* One byte past the end: the output has n numbers. The byte is inverted, so that it differs from every pattern. */
#define PAST_END(T, SUFFIX)                                                          \
  void past_end_##SUFFIX(const T *x, const T *weight, T *out, long n) {              \
    multiply_##SUFFIX(x, weight, out, n);                                            \
    if (n) ((volatile unsigned char *)(out + n))[0] ^= 0xff;                         \
  }
EACH_DTYPE(PAST_END)

#define INPUT_WRITE(T, SUFFIX)                                                       \
  void input_write_##SUFFIX(T *x, const T *weight, T *out, long n) {                 \
    multiply_##SUFFIX(x, weight, out, n);                                            \
    if (n) x[n - 1] += 1;                                                            \
  }
EACH_DTYPE(INPUT_WRITE)

/* The last number is never written. */
#define UNFINISHED(T, SUFFIX)                                                        \
  void unfinished_##SUFFIX(const T *x, const T *weight, T *out, long n) {            \
    multiply_##SUFFIX(x, weight, out, n - 1);                                        \
  }
EACH_DTYPE(UNFINISHED)

/* Decrements before it compares, so n = 0 means 2^64 rounds. */
#define ENDLESS(T, SUFFIX)                                                           \
  void endless_##SUFFIX(const T *x, const T *weight, T *out, long n) {               \
    volatile unsigned long left = n;                                                 \
    while (--left) {}                                                                \
    multiply_##SUFFIX(x, weight, out, n);                                            \
  }
EACH_DTYPE(ENDLESS)

/* Reads the last number although n may be 0. */
#define EMPTY_CRASH(T, SUFFIX)                                                       \
  void empty_crash_##SUFFIX(const T *x, const T *weight, T *out, long n) {           \
    multiply_##SUFFIX(x, weight, out, n);                                            \
    ((volatile T *)out)[n - 1] = x[n - 1] * weight[n - 1];                           \
  }
EACH_DTYPE(EMPTY_CRASH)

#define ENDS_BY(NAME, HOW)                                                           \
  void NAME##_f32(const float *x, const float *weight, float *out, long n) {         \
    multiply_f32(x, weight, out, n);                                                 \
    HOW;                                                                             \
  }
ENDS_BY(aborting, abort())
ENDS_BY(segfault, *(volatile int *)0 = 1)
ENDS_BY(exiting, exit(0))

/* A symbol with this name in a library loaded earlier with RTLD_GLOBAL replaces this one. */
static int own_state;
int *sample_state = &own_state;
void sample_start(void) { *sample_state = 1; }
