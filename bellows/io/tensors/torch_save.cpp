#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "bellows/io/archives/zip.h"
#include "bellows/io/tensors/pickler.h"
#include "bellows/io/tensors/torch_file.h"

namespace bellows::io {

namespace {

/// The storage as bytes on the CPU.
at::Tensor storage_bytes(const c10::Storage& storage) {
  const at::Tensor view = at::empty({0}, at::TensorOptions().dtype(c10::kByte).device(storage.device()));
  const auto size = static_cast<int64_t>(storage.nbytes());
  return view.set_(storage, 0, {size}, {1}).cpu();
}

}  // namespace

void torch_save(const std::string& path, const PickleValue& value) {
  const Pickler pickler(value);
  ZipWriter zip(path);
  // Python's order; torch.load takes the name of the first entry's folder for that of the archive.
  zip.add("archive/data.pkl", pickler.pickle());
  zip.add("archive/.format_version", "1");
  zip.add("archive/.storage_alignment", "64");
  zip.add("archive/byteorder", "little");
  size_t number = 0;
  for (const c10::Storage& storage : pickler.storages()) {
    const at::Tensor bytes = storage_bytes(storage);
    zip.add("archive/data/" + std::to_string(number++),
            ByteSpan(static_cast<const std::byte*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())));
  }
  zip.add("archive/version", "3\n");
  zip.close();
}

}  // namespace bellows::io
