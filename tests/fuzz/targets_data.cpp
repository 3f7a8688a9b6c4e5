#include <cstdlib>

#include "bellows/data/dataset_json.h"
#include "bellows/data/formats/example_fields.h"
#include "bellows/data/select/subset.h"
#include "bellows/io/network/http_transfer.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

void dataset_json(io::ByteSpan bytes) {
  rejecting([&] {
    data::DatasetInfo info;
    for (const auto& [split, pattern] : data::parse_dataset_json(io::as_text(bytes), "fuzz", info)) {
      touch(io::as_bytes(split));
      touch(io::as_bytes(pattern));
    }
    for (const int64_t size : info.image_size)
      if (size < 0) std::abort();
  });
}

void subset(io::ByteSpan bytes) {
  rejecting([&] {
    const data::Subset subset = data::parse_subset(io::as_text(bytes), "fuzz");
    for (size_t i = 0; i < subset.ids.size(); ++i) {
      const int64_t id = subset.ids[i];
      if (id < 0 || id >= subset.of || (i > 0 && subset.ids[i - 1] >= id)) std::abort();
    }
  });
}

void example_fields(io::ByteSpan bytes) {
  rejecting([&] {
    data::ExampleWorkspace workspace;
    data::Sample sample;
    workspace.example.parse(bytes);
    data::make_example_fields(workspace, {}, io::as_text(bytes), sample);
    for (const data::Field& field : sample.fields) {
      touch(io::as_bytes(field.name));
      touch(field.bytes);
      size_t size = c10::elementSize(field.dtype);
      for (const int64_t side : field.sizes) size *= static_cast<size_t>(side);
      if (field.is_array && size != field.bytes.size()) std::abort();
    }
  });
}

void http_headers(io::ByteSpan bytes) {
  const std::string_view text = io::as_text(bytes);
  io::HttpHeaders headers;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    headers.take(text.substr(begin, end - begin));
    begin = end;
  }
  touch(io::as_bytes(headers.file.etag));
  for (const auto& number : {headers.length, headers.range_begin, headers.total})
    if (number && *number > INT64_MAX) std::abort();
  touch(io::as_bytes(io::public_url(text)));
  touch(io::as_bytes(io::unsigned_url(text)));
}

}  // namespace bellows::fuzz
