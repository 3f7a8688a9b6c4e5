#pragma once

#include <string>
#include <string_view>

namespace bellows {

/// Text as HTML or SVG, for elements and quoted attributes. Control characters other than line breaks become spaces.
std::string escape_html(std::string_view text);

/// The beginning of a self-contained page, up to and including `<main>`. The colours --paper, --card, --ink, --soft and
/// --line follow the reader's choice of light or dark; charts, tables, `.key` and `.scroll` have a style.
/// Params: title – text
///         style – CSS of the page, which comes after the shared rules
std::string begin_page(std::string_view title, std::string_view style);

}  // namespace bellows
