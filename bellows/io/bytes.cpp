#include "bellows/io/bytes.h"

#include <array>

namespace bellows::io {

namespace {

struct MagicBytes {
  std::string_view start;
  std::string_view name;
};

using std::string_view_literals::operator""sv;

constexpr std::array known_starts{
    MagicBytes{"PK\x03\x04"sv, "a zip archive"},
    MagicBytes{"PK\x05\x06"sv, "an empty zip archive"},
    MagicBytes{"\x1f\x8b"sv, "a gzip file"},
    MagicBytes{"BZh"sv, "a bzip2 file"},
    MagicBytes{"\xfd"
               "7zXZ\0"sv,
               "an xz file"},
    MagicBytes{"\x28\xb5\x2f\xfd"sv, "a zstd file"},
    MagicBytes{"\x04\x22\x4d\x18"sv, "an lz4 file"},
    MagicBytes{"\x89PNG\r\n\x1a\n"sv, "a PNG image"},
    MagicBytes{"\xff\xd8\xff"sv, "a JPEG image"},
    MagicBytes{"GIF8"sv, "a GIF image"},
    MagicBytes{"BM"sv, "a BMP image"},
    MagicBytes{"II*\0"sv, "a TIFF image"},
    MagicBytes{"MM\0*"sv, "a TIFF image"},
    MagicBytes{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file (Keras and older tools)"},
    MagicBytes{"\x93NUMPY"sv, "a NumPy array"},
    MagicBytes{"%PDF"sv, "a PDF document"},
    MagicBytes{"GGUF"sv, "a GGUF model"},
    MagicBytes{"\x7f"
               "ELF"sv,
               "an ELF program or library"},
    MagicBytes{"version https://git-lfs"sv,
               "a git-lfs pointer instead of the file (run git lfs pull to download the file)"},
    MagicBytes{"<!DOCTYPE"sv, "an HTML page instead of the file"},
    MagicBytes{"<!doctype"sv, "an HTML page instead of the file"},
    MagicBytes{"<html"sv, "an HTML page instead of the file"},
    MagicBytes{"<HTML"sv, "an HTML page instead of the file"},
    MagicBytes{"<?xml"sv, "an XML document"},
    MagicBytes{"{"sv, "JSON text"},
    // The magic number 0x1950a86a20f9469cfc6c as a separate pickle, the start of torch.save files before PyTorch 1.6.
    MagicBytes{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv,
               "a torch.save file of the format before PyTorch 1.6"},
    MagicBytes{"\x80\x02"sv, "a Python pickle"},
    MagicBytes{"\x80\x03"sv, "a Python pickle"},
    MagicBytes{"\x80\x04"sv, "a Python pickle"},
    MagicBytes{"\x80\x05"sv, "a Python pickle"},
};

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, limit)) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code < 0x7f && c != '"' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', digits[code >> 4], digits[code & 15]};
    }
  }
  return out + (text.size() > limit ? "…\"" : "\"");
}

std::string describe_content(ByteSpan bytes) {
  if (bytes.empty()) return "an empty file";
  const std::string_view text = as_text(bytes);
  for (const MagicBytes& signature : known_starts) {
    if (text.starts_with(signature.start)) return std::string(signature.name);
  }
  if (text.size() >= 262 && text.substr(257, 5) == "ustar") return "a tar archive";
  if (text.find_first_not_of('\0') == std::string_view::npos) return "only zero bytes";
  return "unknown content that begins with " + printable(text, 16);
}

}  // namespace bellows::io
