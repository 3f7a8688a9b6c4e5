#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::quant {

/// Stores integers of fewer than 8 bits without gaps. Each row (the last dim) begins at a byte. Value i of a row has the
/// bits [i · bits, (i + 1) · bits) of the row's bytes, beginning with the least significant bit of byte 0. For 4 bits, the
/// low half of a byte therefore comes first, as in the files of GPTQ and AWQ. Signed integers are stored in two's
/// complement.
/// Params:  values – int8 or uint8, [*, n]
///          bits   – 1 to 8
/// Returns: uint8, [*, ceil(n · bits / 8)]
/// Throws:  c10::ValueError if a value needs more bits
at::Tensor pack_bits(const at::Tensor& values, int bits);

/// The inverse of pack_bits().
/// Params: n – number of values in a row
/// Throws: c10::ValueError if the rows have a different number of bytes
at::Tensor unpack_bits(const at::Tensor& packed, int bits, int64_t n, bool is_signed);

}  // namespace bellows::quant
