#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct ArraysOptions {
  std::vector<std::string> names = {};  ///< the arrays to read; empty: all
};

/// Rows of arrays in .npy, .npz and safetensors files, detected from the content: row i of each array is sample i.
///
/// A field has the name of its array: for .npy the file's name without suffix, for .npz the member's name, for
/// safetensors the tensor's name.
/// Params: paths – the arrays of all files together form the samples; their first dimensions must be equal
/// Cost:   maps the files; samples are views into them, but copies if the files are several remote ones. Opening
///         fetches the headers of remote .npy and safetensors files, but the whole of remote .npz files. Compressed
///         members of .npz are decompressed into memory and checked when opened. Stored members are checked against
///         their CRC-32 when their first row is read, which reads all of them once (1 GB/s)
/// Throws: c10::ValueError if a file has another format, or if lengths differ (the message names both); if a name
///         occurs twice or is unknown (the message suggests the nearest name); if an array has no first dimension; if
///         io::parse_npy rejects an array. read() throws c10::ValueError if a CRC-32 is wrong
/// Ref:    numpy.load(path, mmap_mode="r"), safetensors.safe_open
SourcePtr open_arrays(const std::vector<std::string>& paths, const ArraysOptions& options = {});

/// Writes arrays over all samples into one file. Its suffix selects the format: .npy (one field), .npz (stored) or
/// .safetensors. The file appears under its name when close() is called. Keys are not kept; a text label `cls` becomes
/// an int64 "label".
/// Cost:   buffers rows in temporary files beside it, which disappear with the process
/// Throws: c10::ValueError if the suffix is none of these. write() throws c10::ValueError if a field is not an array,
///         or if the fields, types or sizes differ from the first sample's
std::unique_ptr<Sink> arrays_sink(const std::string& path);

}  // namespace bellows::data
