#include "tests/fuzz/targets.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/io/archives/decompress.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/archives/tar_index.h"
#include "bellows/io/archives/zip.h"
#include "bellows/io/crc32.h"
#include "bellows/io/images/image.h"
#include "bellows/io/records/beton.h"
#include "bellows/io/records/event_file.h"
#include "bellows/io/records/tfrecord.h"
#include "bellows/io/tensors/safetensors_header.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/io/tensors/unpickler.h"
#include "tests/fuzz/support.h"

namespace bellows::fuzz {

namespace {

/// Reads the first and the last element of every tensor.
void touch_tensors(const io::PickleValue& value) {
  if (value.is_tensor()) {
    const at::Tensor& tensor = value.as_tensor();
    if (tensor.numel() == 0) return;
    int64_t last = 0;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    const auto width = static_cast<size_t>(tensor.element_size());
    touch({data, width});
    touch({data + static_cast<size_t>(last) * width, width});
  } else if (value.is_sequence()) {
    for (const io::PickleValue& element : value.elements()) {
      if (element.is_tensor()) touch_tensors(element);
    }
  } else if (value.is_dict()) {
    for (const auto& [key, element] : value.items()) {
      if (element.is_tensor()) touch_tensors(element);
    }
  }
}

}  // namespace

void tar(io::ByteSpan bytes) {
  rejecting([&] {
    io::TarReader reader(bytes, "fuzz");
    while (const auto entry = reader.next()) touch(entry->data);
  });
}

void torch_file(io::ByteSpan bytes) {
  rejecting([&] { touch_tensors(io::torch_load_bytes(bytes, "fuzz")); });
}

void pickle(io::ByteSpan bytes) {
  const at::Tensor memory = at::zeros({64}, at::TensorOptions().dtype(c10::kByte));
  const auto storage = std::make_shared<io::PickleStorage>(memory.storage(), c10::kFloat);
  rejecting([&] {
    touch_tensors(io::unpickle(bytes, "fuzz", [&](const io::PickleValue&) { return io::PickleValue(storage); }));
  });
}

void safetensors(io::ByteSpan bytes) {
  rejecting([&] {
    for (const io::SafetensorsEntry& entry : io::parse_safetensors_header(bytes, "fuzz").entries) {
      touch(bytes.subspan(entry.begin, entry.end - entry.begin));
    }
  });
}

void image(io::ByteSpan bytes) {
  using io::ColorMode;
  for (const ColorMode mode : {ColorMode::gray, ColorMode::rgb, ColorMode::keep}) {
    rejecting([&] {
      const io::ImageInfo info = io::image_info(bytes);
      if (info.width * info.height <= 1 << 16) touch_tensors(io::PickleValue(io::decode_image(bytes, mode)));
    });
    rejecting([&] {
      const io::ImageInfo info = io::image_info(bytes);
      if (info.width * info.height > 1 << 16) return;
      std::vector<uint8_t> memory;
      const int64_t y = info.height / 3, x = info.width / 4;
      const io::ImageRegion middle{y, x, (info.height - y + 1) / 2, (info.width - x + 1) / 2};
      const bool fast = mode == ColorMode::rgb;
      const io::ImagePart part = io::decode_image_part(bytes, {mode, middle, fast ? 2 : 1, fast}, memory);
      const auto row = static_cast<size_t>(part.region.width * part.channels);
      for (int64_t i = 0; i < part.region.height; ++i)
        touch(std::as_bytes(std::span(part.pixels + i * part.row_stride, row)));
    });
  }
}

void compressed(io::ByteSpan bytes) {
  rejecting([&] { touch(io::decompress(bytes, "fuzz", 1 << 24)); });
}

void event_file(io::ByteSpan bytes) {
  std::string message;
  io::append_tfrecord(message,
                      "\x1a\x0d"
                      "brain.Event:2");
  io::append_tfrecord(message, io::as_text(bytes));
  for (const std::string_view file : {io::as_text(bytes), std::string_view(message)}) {
    rejecting([&] {
      for (const io::Event& event : io::read_events(file, "fuzz")) touch(io::as_bytes(event.content));
    });
  }
}

void beton(io::ByteSpan bytes) {
  rejecting([&] {
    const io::BetonReader reader(bytes, "fuzz");
    for (int64_t sample = 0; sample < std::min<int64_t>(reader.size(), 100); ++sample) {
      for (size_t field = 0; field < reader.fields().size(); ++field)
        rejecting([&] { touch(reader.read(sample, field).bytes); });
      reader.page(sample);
    }
  });
}

void dali_index(io::ByteSpan bytes) {
  rejecting([&] {
    const auto members = io::parse_dali_index(io::as_text(bytes), "fuzz");
    for (const io::TarMember& member : members) touch(io::as_bytes(member.name));
    io::dali_index(members);
  });
}

void tar_index(io::ByteSpan bytes) {
  std::string mended(io::as_text(bytes));
  if (mended.size() >= 4) {
    mended.resize(mended.size() - 4);
    io::append_little(mended, io::crc32c(io::as_bytes(mended)));
  }
  for (const io::ByteSpan file : {bytes, io::as_bytes(mended)}) {
    rejecting([&] {
      for (const io::TarMember& member : io::decode_tar_index(file, "fuzz").members) {
        touch(io::as_bytes(member.name));
        rejecting([&] { touch(io::tar_member_data(bytes, member, "index")); });
      }
    });
  }
}

}  // namespace bellows::fuzz
