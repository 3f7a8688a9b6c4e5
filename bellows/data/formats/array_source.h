#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct ArraysOptions {
  std::vector<std::string> names = {};  ///< names of the arrays to read; empty: all arrays
};

/// Opens arrays in .npy, .npz and safetensors files. The format of each file is detected from the content. Row i of
/// each array belongs to sample i.
///
/// The name of an array is the name of its field. For .npy, it is the file name without suffix. For .npz, it is the
/// name of the member. For safetensors, it is the name of the tensor.
/// Params: paths – all arrays of all files together form the samples, so their first dimensions must be equal
/// Cost:   local files are mapped, and samples are views into them. With several remote files, samples are copies.
///         Opening fetches only the headers of remote .npy and safetensors files, but all bytes of remote .npz files.
///         Compressed members of .npz files are decompressed into memory and checked when they are opened. An
///         uncompressed member is checked against its CRC-32 when its first row is read; this reads the complete member
///         once, at about 1 GB/s
/// Throws: c10::ValueError if the format or the compression of a file is not supported; if there are no arrays; if
///         first dimensions differ (the message names both arrays); if a name occurs twice or is unknown (the message
///         suggests the nearest name); if an array is a scalar; if io::parse_npy rejects an array. read() throws
///         c10::ValueError if a CRC-32 is wrong
/// Ref:    numpy.load(path, mmap_mode="r"), safetensors.safe_open
SourcePtr open_arrays(const std::vector<std::string>& paths, const ArraysOptions& options = {});

/// Writes one array per field into one file. Sample i becomes row i of each array. The suffix of `path` selects the
/// format: .npy (one field), .npz (uncompressed) or .safetensors. close() moves the finished file to `path`. Keys are
/// not stored. A text label `cls` becomes an int64 array "label".
/// Cost:   stores the rows in unlinked temporary files in the same folder; they disappear when the process ends
/// Throws: c10::ValueError if the suffix is not supported. write() throws c10::ValueError if a field other than `cls`
///         is not an array, or if the fields, types or sizes differ from those of the first sample. close() throws
///         c10::ValueError if no sample was written
std::unique_ptr<Sink> arrays_sink(const std::string& path);

}  // namespace bellows::data
