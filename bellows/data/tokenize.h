#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// The tokens of a text; always the same for the same text. It refuses a text by a c10::ValueError.
/// Threads: called from several threads at once.
using Tokenizer = std::function<std::vector<int64_t>(std::string_view text)>;

/// `source` with a text's tokens in its place: an int64 array "tokens" [n]. Texts are tokenized as they are read, by the
/// loader's threads; `read_lengths(*source, "tokens")` gives the lengths that packing and buckets are made of.
/// Params: field – "txt" of WebDataset shards, a column of CSV and JSON Lines files
/// Throws: c10::ValueError – null, no function; read() – no such field, or one that is no text, "tokens" besides it;
///         StepError – the tokenizer threw anything but a c10::ValueError
SourcePtr tokenized(SourcePtr source, Tokenizer tokenizer, std::string field = "txt");

}  // namespace bellows::data
