#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// Opens FFCV's .beton files, version 2, with random access. The samples of several files are concatenated. All files
/// must have the same fields.
///
/// Fields keep their names. An image that is stored as a JPEG becomes an encoded image, which is not an array. Any
/// other image becomes a uint8 array [H, W, 3]. Numbers become scalar arrays (float64 or int64). Fields with JSON or
/// bytes become bytes, not arrays. If samples are stored page by page, block_starts() returns the starts of the pages.
/// Cost:   see io::BetonReader; reading a sample copies nothing and makes one system call for the size of the file
/// Throws: c10::ValueError if there are no files, if a file is missing or corrupt, or if the fields of the files
///         differ. read() throws c10::ValueError if the sample is damaged or the file was truncated after it was opened
SourcePtr open_beton(const std::vector<std::string>& paths);

/// Selects how images are stored in a .beton file.
enum class BetonImages {
  jpg,        ///< JPEG: JPEGs of the source are copied, and all other images are encoded
  raw,        ///< pixels: reading needs no decoding, but files are about ten times larger than with `jpg`
  smart,      ///< pixels, but JPEG if the pixels would take more than `smart_bytes`
  proportion  ///< JPEG with probability `jpg_probability`, otherwise pixels
};

struct BetonOptions {
  BetonImages images = BetonImages::jpg;
  /// Maximum length of the longer side in pixels. Larger images are scaled down. 0 means no limit.
  int64_t max_resolution = 0;
  int64_t smart_bytes = 0;
  double jpg_probability = 0.5;
  /// Seed of BetonImages::proportion. The choice depends only on the seed and on the index of the sample.
  uint64_t seed = 0;
  int quality = 90;  ///< JPEG quality of encoded images, from 1 to 100
  uint64_t page_size = 8 << 20;
};

/// Writes a .beton file that FFCV can read.
///
/// The first sample determines the fields of the file, and all samples must have the same fields:
/// - An image becomes an RGB image "image".
/// - "cls" becomes an integer "label".
/// - "json" becomes JSON.
/// - A scalar array becomes an integer or a float64, and any other array becomes a NumPy array.
/// - All other fields become bytes.
///
/// Keys are not stored, because the format does not support them.
/// Params: path – an existing file is replaced when close() is called
/// Throws: c10::ValueError if an option is out of range. write() throws c10::ValueError if the fields of the sample
///         differ from those of the first sample; if the sample is larger than a page; if an array is empty, or its
///         sizes differ from those in the first sample; if the name of a field has more than 16 characters. close()
///         throws c10::ValueError if no sample was written
/// Ref:    ffcv.writer.DatasetWriter, ffcv.fields.RGBImageField
std::unique_ptr<Sink> beton_sink(const std::string& path, const BetonOptions& options = {});

}  // namespace bellows::data
