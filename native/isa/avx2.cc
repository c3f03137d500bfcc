#include <cstddef>
#include <cstdint>

#include "narrows/ops.h"

#include <immintrin.h>

#define NARROWS_WORDS
#define NARROWS_PAIRS
namespace narrows {
namespace {
#include "isa/vec-avx2.h"
#include "kernels/all-inl.h"
}  // namespace

extern const OpTable avx2_ops;
const OpTable avx2_ops = NARROWS_OP_TABLE("avx2");

}  // namespace narrows
