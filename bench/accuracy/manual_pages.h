#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace bellows::bench {

/// Pieces of manual pages as token ids. The label is the section: 2, 3, 7, or one class for 4 and 5.
/// Shapes: tokens int64 [N, length]; labels int64 [N], below 4
struct Texts {
  at::Tensor tokens, labels;
};

/// Reads the pages of Debian's packages manpages and manpages-dev and cuts them into pieces. Every fifth page is held out completely.
/// Headers, comments and the names of formatting commands are left out, because they reveal the section.
/// Params: vocabulary – words get ids from 1 to `vocabulary` - 1 by a hash; 0 fills the last piece
/// Throws: c10::ValueError if `folder` has fewer than 500 pages. The message names the packages to install
struct ManualPages {
  Texts train, held_out;
};
ManualPages read_manual_pages(const std::string& folder, int64_t vocabulary, int64_t length, int64_t pieces_a_page);

}  // namespace bellows::bench
