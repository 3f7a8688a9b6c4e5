#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct ArraysOptions {
  std::vector<std::string> names = {};  ///< the arrays to take; empty: all
};

/// Rows of arrays in .npy, .npz and safetensors files, told apart by content: row i of each array is sample i.
///
/// A field is called as its array: the file's name without suffix for .npy, the member's for .npz, the tensor's for
/// safetensors.
/// Params:   paths – arrays of all files together; equal first dimension
/// Cost:     maps the files; samples are views into them, but of several remote files copies. Of remote .npy and
///           safetensors files opening fetches the headers, .npz files whole. Compressed members of .npz are unpacked into
///           memory and checked when opened; stored ones are compared with their CRC-32 when the first row of them is read,
///           which reads all of them once (1 GB/s)
/// Throws:   c10::ValueError – another kind of file, lengths that differ (names both), a name twice or unknown (nearest
///           match), no first dimension, what io::parse_npy refuses; read() – a wrong CRC-32
/// Ref:      numpy.load(path, mmap_mode="r"), safetensors.safe_open
SourcePtr open_arrays(const std::vector<std::string>& paths, const ArraysOptions& options = {});

/// Writes arrays over all samples into one file; its suffix says how: .npy (one field), .npz (stored) or .safetensors.
/// The file appears under its name only by close(). Keys are not kept; a label as text, `cls`, becomes an int64 "label".
/// Cost:     rows wait in temporary files beside it, which vanish with the process
/// Throws:   c10::ValueError – another suffix; write() – a field that is no array, other fields, types or sizes than the
///           first sample's
std::unique_ptr<Sink> arrays_sink(const std::string& path);

}  // namespace bellows::data
