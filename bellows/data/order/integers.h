#pragma once

#include "bellows/data/sample.h"

namespace bellows::data {

/// Number of integers in a field: the values of an integer array, or the bytes of a file. -1 for other types.
int64_t integer_count(const Field& field);

/// Copies integers [begin, begin + count) of the field to `out`, converted to int64.
/// Params: begin, count – within integer_count
void copy_integers(const Field& field, int64_t begin, int64_t count, int64_t* out);

}  // namespace bellows::data
