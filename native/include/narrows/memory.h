// Memory on huge pages, and how fast it can be read.
#pragma once
#include <cstddef>

namespace narrows {

// Zeroed anonymous memory, 2 MiB aligned and on huge pages where the kernel gives them. Touched lazily. Throws std::bad_alloc.
void* alloc_huge(size_t num_bytes);
void free_huge(void* p, size_t num_bytes);

// GB/s of `num_threads` threads reading their shares of a fresh buffer of num_bytes once, after it was written.
double read_bandwidth(size_t num_bytes, int num_threads);

}  // namespace narrows
