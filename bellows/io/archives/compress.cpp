#include "bellows/io/archives/compress.h"

#include <brotli/decode.h>
#include <brotli/encode.h>
#include <bzlib.h>
#include <c10/util/Exception.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>

#include "bellows/core/error.h"
#include "bellows/io/archives/decompress.h"
#include "bellows/io/crc32.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::io {

namespace {

struct CodecRow {
  std::string_view name;
  Codec::Kind kind;
  int usual, first, last;  // levels
};

constexpr std::array kCodecs{
    CodecRow{"br", Codec::Kind::brotli, 11, 0, 11}, CodecRow{"bz2", Codec::Kind::bzip2, 9, 1, 9},
    CodecRow{"gz", Codec::Kind::gzip, 9, 0, 9},     CodecRow{"snappy", Codec::Kind::snappy, 0, 0, 0},
    CodecRow{"zstd", Codec::Kind::zstd, 3, 1, 22},
};

template <class T>
T* pointer(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}
template <class T>
const T* pointer(ByteSpan bytes) {
  return reinterpret_cast<const T*>(bytes.data());
}

/// Allocates `capacity` bytes; `fill` writes to them and returns the number of bytes used.
Bytes filled(size_t capacity, const char* what, const std::function<bool(std::byte* out, size_t* size)>& fill) {
  Bytes out(capacity);
  size_t size = capacity;
  TORCH_CHECK(fill(out.data(), &size), "compress: ", what, " failed on its input.");
  out.resize(size);
  return out;
}

/// Passes the input to zlib in pieces that fit its 32-bit counters.
class ZlibInput {
 public:
  explicit ZlibInput(ByteSpan bytes) : bytes_(bytes) {}
  void feed(z_stream& stream) {
    if (stream.avail_in > 0) return;
    const size_t take = std::min<size_t>(bytes_.size(), 1 << 30);
    stream.next_in = const_cast<Bytef*>(pointer<Bytef>(bytes_));
    stream.avail_in = static_cast<uInt>(take);
    bytes_ = bytes_.subspan(take);
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  ByteSpan bytes_;
};

Bytes deflate_raw(ByteSpan bytes, int level) {
  z_stream stream{};
  TORCH_CHECK(deflateInit2(&stream, level, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK, "compress: out of memory.");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, deflateEnd);
  ZlibInput input(bytes);
  Bytes out;
  for (int rc = Z_OK; rc != Z_STREAM_END;) {
    constexpr size_t step = 1 << 20;
    const size_t before = out.size();
    out.resize(before + step);
    input.feed(stream);
    stream.next_out = pointer<Bytef>(out.data() + before);
    stream.avail_out = step;
    rc = deflate(&stream, input.at_end() ? Z_FINISH : Z_NO_FLUSH);
    TORCH_CHECK(rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR, "compress: zlib failed with ", rc, ".");
    out.resize(before + step - stream.avail_out);
  }
  return out;
}

/// The header and trailer of Python's gzip module.
Bytes make_gzip(ByteSpan bytes, int level) {
  std::string text("\x1f\x8b\x08\0\0\0\0\0", 8);
  text += level == 9 ? '\2' : level == 1 ? '\4' : '\0';
  text += '\xff';
  std::string trailer;
  append_little(trailer, crc32(bytes));
  append_little(trailer, static_cast<uint32_t>(bytes.size()));
  Bytes out(as_bytes(text).begin(), as_bytes(text).end());
  const Bytes body = deflate_raw(bytes, level);
  out.insert(out.end(), body.begin(), body.end());
  out.insert(out.end(), as_bytes(trailer).begin(), as_bytes(trailer).end());
  return out;
}

/// Output that grows as it is filled, up to one byte more than the expected size, which shows that the size is wrong.
class GrowingOutput {
 public:
  GrowingOutput(uint64_t size, std::string_view where) : size_(size), where_(where) {}

  /// Space for more output; empty if there is too much output.
  std::span<std::byte> room() {
    if (used_ == out_.size()) {
      const uint64_t wanted = std::max<uint64_t>(2 * out_.size(), 1 << 16);
      out_.resize(std::min(wanted, size_ + 1));
    }
    return std::span(out_).subspan(used_);
  }
  void advance(size_t bytes) {
    used_ += bytes;
    TORCH_CHECK_VALUE(used_ <= size_, where_, ": expected ", size_, " unpacked bytes, found more.");
  }
  Bytes finish(bool whole) {
    TORCH_CHECK_VALUE(whole, where_, ": the compressed data is truncated or corrupt after ", used_,
                      " unpacked bytes of ", size_, ".");
    TORCH_CHECK_VALUE(used_ == size_, where_, ": expected ", size_, " unpacked bytes, found ", used_, ".");
    out_.resize(used_);
    return std::move(out_);
  }

 private:
  uint64_t size_;
  std::string_view where_;
  Bytes out_;
  size_t used_ = 0;
};

/// Params: window_bits – zlib's: -15 for a raw deflate stream, 31 for gzip
Bytes inflate_whole(ByteSpan bytes, int window_bits, uint64_t size, std::string_view where) {
  z_stream stream{};
  TORCH_CHECK(inflateInit2(&stream, window_bits) == Z_OK, where, ": out of memory.");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  ZlibInput input(bytes);
  GrowingOutput out(size, where);
  for (;;) {
    input.feed(stream);
    const auto room = out.room();
    stream.next_out = pointer<Bytef>(room.data());
    const auto given = static_cast<uInt>(std::min<size_t>(room.size(), 1 << 30));
    stream.avail_out = given;
    const int rc = inflate(&stream, Z_NO_FLUSH);
    out.advance(given - stream.avail_out);
    if (rc == Z_OK) continue;
    const bool all_used = stream.avail_in == 0 && input.at_end();
    if (rc != Z_STREAM_END || all_used || window_bits < 0) return out.finish(rc == Z_STREAM_END && all_used);
    if (inflateReset(&stream) != Z_OK) return out.finish(false);  // several gzip members may follow each other
  }
}

Bytes unpack_brotli(ByteSpan bytes, uint64_t size, std::string_view where) {
  const std::unique_ptr<BrotliDecoderState, void (*)(BrotliDecoderState*)> decoder(
      BrotliDecoderCreateInstance(nullptr, nullptr, nullptr), BrotliDecoderDestroyInstance);
  TORCH_CHECK(decoder, where, ": out of memory.");
  GrowingOutput out(size, where);
  size_t left = bytes.size();
  const auto* next = pointer<uint8_t>(bytes);
  for (;;) {
    const auto room = out.room();
    size_t available = room.size();
    auto* to = pointer<uint8_t>(room.data());
    const auto result = BrotliDecoderDecompressStream(decoder.get(), &left, &next, &available, &to, nullptr);
    out.advance(room.size() - available);
    if (result != BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT)
      return out.finish(result == BROTLI_DECODER_RESULT_SUCCESS && left == 0);
  }
}

Bytes unpack_snappy(ByteSpan bytes, uint64_t size, std::string_view where) {
  size_t found = 0;
  const bool sized = snappy::GetUncompressedLength(pointer<char>(bytes), bytes.size(), &found);
  // The shortest elements are three bytes for 64 output bytes.
  TORCH_CHECK_VALUE(sized && found / 22 <= bytes.size(), where, ": the compressed data is truncated or corrupt.");
  TORCH_CHECK_VALUE(found == size, where, ": expected ", size, " unpacked bytes, found ", found, ".");
  Bytes out(found);
  TORCH_CHECK_VALUE(snappy::RawUncompress(pointer<char>(bytes), bytes.size(), pointer<char>(out.data())), where,
                    ": the compressed data is truncated or corrupt.");
  return out;
}

}  // namespace

Codec Codec::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::vector<std::string> names;
  for (const CodecRow& row : kCodecs) {
    names.emplace_back(row.name);
    if (row.name != name) continue;
    Codec codec{.kind = row.kind, .level = row.usual, .extension = std::string(name)};
    if (colon == std::string_view::npos) return codec;
    const auto level = parse_int(text.substr(colon + 1));
    TORCH_CHECK_VALUE(
        level && row.last > 0 && *level >= row.first && *level <= row.last, "compression: expected ", name,
        row.last > 0 ? c10::str(":", row.first, " to ", name, ":", row.last) : std::string(" without a level"),
        ", got ", printable(text), ".");
    codec.level = static_cast<int>(*level);
    return codec;
  }
  TORCH_CHECK_VALUE(false, "compression: expected one of ", c10::Join(", ", names), ", got ", printable(text), ".",
                    did_you_mean(name, names));
}

Bytes compress(ByteSpan bytes, const Codec& codec) {
  switch (codec.kind) {
    case Codec::Kind::gzip:
      return make_gzip(bytes, codec.level);
    case Codec::Kind::bzip2:
      TORCH_CHECK_VALUE(bytes.size() < uint64_t{1} << 31, "compress: bz2 compresses less than 2 GiB at once, got ",
                        bytes.size(), " bytes. Make the shards smaller.");
      return filled(bytes.size() + bytes.size() / 100 + 600, "bzip2", [&](std::byte* out, size_t* size) {
        auto length = static_cast<unsigned>(*size);
        auto* from = const_cast<char*>(pointer<char>(bytes));
        const int rc = BZ2_bzBuffToBuffCompress(pointer<char>(out), &length, from, static_cast<unsigned>(bytes.size()),
                                                codec.level, 0, 0);
        *size = length;
        return rc == BZ_OK;
      });
    case Codec::Kind::brotli:
      return filled(BrotliEncoderMaxCompressedSize(bytes.size()) + 16, "brotli", [&](std::byte* out, size_t* size) {
        return BrotliEncoderCompress(codec.level, BROTLI_DEFAULT_WINDOW, BROTLI_MODE_GENERIC, bytes.size(),
                                     pointer<uint8_t>(bytes), size, pointer<uint8_t>(out)) == BROTLI_TRUE;
      });
    case Codec::Kind::snappy:
      return filled(snappy::MaxCompressedLength(bytes.size()), "snappy", [&](std::byte* out, size_t* size) {
        snappy::RawCompress(pointer<char>(bytes), bytes.size(), pointer<char>(out), size);
        return true;
      });
    case Codec::Kind::zstd:
      break;
  }
  return filled(ZSTD_compressBound(bytes.size()), "zstd", [&](std::byte* out, size_t* size) {
    *size = ZSTD_compress(out, *size, bytes.data(), bytes.size(), codec.level);
    return ZSTD_isError(*size) == 0;
  });
}

Bytes uncompress(ByteSpan bytes, const Codec& codec, uint64_t size, std::string_view where) {
  if (codec.kind == Codec::Kind::gzip) return inflate_whole(bytes, 31, size, where);
  if (codec.kind == Codec::Kind::brotli) return unpack_brotli(bytes, size, where);
  if (codec.kind == Codec::Kind::snappy) return unpack_snappy(bytes, size, where);
  const Compression expected = codec.kind == Codec::Kind::bzip2 ? Compression::bzip2 : Compression::zstd;
  TORCH_CHECK_VALUE(detect_compression(bytes) == expected, where, ": expected a ", codec.extension, " file, found ",
                    describe_content(bytes), ".");
  Bytes out = decompress(bytes, where, size);
  TORCH_CHECK_VALUE(out.size() == size, where, ": expected ", size, " unpacked bytes, found ", out.size(), ".");
  return out;
}

Bytes inflate_raw(ByteSpan bytes, uint64_t size, std::string_view where) {
  return inflate_whole(bytes, -15, size, where);
}

}  // namespace bellows::io
