#pragma once

#include <string>
#include <string_view>

namespace bellows {

/// Escapes text for HTML or SVG elements and quoted attributes. Control characters other than line breaks become
/// spaces.
std::string escape_html(std::string_view text);

/// Returns the start of a self-contained page, up to and including `<main>`. The colors --paper, --card, --ink, --soft
/// and --line follow the browser's light or dark mode. Charts, tables, `.key` and `.scroll` have a style.
/// Params: title – text
///         style – CSS that follows the shared rules
std::string begin_page(std::string_view title, std::string_view style);

}  // namespace bellows
