#include <cstdlib>

#include "bellows/io/archives/decompress.h"
#include "bellows/io/records/example.h"
#include "bellows/io/records/recordio.h"
#include "bellows/io/records/tfrecord.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

void tfrecord(io::ByteSpan bytes) {
  const std::string_view file = io::as_text(bytes);
  rejecting([&] {
    for (const auto& [offset, size] : io::scan_tfrecord(file, "fuzz")) {
      const std::string_view record = io::tfrecord_at(file, offset, "fuzz");
      if (record.size() + 16 != size) std::abort();
      tf_example(io::as_bytes(record));
    }
  });
  // The bytes as the index of a file of three records.
  std::string small;
  for (const char* record : {"", "a", "record"}) io::append_tfrecord(small, record);
  rejecting([&] {
    if (io::parse_tfrecord_index(file, small, "fuzz", "file") != io::scan_tfrecord(small, "file")) std::abort();
  });
  rejecting([&] { touch(io::decompress_zlib(bytes, "fuzz", 1 << 24)); });
}

void tf_example(io::ByteSpan bytes) {
  rejecting([&] {
    io::ExampleReader example;
    example.parse(bytes);
    for (const io::ExampleFeature& feature : example.features()) {
      for (const io::ByteSpan piece : example.pieces(feature)) touch(piece);
      // Exactly the memory that is needed: AddressSanitizer sees a byte too many.
      if (feature.kind == io::ExampleFeature::Kind::floats) {
        io::Bytes values(feature.count * 4);
        example.copy_floats(feature, values.data());
      } else if (feature.kind == io::ExampleFeature::Kind::int64s) {
        io::Bytes values(feature.count * 8);
        example.copy_int64s(feature, values.data());
      }
    }
  });
}

void recordio(io::ByteSpan bytes) {
  rejecting([&] {
    io::Bytes joined;
    for (const uint64_t offset : io::scan_recordio(bytes, "fuzz")) {
      const io::RecordioRecord record = io::recordio_at(bytes, offset, "fuzz", joined);
      touch(record.data);
      rejecting([&] {
        const io::ImageRecord image = io::parse_image_record(record.data);
        touch(image.labels);
        touch(image.content);
      });
    }
  });
  rejecting([&] { io::parse_recordio_index(io::as_text(bytes), "fuzz"); });
  // What is written is read back.
  std::string file;
  io::append_recordio(file, bytes);
  io::Bytes joined;
  const auto record = io::recordio_at(io::as_bytes(file), 0, "fuzz", joined);
  if (io::as_text(record.data) != io::as_text(bytes) || record.next != file.size()) std::abort();
}

}  // namespace bellows::fuzz
