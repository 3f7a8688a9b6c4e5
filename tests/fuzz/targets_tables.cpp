#include <map>

#include "bellows/data/formats/json_record.h"
#include "bellows/io/records/mds.h"
#include "bellows/io/records/mds_value.h"
#include "bellows/io/tables/csv.h"
#include "bellows/io/tensors/npy.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

/// A shard of the columns of tests/goldens/interop/mds/all, whatever the bytes are.
io::MdsShard shard_of(io::ByteSpan bytes) {
  const std::map<std::string, std::string> columns{{"any", "ndarray"},
                                                   {"b", "bytes"},
                                                   {"f16", "float16"},
                                                   {"f32", "float32"},
                                                   {"f64", "float64"},
                                                   {"i", "int"},
                                                   {"fixed", "ndarray:int16:2,3"},
                                                   {"i16", "int16"},
                                                   {"i32", "int32"},
                                                   {"i64", "int64"},
                                                   {"i8", "int8"},
                                                   {"jpeg", "jpeg"},
                                                   {"jpegl", "list[jpeg]"},
                                                   {"json", "json"},
                                                   {"jpegs", "jpegarray"},
                                                   {"jpegs2", "jpeg_array"},
                                                   {"pil", "pil"},
                                                   {"png", "png"},
                                                   {"pils", "list[pil]"},
                                                   {"pngs", "list[png]"},
                                                   {"s", "str"},
                                                   {"si", "str_int"},
                                                   {"sd", "str_decimal"},
                                                   {"sf", "str_float"},
                                                   {"typed", "ndarray:float32"},
                                                   {"u8", "uint8"},
                                                   {"u16", "uint16"},
                                                   {"u32", "uint32"},
                                                   {"u64", "uint64"},
                                                   {"ümlaut", "str"}};
  io::MdsShard shard;
  shard.raw.bytes = bytes.size();
  shard.samples = bytes.size() < 4 ? 0 : io::load_little<uint32_t>(bytes);
  for (const auto& [name, encoding] : columns)
    shard.columns.push_back({name, encoding, io::MdsEncoding::parse(encoding).fixed_size()});
  return shard;
}

void read_samples(const io::MdsShardReader& reader, const io::MdsShard& shard) {
  std::vector<io::ByteSpan> values;
  for (uint64_t i = 0; i < std::min<uint64_t>(shard.samples, 100); ++i) {
    rejecting([&] {
      reader.read(i, values);
      for (size_t k = 0; k < values.size(); ++k) {
        std::vector<int64_t> sizes;
        io::Bytes buffer;
        rejecting(
            [&] { touch(io::MdsEncoding::parse(shard.columns[k].encoding).decode(values[k], sizes, buffer).bytes); });
      }
    });
  }
}

}  // namespace

void mds(io::ByteSpan bytes) {
  rejecting([&] {
    const auto shards = io::parse_mds_index(io::as_text(bytes), "fuzz");
    touch(io::as_bytes(io::make_mds_index(shards)));
  });
  rejecting([&] {
    const io::MdsShard shard = shard_of(bytes);
    const io::MdsShardReader reader(bytes, shard, "fuzz");
    rejecting([&] { reader.check_columns(); });
    read_samples(reader, shard);
  });
}

void npy(io::ByteSpan bytes) {
  rejecting([&] { touch(io::parse_npy(bytes, "fuzz").bytes); });
}

void csv(io::ByteSpan bytes) {
  rejecting([&] {
    const io::CsvReader reader(bytes, "fuzz");
    std::vector<io::CsvCell> cells;
    for (uint64_t at = reader.row_start(0); at < bytes.size(); at = reader.row_start(at)) {
      at = reader.read_row(at, cells);
      for (const io::CsvCell& cell : cells) {
        io::Bytes out;
        io::append_unquoted(cell, out);
        touch(out);
      }
    }
  });
}

void jsonl(io::ByteSpan bytes) {
  const auto where = [] { return std::string("fuzz"); };
  data::JsonColumns columns;
  rejecting([&] {
    data::learn_json_record(io::as_text(bytes), where, columns);
    data::Sample sample;
    data::read_json_record(io::as_text(bytes), where, columns, sample);
    for (const data::Field& field : sample.fields) touch(field.bytes);
  });
}

}  // namespace bellows::fuzz
