// Rows of a tree: each sees the entries before the step and, of the step's, those on its own path.
//
// Entries of a step are stored in the order of its rows. Row law: a row's attention must be that of its path alone, down to the
// page and the lane an entry is in. So the pages that a path ends in are put together for each row, with its entries in their
// places, and attended to as any others. Only these pages are copied; partitions before them are shared by all rows as ever.
#include <algorithm>
#include <cstring>

#include "narrows/model.h"

namespace narrows {

// parents[t] is the row before row t on its path, -1 where that is the last entry before the step; null: all rows are chains.
void Model::find_paths(const Batch& batch) {
  depth_.resize(batch.num_tokens);
  branches_.assign(batch.num_requests, false);
  size_t longest = 0;
  for (int b = 0; b < batch.num_requests; b++) {
    int first = batch.cu_seqlens[b], end = batch.cu_seqlens[b + 1];
    for (int t = first; t < end; t++) {
      int parent = batch.parents ? batch.parents[t] : t > first ? t - 1 : -1;
      depth_[t] = parent < 0 ? 0 : depth_[parent] + 1;
      if (depth_[t] != t - first) branches_[b] = true;
    }
    if (branches_[b]) longest = std::max(longest, size_t(end - first) / kPage + 2);
  }
  if (longest == 0) return;
  size_t bytes = longest * 2 * kPage * c_.head_dim * sizeof(uint16_t) + size_t(batch.pages_per_row) * sizeof(void*);
  for (auto& s : straight_) s.reserve(bytes);
}

// The pages of one KV head as row t sees them; `kv` has those before the step.
KvView Model::straighten(int thread, const Batch& batch, int layer, int head, int t, const KvView& kv) {
  int D = c_.head_dim, b = request_of_[t], first = batch.cu_seqlens[b];
  int before = batch.context_lens[b] - (batch.cu_seqlens[b + 1] - first);
  size_t size = size_t(2) * kPage * D;  // of a page, in values
  auto stored = [&](int entry) { return page(layer, batch.page_table[size_t(b) * batch.pages_per_row + entry / kPage], head); };

  int first_page = before / kPage, num_pages = (before + depth_[t]) / kPage + 1;
  auto* copies = reinterpret_cast<uint16_t*>(straight_[thread].get());
  auto** pages = reinterpret_cast<const uint16_t**>(copies + ((num_pages - first_page) * size));
  std::copy(kv.pages, kv.pages + std::min(first_page, kv.num_pages), pages);
  for (int p = first_page; p < num_pages; p++) {
    uint16_t* copy = copies + (p - first_page) * size;
    std::memcpy(copy, stored(p * kPage), size * sizeof(uint16_t));
    pages[p] = copy;
  }
  for (int row = t, place = before + depth_[t]; place >= before; row = batch.parents[row], place--) {
    int entry = before + row - first, from = entry % kPage, to = place % kPage;
    if (entry == place) continue;
    const uint16_t* source = stored(entry);
    uint16_t* copy = copies + (place / kPage - first_page) * size;
    for (int d = 0; d < D; d++) copy[size_t(d) * kPage + to] = source[size_t(d) * kPage + from];
    size_t values = size_t(kPage) * D;
    std::memcpy(copy + values + size_t(to) * D, source + values + size_t(from) * D, D * sizeof(uint16_t));
  }
  return {pages, num_pages, D};
}

}  // namespace narrows
