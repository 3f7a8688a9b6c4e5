#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// A function that returns the tokens of a text. It must be deterministic. To reject a text, it throws c10::ValueError.
/// Threads: must be thread-safe, because several threads call the function at the same time
using Tokenizer = std::function<std::vector<int64_t>(std::string_view text)>;

/// Returns `source` with a text replaced by its tokens, an int64 array "tokens" [n]. A text is tokenized each time it
/// is read, in the loader's threads. `read_lengths(*source, "tokens")` returns the lengths that packing and length
/// buckets need.
/// Params: field – "txt" for WebDataset shards, or a column of a CSV or JSON Lines file
/// Throws: c10::ValueError if `source` is null or `tokenizer` is empty. read() throws c10::ValueError if the field is
///         missing or is not a text, or if the sample already has a field "tokens". read() throws StepError if the
///         tokenizer throws an exception other than c10::ValueError
SourcePtr tokenized(SourcePtr source, Tokenizer tokenizer, std::string field = "txt");

}  // namespace bellows::data
