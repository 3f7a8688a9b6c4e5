#pragma once

#include <string>
#include <string_view>

namespace bellows {

/// Escapes text for HTML or SVG elements and quoted attributes. Control characters other than line breaks become
/// spaces.
std::string escape_html(std::string_view text);

/// Returns the start of a self-contained page, up to and including `<main>`. The page defines the colors --paper,
/// --card, --ink, --soft and --line, which follow the browser's light or dark mode. The page also contains styles for
/// charts, tables, legends (`.key`) and wide content that scrolls horizontally (`.scroll`).
/// Params: title – plain text
///         style – CSS that is added after the shared rules
std::string begin_page(std::string_view title, std::string_view style);

}  // namespace bellows
