#pragma once

#include <string>

#include "bellows/data/source.h"

namespace bellows::data {

/// Opens a text file in which each line is one text. The text is a field "txt". Lines end in LF or CR LF. Empty lines
/// are samples, too, so that sample i is line i + 1. An empty line that has no tokens is a bad sample.
/// Params: path – a file, or a pipe such as /dev/stdin, which is read until its end
/// Cost:   memory for the whole file
/// Throws: c10::ValueError if the file cannot be read or is empty
SourcePtr open_text_lines(const std::string& path);

}  // namespace bellows::data
