// Every kernel, written once against 16 lanes. A file in native/isa/ opens an anonymous namespace, includes its vec-*.h and then
// this file, and exports the table; nothing here may call an inline function that another file could also emit.
//
// vec-*.h gives F (16 floats), I (16 int32) and B (64 bytes) with the operations defined by vec-scalar.h. All levels do the same
// float operations in the same order, so they agree bit for bit wherever fma is exact to one rounding, which is everywhere.
#include "kernels/matmul-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/attention-inl.h"

#define NARROWS_OP_TABLE(level) \
  {level, kPairs<4>, matmul, quantize, rms_norm, add, scale, glu, rope, write_kv, attend, merge, finish, sum_bytes}
