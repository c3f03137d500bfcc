// Inputs of matrix products, quantised for all matrices that share them.
#include <algorithm>

#include "narrows/model.h"

namespace narrows {

Activations& ActivationBuffer::reserve(int rows, int cols) {
  view.rows = rows;
  view.cols = cols;
  size_t units = size_t(rows) * view.num_units();
  view.high = high_.reserve(units * kUnit);
  view.low = low_.reserve(units * kUnit);
  view.words = words_.reserve(units * kUnit);
  view.raised = raised_.reserve(units * kUnit * 2);
  view.scale = scale_.reserve(units);
  int32_t* sums = sums_.reserve(units * 3);
  float* values = values_.reserve(units * 3);
  view.unit = {sums, values};
  view.half = {sums + units, values + units};
  return view;
}

// Threads share out columns: rows lie side by side, and threads that took a row each would write to the same cache lines.
void Model::quantize(Team::Member& member, int rows, const Activations& into, const std::function<void(size_t, int)>& make) {
  constexpr int kSpan = 16;  // units: whole cache lines of scales and sums
  int units = into.num_units();
  member.for_each((units + kSpan - 1) / kSpan, [&](int i) {
    int unit0 = i * kSpan, unit1 = std::min(unit0 + kSpan, units), col = unit0 * kUnit;
    for (int t = 0; t < rows; t++) {
      size_t row = size_t(t) * into.cols;
      if (make) make(row + col, std::min(unit1 * kUnit, into.cols) - col);
      ops_.quantize(into.f + row, t, unit0, unit1, into);
    }
  });
}

}  // namespace narrows
