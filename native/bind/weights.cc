// Packed matrices, to and from Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <random>
#include <variant>

#include "bind/arrays.h"
#include "narrows/memory.h"
#include "narrows/model.h"
#include "narrows/pack.h"
#include "narrows/threads.h"

namespace narrows {
namespace {

Float float_type(const std::string& name) {
  if (name.empty() || name == "none") return Float::none;
  if (name == "f32") return Float::f32;
  if (name == "f16") return Float::f16;
  if (name == "bf16") return Float::bf16;
  throw std::invalid_argument("unknown float type `" + name + "`");
}

const char* float_name(Float f) {
  const char* names[] = {"", "f32", "f16", "bf16"};
  return names[int(f)];
}

// Any object with bits, group, minimum, two_level, type: the Format of narrows.weights.
Format to_format(nb::handle o) {
  Format f;
  int bits = nb::cast<int>(o.attr("bits")), group = nb::cast<int>(o.attr("group"));
  require(bits >= 0 && bits <= 8 && group >= 0 && group <= 64, "format: bits or group out of range");
  f.bits = uint8_t(bits);
  f.group = uint8_t(group);
  f.minimum = nb::cast<bool>(o.attr("minimum"));
  f.two_level = nb::cast<bool>(o.attr("two_level"));
  f.type = float_type(nb::cast<std::string>(o.attr("type")));
  f.sparse = nb::cast<bool>(o.attr("sparse"));
  require(f.valid(), "format: no such combination of bits, group, minimum, two_level and sparse");
  return f;
}

// w x for a packed matrix, through the kernels of any level of this machine, on one thread.
Array<float, 2> matmul(nb::object packed, Rows x, const std::string& isa) {
  Matrix w = to_matrix(packed, "packed");
  const OpTable* table = find_level(isa);
  require(int(x.shape(1)) == w.cols, "x must have as many columns as the matrix");
  int rows = int(x.shape(0));
  float* y;
  auto out = new_array<float>({size_t(rows), size_t(w.rows)}, &y);
  nb::gil_scoped_release release;
  ActivationBuffer a;
  a.reserve(rows, w.cols).f = x.data();
  for (int t = 0; t < rows; t++) table->quantize(x.data() + size_t(t) * w.cols, t, 0, a.view.num_units(), a.view);
  Buffer<uint8_t> scratch;
  table->matmul(w, a.view, 0, num_tiles(w.rows), y, w.rows, scratch.reserve(matmul_scratch(rows)));
  return out;
}

// Seconds of each of `repeats` passes over all matrices, with random activations of `rows` rows, on the threads of a forward.
std::vector<double> time_products(nb::list matrices, int rows, int num_threads, int repeats, const std::string& isa) {
  const OpTable* table = find_level(isa);
  require(rows > 0 && rows <= 4096 && num_threads > 0 && num_threads <= 256 && nb::len(matrices) > 0,
          "time_products needs matrices, rows and threads");
  std::vector<Matrix> list;
  int widest = 0;
  for (nb::handle o : matrices) {
    Matrix w = list.emplace_back(to_matrix(o, "packed"));
    require(w.cols == list[0].cols, "the matrices differ in columns");
    widest = std::max(widest, w.rows);
  }
  std::vector<float> x(size_t(rows) * list[0].cols), y(size_t(rows) * widest);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  nb::gil_scoped_release release;
  ActivationBuffer a;
  a.reserve(rows, list[0].cols).f = x.data();
  for (int t = 0; t < rows; t++) table->quantize(x.data() + size_t(t) * list[0].cols, t, 0, a.view.num_units(), a.view);
  std::vector<Buffer<uint8_t>> scratch(num_threads);
  for (auto& s : scratch) s.reserve(matmul_scratch(rows));
  Team team(num_threads);
  std::vector<double> out;
  for (int i = 0; i < repeats; i++) {
    auto start = std::chrono::steady_clock::now();
    team.run([&](Team::Member& member) {
      for (const Matrix& w : list) {
        int tiles = num_tiles(w.rows), step = std::max(1, tiles / (num_threads * 4));
        member.for_each((tiles + step - 1) / step, [&](int n) {
          table->matmul(w, a.view, n * step, std::min(tiles, (n + 1) * step), y.data(), w.rows, scratch[member.thread].get());
        });
      }
    });
    out.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return out;
}

}  // namespace

Matrix to_matrix(nb::handle o, const std::string& name) {
  Matrix m;
  m.format = to_format(o.attr("format"));
  m.rows = nb::cast<int>(o.attr("rows"));
  m.cols = nb::cast<int>(o.attr("cols"));
  require(m.rows > 0 && m.cols > 0 && m.rows < kMaxSide && m.cols < kMaxSide, name + ": rows or cols out of range");
  auto data = nb::cast<Bytes>(o.attr("data"));
  m.data = data.data();
  if (m.format.sparse) {
    size_t tiles = num_tiles(m.rows), end = 8 * (tiles + 1);
    require(data.size() >= end + 64, name + ": packed data is shorter than its table of tiles");
    const Layout at(m.format, m.cols);
    // In pairs a tile is half as many codes as a dense one, and a bit a weight.
    size_t in_pairs = at.tile_bytes - size_t(at.num_units) * (at.unit_bytes / 2 - 64);
    for (size_t i = 0; i <= tiles; i++) {
      size_t start = m.offset(int(i));
      bool known = i == 0 || !m.in_pairs(int(i) - 1) || start - end == in_pairs;
      require(known && start >= end && start <= data.size() - 64, name + ": its table of tiles is damaged");
      end = start;
    }
    require(!m.in_pairs(int(tiles)), name + ": its table of tiles is damaged");
  }
  require(data.size() >= m.bytes(), name + ": packed data is shorter than its shape and format need");
  require(reinterpret_cast<uintptr_t>(m.data) % 64 == 0, name + ": packed data is not aligned to 64 bytes");
  return m;
}

void bind_weights(nb::module_& m) {
  m.def(
      "gguf_format",
      [](int type) -> std::optional<std::tuple<int, int, bool, bool, std::string>> {
        Format f;
        if (!gguf_format(type, &f)) return std::nullopt;
        return std::tuple(int(f.bits), int(f.group), f.minimum, f.two_level, std::string(float_name(f.type)));
      },
      "type"_a, "(bits, group, minimum, two_level, type) of the format that holds a GGUF tensor type exactly, or None.");
  m.def("gguf_row_bytes", &gguf_row_bytes, "type"_a, "cols"_a,
        "Bytes of a row of a GGUF type; 0 when cols is not a whole number of blocks.");
  m.def(
      "packed_bytes",
      [](nb::object format, int rows, int cols) {
        require(rows > 0 && cols > 0 && rows < kMaxSide && cols < kMaxSide, "rows or cols out of range");
        Format f = to_format(format);
        require(!f.sparse, "the size of a sparse matrix depends on what it keeps");
        return packed_bytes(f, rows, cols);
      },
      "format"_a, "rows"_a, "cols"_a);
  m.def(
      "pack_gguf",
      [](int type, Bytes src, int rows, int cols, BytesOut dst, int num_threads) {
        Format f;
        require(gguf_format(type, &f), "GGUF type " + std::to_string(type) + " is not supported");
        require(rows > 0 && cols > 0 && rows < kMaxSide && cols < kMaxSide, "rows or cols out of range");
        size_t row = gguf_row_bytes(type, cols);
        require(row && src.size() == row * rows, "source bytes do not match rows and cols");
        require(dst.size() >= packed_bytes(f, rows, cols), "destination too short");
        nb::gil_scoped_release release;
        pack_gguf(type, src.data(), rows, cols, dst.data(), num_threads);
      },
      "type"_a, "src"_a, "rows"_a, "cols"_a, "dst"_a, "num_threads"_a = 1);
  m.def(
      "pack_float",
      [](nb::object format, Rows w, BytesOut dst, int num_threads) {
        Format f = to_format(format);
        int rows = int(w.shape(0)), cols = int(w.shape(1));
        require(rows > 0 && cols > 0 && !f.sparse, "empty matrix, or a sparse format");
        require(dst.size() >= packed_bytes(f, rows, cols), "destination too short");
        nb::gil_scoped_release release;
        pack_float(f, w.data(), rows, cols, dst.data(), num_threads);
      },
      "format"_a, "w"_a, "dst"_a, "num_threads"_a = 1);
  m.def(
      "pack_sparse",
      [](nb::object format, nb::object codes, Masks mask, Words scales, int num_threads, const std::string& isa) {
        const OpTable* table = find_level(isa);
        Format f = to_format(format);
        require(f.sparse, "format: not a sparse one");
        std::variant<Codes, Words> values;
        if (f.bits)
          values = nb::cast<Codes>(codes);
        else
          values = nb::cast<Words>(codes);
        auto [data, rows, cols] = std::visit(
            [](auto& c) { return std::tuple(reinterpret_cast<const uint8_t*>(c.data()), c.shape(0), c.shape(1)); }, values);
        require(rows > 0 && cols > 0 && rows < kMaxSide && cols < kMaxSide, "rows or cols out of range");
        require(mask.shape(0) == rows && mask.shape(1) == cols, "mask and codes differ in shape");
        size_t groups = f.bits ? (cols + f.group - 1) / f.group : 0;
        require(!f.bits || (scales.shape(0) == rows && scales.shape(1) == groups), "scales must be [rows, groups]");
        Kept w{int(rows), int(cols), data, reinterpret_cast<const uint8_t*>(mask.data()), scales.data()};
        size_t size;
        uint8_t* out;
        {
          nb::gil_scoped_release release;
          size = sparse_bytes(f, w, num_threads);
        }
        auto array = new_array<uint8_t>({size}, &out);
        nb::gil_scoped_release release;
        pack_sparse(f, w, table->pairs, out, num_threads);
        return array;
      },
      "format"_a, "codes"_a, "mask"_a, "scales"_a, "num_threads"_a = 1, "isa"_a = "",
      "Bytes of the kept weights in a sparse format, as a level's products like them best: codes [rows, cols] uint8\n"
      "(uint16 for bf16), mask [rows, cols] bool, scales [rows, groups] as the uint16 bits of float16.");
  m.def(
      "unpack_row",
      [](nb::object packed, int row) {
        Matrix w = to_matrix(packed, "packed");
        require(row >= 0 && row < w.rows, "row out of range");
        float* out;
        auto array = new_array<float>({size_t(w.cols)}, &out);
        unpack_row(w, row, out);
        return array;
      },
      "packed"_a, "row"_a);
  m.def("matmul", &matmul, "packed"_a, "x"_a, "isa"_a = "", "y [T, rows] = x [T, cols] w^T through the kernels, one thread.");

  m.def("time_products", &time_products, "matrices"_a, "rows"_a, "num_threads"_a, "repeats"_a, "isa"_a = "",
        "Seconds of each of `repeats` passes over packed matrices of equal cols, `rows` rows of activations each.");
}

}  // namespace narrows
