#include <cstddef>
#include <cstdint>

#include "narrows/ops.h"

#include <immintrin.h>

namespace narrows {
namespace {
#include "isa/vec-avx512.h"
#include "kernels/all-inl.h"
}  // namespace

extern const OpTable avx512_ops;
const OpTable avx512_ops = NARROWS_OP_TABLE("avx512");

}  // namespace narrows
