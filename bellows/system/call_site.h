#pragma once

#include <string>

namespace bellows {

/// The place in the user's code that led to the present call: the innermost frame that belongs neither to libtorch
/// nor to Bellows, as "train_step(Batch const&) (trainer+0x4c1a)"; the part in brackets goes to addr2line. "" when
/// there is none, as on autograd's worker threads. Names come from the symbol tables of the program and its
/// libraries; stripped ones give the address only.
/// Cost: about 20 µs; a frame seen for the first time up to milliseconds
std::string call_site();

}  // namespace bellows
