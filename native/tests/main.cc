// Every level against the scalar one, bit for bit, and every row against itself alone; teams of threads. Runs under the sanitisers.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "narrows/model.h"
#include "narrows/ops.h"
#include "narrows/pack.h"

namespace narrows {
#if defined(__x86_64__)
extern const OpTable amx_emulated_ops;
#endif
}  // namespace narrows

using namespace narrows;

namespace {

std::mt19937 rng(7);
int failures = 0;

void expect(bool ok, const char* what, const char* level, const std::string& where) {
  if (ok) return;
  std::printf("FAIL %s on %s: %s\n", what, level, where.c_str());
  failures++;
}

float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(rng); }

template <class T>
struct Aligned {
  Buffer<T> buffer;
  size_t n;
  explicit Aligned(size_t count) : n(count) { std::memset(static_cast<void*>(buffer.reserve(count)), 0, count * sizeof(T)); }
  T* get() { return buffer.get(); }
};

std::vector<const OpTable*> levels() {
  const OpTable* found[8];
  int n = list_ops(found, 8);
  std::vector<const OpTable*> out(found, found + n);
#if defined(__x86_64__)
  if (n >= 3) out.push_back(&amx_emulated_ops);
#endif
  return out;
}

uint16_t half(float x) {  // a positive normal half
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return uint16_t(((u >> 23) - 112) << 10 | (u >> 13 & 0x3ff));
}

// Any bytes are valid codes; scales get plausible values.
void fill(const Format& f, int rows, int cols, uint8_t* data) {
  Layout at(f, cols);
  for (int t = 0; t < num_tiles(rows); t++) {
    uint8_t* tile = data + t * at.tile_bytes;
    for (size_t i = 0; i < at.tile_bytes; i++) tile[i] = uint8_t(rng());
    if (f.type == Float::f32)
      for (size_t i = 0; i < size_t(cols) * kLanes; i++) reinterpret_cast<float*>(tile)[i] = uniform(-1, 1);
    if (f.type == Float::f16 || f.type == Float::bf16)
      for (size_t i = 0; i < size_t(cols) * kLanes; i++) reinterpret_cast<uint16_t*>(tile)[i] = half(uniform(0.1f, 1));
    if (f.type != Float::none) continue;
    for (int u = 0; u < at.num_units; u += at.block_units)
      for (size_t i = f.two_level ? 0 : at.scales; i < (f.two_level ? at.scales : at.header); i += 2) {
        uint16_t h = half(uniform(0.001f, 0.1f));
        std::memcpy(tile + at.block(u) + i, &h, 2);
      }
  }
}

struct Quantised {
  ActivationBuffer buffer;
  Quantised(const OpTable& ops, const std::vector<float>& x, int rows, int cols) {
    buffer.reserve(rows, cols).f = x.data();
    for (int t = 0; t < rows; t++) ops.quantize(x.data() + size_t(t) * cols, t, 0, buffer.view.num_units(), buffer.view);
  }
};

std::vector<float> product(const OpTable& ops, const Matrix& w, const std::vector<float>& x, int rows) {
  Quantised q(ops, x, rows, w.cols);
  std::vector<float> y(size_t(rows) * w.rows);
  Aligned<uint8_t> scratch(matmul_scratch(rows));
  ops.matmul(w, q.buffer.view, 0, num_tiles(w.rows), y.data(), w.rows, scratch.get());
  return y;
}

bool same(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * 4) == 0; }

void check_matmul(const Format& f, int rows, int cols, int num_x) {
  std::string where = "bits " + std::to_string(f.bits) + " type " + std::to_string(int(f.type)) + " group " +
                      std::to_string(f.group) + (f.minimum ? " min" : "") + (f.sparse ? " sparse" : "") +
                      (f.two_level ? " two-level " : " ") + std::to_string(rows) + "x" + std::to_string(cols) + " rows " +
                      std::to_string(num_x);
  std::vector<uint8_t> codes, mask;
  std::vector<uint16_t> scales;
  Kept kept{rows, cols, nullptr, nullptr, nullptr};
  if (f.sparse) {
    bool two_of_four = rng() % 2;
    unsigned quad = 0;
    for (size_t i = 0; i < size_t(rows) * cols; i++) {
      if (i % 4 == 0) quad = two_of_four ? "\x3\x5\x6\x9\xa\xc"[rng() % 6] : rng();
      mask.push_back(quad >> i % 4 & 1);
      codes.push_back(f.bits ? uint8_t(rng() & ((1u << f.bits) - 1)) : uint8_t(rng()));
      if (!f.bits) codes.push_back(uint8_t(0x3f));  // a number, not a NaN
    }
    if (f.bits)
      for (int i = 0; i < rows * ((cols + f.group - 1) / f.group); i++) scales.push_back(half(uniform(0.001f, 0.1f)));
    kept = {rows, cols, codes.data(), mask.data(), scales.data()};
  }
  size_t size = f.sparse ? sparse_bytes(f, kept, 2) : packed_bytes(f, rows, cols) + 16384;  // prefetch may look past the end
  Aligned<uint8_t> data(size);
  if (f.sparse)
    pack_sparse(f, kept, true, data.get(), 2);
  else
    fill(f, rows, cols, data.get());
  Matrix w{f, rows, cols, data.get()};
  std::vector<float> x(size_t(num_x) * cols);
  for (float& v : x) v = uniform(-2, 2) * (rng() % 100 == 0 ? 30 : 1);  // some units stand out
  const OpTable* all[8];
  list_ops(all, 8);
  std::vector<float> want = product(*all[0], w, x, num_x);
  for (const OpTable* ops : levels()) {
    std::vector<float> got = product(*ops, w, x, num_x);
    expect(same(got.data(), want.data(), want.size()), "matmul differs from scalar", ops->name, where);
    for (int t = 0; t < num_x; t += 3) {
      std::vector<float> row(x.begin() + size_t(t) * cols, x.begin() + size_t(t + 1) * cols);
      std::vector<float> alone = product(*ops, w, row, 1);
      expect(same(alone.data(), got.data() + size_t(t) * rows, rows), "row alone differs from row in block", ops->name, where);
    }
  }
}

void check_rows() {
  const OpTable* all[8];
  list_ops(all, 8);
  for (int n : {1, 15, 16, 17, 64, 100, 576}) {
    std::vector<float> x(n), w(n), want(n), got(n);
    for (int i = 0; i < n; i++) x[i] = uniform(-20, 20), w[i] = uniform(0.5, 1.5);
    for (const OpTable* ops : levels()) {
      all[0]->rms_norm(x.data(), w.data(), 1e-5f, n, want.data());
      ops->rms_norm(x.data(), w.data(), 1e-5f, n, got.data());
      expect(same(want.data(), got.data(), n), "rms_norm differs", ops->name, std::to_string(n));
      double sum = 0;
      for (float v : x) sum += double(v) * v;
      for (int i = 0; i < n; i++)
        expect(std::fabs(want[i] - x[i] * w[i] / std::sqrt(sum / n + 1e-5)) < 1e-5 * 30, "rms_norm is wrong", ops->name,
               std::to_string(n));
      for (bool gelu : {false, true}) {
        all[0]->glu(x.data(), w.data(), n, gelu, want.data());
        ops->glu(x.data(), w.data(), n, gelu, got.data());
        expect(same(want.data(), got.data(), n), "glu differs", ops->name, std::to_string(n));
        for (int i = 0; i < n; i++) {
          double g = x[i], act = gelu ? 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)))
                                      : g / (1 + std::exp(-g));
          expect(std::fabs(want[i] - act * w[i]) < 1e-6 * (1 + std::fabs(act)) * 4, "glu is wrong", ops->name,
                 std::to_string(x[i]));
        }
      }
    }
  }
}

float from_bf16(uint16_t h) {
  uint32_t u = uint32_t(h) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Attention of rows [first, first + n) of a context against double arithmetic; the same query alone must give the same bits.
void check_attention(int dim, int group, int context, int n, int window) {
  std::string where = "dim " + std::to_string(dim) + " context " + std::to_string(context) + " rows " + std::to_string(n);
  int num_pages = (context + kPage - 1) / kPage, num_q = n * group;
  Aligned<uint16_t> pool(size_t(num_pages) * kPage * dim * 2);
  std::vector<const uint16_t*> pages;
  std::vector<float> k(size_t(context) * dim), v(k.size()), q(size_t(num_q) * dim);
  for (float& f : k) f = uniform(-1, 1);
  for (float& f : v) f = uniform(-1, 1);
  for (float& f : q) f = uniform(-2, 2);
  for (int p = 0; p < num_pages; p++) pages.push_back(pool.get() + size_t(p) * kPage * dim * 2);
  for (int t = 0; t < context; t++)
    levels()[0]->write_kv(&k[size_t(t) * dim], &v[size_t(t) * dim], t % kPage, dim,
                          pool.get() + size_t(t / kPage) * kPage * dim * 2);
  KvView view{pages.data(), num_pages, dim};
  auto run = [&](const OpTable& ops, int q0, int count) {
    std::vector<const float*> qs;
    std::vector<int> lo, hi;
    std::vector<Partial> part(count), total(count);
    std::vector<float> acc(size_t(count) * 2 * dim), out(size_t(count) * dim);
    for (int i = 0; i < count; i++) {
      int row = (q0 + i) / group;
      qs.push_back(&q[size_t(q0 + i) * dim]);
      hi.push_back(context - n + row + 1);
      lo.push_back(window && hi[i] > window ? hi[i] - window : 0);
      part[i].acc = &acc[size_t(2 * i) * dim];
      total[i] = {0, 0, &acc[size_t(2 * i + 1) * dim]};
    }
    Aligned<uint8_t> scratch(attention_scratch(dim));
    for (int p = lo[0] / kPart; p * kPart < hi.back(); p++) {
      ops.attend(qs.data(), count, 0.3f, view, p, lo.data(), hi.data(), part.data(), scratch.get());
      for (int i = 0; i < count; i++) ops.merge(&total[i], part[i], dim);
    }
    for (int i = 0; i < count; i++) ops.finish(total[i], dim, &out[size_t(i) * dim]);
    return out;
  };
  std::vector<float> want = run(*levels()[0], 0, num_q);
  for (int i = 0; i < num_q; i++) {
    int hi = context - n + i / group + 1, lo = window && hi > window ? hi - window : 0;
    std::vector<double> s(hi), o(dim);
    double top = -1e30, sum = 0;
    for (int t = lo; t < hi; t++) {
      s[t] = 0;
      const uint16_t* key = pages[t / kPage] + t % kPage;
      for (int d = 0; d < dim; d++) s[t] += double(q[size_t(i) * dim + d]) * from_bf16(key[d * kPage]);
      top = std::max(top, s[t] *= 0.3f);
    }
    for (int t = lo; t < hi; t++) {
      double e = std::exp(s[t] - top);
      sum += e;
      for (int d = 0; d < dim; d++) o[d] += e * from_bf16(pages[t / kPage][size_t(kPage) * dim + size_t(t % kPage) * dim + d]);
    }
    for (int d = 0; d < dim; d++)
      expect(std::fabs(o[d] / sum - want[size_t(i) * dim + d]) < 2e-5, "attention is wrong", "scalar", where);
  }
  for (const OpTable* ops : levels()) {
    std::vector<float> got = run(*ops, 0, num_q);
    expect(same(got.data(), want.data(), got.size()), "attention differs from scalar", ops->name, where);
    for (int i = 0; i < num_q; i += 5) {
      std::vector<float> alone = run(*ops, i, 1);
      expect(same(alone.data(), &want[size_t(i) * dim], dim), "query alone differs", ops->name, where);
    }
  }
}

// Every index of every phase once, and no phase before the one before it is done.
void check_phases() {
  constexpr int kIndices = 7, kPhases = 200;
  Team team(3);
  for (int run = 0; run < 20; run++) {
    std::vector<std::atomic<int>> count(kIndices * kPhases);
    std::atomic<int> early{0};
    team.run([&](Team::Member& member) {
      for (int phase = 0; phase < kPhases; phase++)
        member.for_each(phase % (kIndices + 1), [&](int i) {
          count[phase * kIndices + i]++;
          for (int j = 0; j < (phase - 1) % (kIndices + 1); j++) early += count[(phase - 1) * kIndices + j] != 1;
        });
    });
    int wrong = 0;
    for (int phase = 0; phase < kPhases; phase++)
      for (int i = 0; i < kIndices; i++) wrong += count[phase * kIndices + i] != (i < phase % (kIndices + 1));
    expect(wrong == 0, "an index was not run once", "team", "");
    expect(early == 0, "a phase began before the one before it was done", "team", "");
  }
}

// A member that does not get to run holds up nobody, and does no work twice when it comes.
void check_absence() {
  Team team(2);
  for (int run = 0; run < 20; run++) {
    std::atomic<bool> done{false};
    std::atomic<int> count{0};
    team.run([&](Team::Member& member) {
      while (member.thread == 1 && !done) std::this_thread::yield();
      for (int phase = 0; phase < 50; phase++) member.for_each(4, [&](int) { count++; });
      if (member.thread == 0) done = true;
    });
    expect(count == 200, "work was lost or done twice", "team", "");
  }
}

}  // namespace

int main() {
  check_phases();
  check_absence();
  std::vector<Format> formats;
  for (int bits : {2, 3, 4, 5, 6, 8})
    for (int group : {16, 32, 64})
      for (bool minimum : {false, true})
        for (bool two_level : {false, true})
          if (Format f{uint8_t(bits), uint8_t(group), minimum, two_level, Float::none}; f.valid()) formats.push_back(f);
  for (Float t : {Float::f32, Float::f16, Float::bf16}) formats.push_back({0, 0, false, false, t});
  for (int bits : {2, 3, 4, 5, 6, 8}) formats.push_back({uint8_t(bits), 64, false, false, Float::none, true});
  formats.push_back({0, 0, false, false, Float::bf16, true});
  for (const Format& f : formats)
    for (int num_x : {1, 2, 3, 7, 16, 29})
      check_matmul(f, num_x == 7 ? 33 : 48, f.two_level ? 512 : num_x == 16 ? 1216 : 96 + 32 * num_x, num_x);
  check_matmul({4, 32, false, false, Float::none}, 16, 50, 5);
  check_matmul({4, 32, false, false, Float::none, true}, 16, 50, 5);
  check_rows();
  check_attention(64, 3, 700, 1, 0);
  check_attention(64, 3, 300, 30, 0);
  check_attention(16, 1, 65, 65, 0);
  check_attention(80, 7, 257, 4, 0);
  check_attention(256, 4, 600, 9, 130);
  std::printf("%d failed\n", failures);
  return failures != 0;
}
