// Arrays that cross between Python and the core, and packed matrices among them. Only the files of this folder know Python.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "narrows/format.h"
#include "narrows/ops.h"

namespace narrows {
namespace nb = nanobind;
using namespace nb::literals;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const bool, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline void require(bool ok, const std::string& message) {
  if (!ok) throw std::invalid_argument(message);
}

// A level of this machine by name; empty: the one in use.
inline const OpTable* find_level(const std::string& isa) {
  const OpTable* table = isa.empty() ? &ops() : find_ops(isa.c_str());
  require(table, "ISA level `" + isa + "` is not one of this machine's");
  return table;
}

template <class T, int N>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<N>>;

template <class T, int N>
Array<T, N> new_array(const size_t (&shape)[N], T** data) {
  size_t n = 1;
  for (size_t s : shape) n *= s;
  T* p = new T[n];
  *data = p;
  nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<T*>(q); });
  return Array<T, N>(p, N, shape, owner);
}

constexpr int kMaxSide = 1 << 26;

// The Packed of narrows.weights, borrowed. Throws invalid_argument, with its name, for one whose bytes do not fit its shape.
Matrix to_matrix(nb::handle o, const std::string& name);

// Packing, unpacking and multiplying: the part of the module that knows no model.
void bind_weights(nb::module_& m);
// The class Model.
void bind_model(nb::module_& m);

}  // namespace narrows
