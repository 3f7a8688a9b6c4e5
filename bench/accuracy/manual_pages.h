#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace bellows::bench {

/// Pieces of manual pages as word numbers, and which section each is of: 2, 3, 7, or one of 4 and 5.
/// Shapes: tokens int64 [N, length]; labels int64 [N], below 4
struct Texts {
  at::Tensor tokens, labels;
};

/// The pages that Debian's packages manpages and manpages-dev install, cut into pieces; every fifth page is held out whole.
/// Headers, comments and the names of the formatting commands are left out: they tell the section.
/// Params: vocabulary – words are numbered by a hash from 1 to below it; 0 fills the last piece
/// Throws: c10::ValueError – fewer than 500 pages in `folder`: says which packages to install
struct ManualPages {
  Texts train, held_out;
};
ManualPages read_manual_pages(const std::string& folder, int64_t vocabulary, int64_t length, int64_t pieces_a_page);

}  // namespace bellows::bench
