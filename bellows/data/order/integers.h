#pragma once

#include "bellows/data/sample.h"

namespace bellows::data {

/// Returns the number of integers in a field. For an integer array, it is the number of values. For a field of bytes,
/// such as the content of a file, it is the number of bytes. Returns -1 for arrays of other types.
int64_t integer_count(const Field& field);

/// Copies the integers [begin, begin + count) of the field to `out` and converts them to int64.
/// Params: begin, count – range within [0, integer_count())
void copy_integers(const Field& field, int64_t begin, int64_t count, int64_t* out);

}  // namespace bellows::data
