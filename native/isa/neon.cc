#include <cstddef>
#include <cstdint>

#include "narrows/ops.h"

#include <arm_neon.h>

namespace narrows {
namespace {
#include "isa/vec-neon.h"
#include "kernels/all-inl.h"
}  // namespace

extern const OpTable neon_ops;
const OpTable neon_ops = NARROWS_OP_TABLE("neon");

}  // namespace narrows
