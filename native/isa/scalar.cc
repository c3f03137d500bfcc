#include <cstddef>
#include <cstdint>

#include "narrows/ops.h"

namespace narrows {
namespace {
#include "isa/vec-scalar.h"
#include "kernels/all-inl.h"
}  // namespace

extern const OpTable scalar_ops;
const OpTable scalar_ops = NARROWS_OP_TABLE("scalar");

}  // namespace narrows
