#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// FFCV's .beton files, version 2, with random access. Several files with the same fields are concatenated.
///
/// Fields keep their names. An image stored as JPEG becomes an encoded image (no array), any other image a uint8 array
/// [H, W, 3]. Numbers become arrays without sizes (float64, int64); JSON and bytes are not arrays. If samples are
/// stored page by page, the blocks are the pages.
/// Cost:   as io::BetonReader; reading copies nothing and makes one system call for the size of the file
/// Throws: c10::ValueError if there are no files, if a file is missing or corrupt, or if the files' fields differ.
///         read() throws c10::ValueError if the sample is damaged or the file was truncated after it was opened
SourcePtr open_beton(const std::vector<std::string>& paths);

/// How images are stored in a .beton file.
enum class BetonImages {
  jpg,        ///< JPEG files: JPEGs of the source are copied, all other images are encoded
  raw,        ///< pixels: no decoding on reading, but about ten times the space
  smart,      ///< pixels, or JPEG if the pixels would take more than `smart_bytes`
  proportion  ///< JPEG with probability `jpg_probability`, else pixels
};

struct BetonOptions {
  BetonImages images = BetonImages::jpg;
  int64_t max_resolution = 0;  ///< images with a longer side are scaled down to it; 0: no scaling
  int64_t smart_bytes = 0;
  double jpg_probability = 0.5;
  uint64_t seed = 0;  ///< of that choice, which depends only on it and on the number of the sample
  int quality = 90;   ///< JPEG quality, 1 to 100, of encoded images
  uint64_t page_size = 8 << 20;
};

/// Writes a .beton file that FFCV can read.
///
/// The first sample determines the fields of the file, and all samples must have these fields. An image becomes an RGB
/// image "image"; "cls" becomes the integer "label"; "json" becomes JSON. A single number becomes an integer or a
/// float64, another array a NumPy array, and everything else bytes. Keys are not stored, because the format does not
/// support them.
/// Params: path – an existing file is replaced when close() is called
/// Throws: c10::ValueError if an option is out of range. write() throws c10::ValueError if FFCV cannot hold the sample:
///         it lacks a field, is larger than a page, has an array without values or of other sizes than before, or a
///         field name has more than 16 characters. close() throws c10::ValueError if no sample was written
/// Ref:    ffcv.writer.DatasetWriter, ffcv.fields.RGBImageField
std::unique_ptr<Sink> beton_sink(const std::string& path, const BetonOptions& options = {});

}  // namespace bellows::data
