#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "narrows/ops.h"

#define NARROWS_TILES
namespace narrows {
namespace {
#include "isa/vec-avx512.h"

#include "isa/tiles.h"
#include "kernels/all-inl.h"
}  // namespace

extern const OpTable amx_ops;
const OpTable amx_ops = NARROWS_OP_TABLE("amx");

}  // namespace narrows
