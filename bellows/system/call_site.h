#pragma once

#include <string>

namespace bellows {

/// Returns the innermost stack frame that belongs neither to libtorch nor to Bellows, such as "train_step(Batch const&)
/// (trainer+0x4c1a)". To find the source line, pass the file and the offset in parentheses to addr2line. Returns "" if
/// there is no such frame, for example on autograd's worker threads. Names come from the symbol tables of the program
/// and its libraries. Without symbols, the result contains only the file and the offset.
/// Cost: about 20 µs; up to several milliseconds for a frame that is looked up for the first time
std::string call_site();

}  // namespace bellows
