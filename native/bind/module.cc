// The Python face of the core.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind/arrays.h"
#include "narrows/memory.h"
#include "narrows/ops.h"
#include "narrows/select.h"

using namespace narrows;

NB_MODULE(_native, m) {
  m.doc() = "Narrows' native core: packing, the forward pass, and the selection of tokens.";

  m.def("isa", [] { return std::string(ops().name); }, "The ISA level in use.");
  m.def(
      "isas",
      [] {
        const OpTable* t[8];
        int n = list_ops(t, 8);
        std::vector<std::string> names;
        for (int i = 0; i < n; i++) names.push_back(t[i]->name);
        return names;
      },
      "The ISA levels this machine can run, slowest first.");

  m.def(
      "alloc_huge",
      [](size_t num_bytes) {
        void* p = alloc_huge(num_bytes);
        struct Block {
          void* p;
          size_t n;
        };
        nb::capsule owner(new Block{p, num_bytes}, [](void* b) noexcept {
          auto* block = static_cast<Block*>(b);
          free_huge(block->p, block->n);
          delete block;
        });
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(static_cast<uint8_t*>(p), {num_bytes}, owner);
      },
      "num_bytes"_a, "Zeroed bytes on huge pages where the kernel gives them.");
  m.def(
      "read_bandwidth",
      [](size_t num_bytes, int num_threads, int repeats) {
        require(num_threads > 0 && num_threads <= 256, "num_threads out of range");
        std::vector<double> out;
        nb::gil_scoped_release release;
        for (int i = 0; i < repeats; i++) out.push_back(read_bandwidth(num_bytes, num_threads));
        return out;
      },
      "num_bytes"_a, "num_threads"_a, "repeats"_a = 3, "GB/s of reading a buffer once, per repeat.");

  bind_weights(m);

  m.def(
      "argmax",
      [](Rows logits) {
        int32_t* out;
        auto array = new_array<int32_t>({logits.shape(0)}, &out);
        require(logits.shape(1) > 0, "no logits");
        nb::gil_scoped_release release;
        for (size_t r = 0; r < logits.shape(0); r++) out[r] = argmax(logits.data() + r * logits.shape(1), int(logits.shape(1)));
        return array;
      },
      "logits"_a, "logits [R, V] -> ids [R]");
  m.def(
      "sample",
      [](Vector logits, float temperature, int top_k, float top_p, float min_p, double uniform) {
        require(logits.size() > 0 && temperature > 0, "sample needs logits and a positive temperature");
        nb::gil_scoped_release release;
        return sample(logits.data(), int(logits.size()), {temperature, top_k, top_p, min_p, uniform});
      },
      "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "uniform"_a);
  m.def(
      "log_sum_exp",
      [](Rows logits) {
        double* out;
        auto array = new_array<double>({logits.shape(0)}, &out);
        nb::gil_scoped_release release;
        for (size_t r = 0; r < logits.shape(0); r++)
          out[r] = log_sum_exp(logits.data() + r * logits.shape(1), int(logits.shape(1)));
        return array;
      },
      "logits"_a, "logits [R, V] -> float64 [R]");
  m.def(
      "top_k",
      [](Rows logits, int k) {
        require(k > 0 && size_t(k) <= logits.shape(1), "k must be 1 to the vocabulary");
        int32_t* ids;
        float* values;
        auto a = new_array<int32_t>({logits.shape(0), size_t(k)}, &ids);
        auto b = new_array<float>({logits.shape(0), size_t(k)}, &values);
        {
          nb::gil_scoped_release release;
          for (size_t r = 0; r < logits.shape(0); r++)
            top_k(logits.data() + r * logits.shape(1), int(logits.shape(1)), k, ids + r * k, values + r * k);
        }
        return std::pair(a, b);
      },
      "logits"_a, "k"_a, "logits [R, V] -> (ids [R, k], values [R, k]), largest first");

  m.attr("PAGE_SIZE") = kPage;
  bind_model(m);
}
