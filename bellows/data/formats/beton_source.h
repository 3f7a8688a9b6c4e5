#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// FFCV's .beton files, version 2, with random access; several of the same fields follow one another.
///
/// Fields keep their names. An image is an encoded picture (no array) where it is stored as JPEG, else a uint8 array
/// [H, W, 3]; numbers are arrays without sizes (float64, int64); JSON and bytes are no arrays. Blocks are the pages,
/// where samples lie page by page.
/// Cost:     as io::BetonReader; reading copies nothing and asks the system once for the size of the file
/// Throws:   c10::ValueError – no files, a file missing or corrupt, files whose fields differ; read() – a damaged sample,
///           a file that was cut short since it was opened
SourcePtr open_beton(const std::vector<std::string>& paths);

/// How pictures are stored in a .beton file.
enum class BetonImages {
  jpg,        ///< JPEG files: those of the source as they are, all else encoded
  raw,        ///< pixels: reading costs no decoding, about ten times the room
  smart,      ///< pixels, but JPEG where these would take more than `smart_bytes`
  proportion  ///< JPEG with probability `jpg_probability`, else pixels
};

struct BetonOptions {
  BetonImages images = BetonImages::jpg;
  int64_t max_resolution = 0;  ///< pictures with a longer side are scaled down to it; 0: as they are
  int64_t smart_bytes = 0;
  double jpg_probability = 0.5;
  uint64_t seed = 0;  ///< of that choice, which depends on it and the number of the sample only
  int quality = 90;   ///< 1 to 100, of what is encoded
  uint64_t page_size = 8 << 20;
};

/// Writes a .beton file that FFCV reads, too.
///
/// The first sample decides which fields the file has; all samples have to have these. A picture becomes an RGB image
/// "image"; "cls" the integer "label"; "json" JSON; a single number an integer or a float64; another array an array of
/// NumPy; all else bytes. Keys are not stored: the format has no place for them.
/// Params: path – takes the place of what is there when close() is called
/// Throws: c10::ValueError – options out of range; write(): what FFCV cannot hold: a sample without one of the fields or
///         larger than a page, arrays without values or of other sizes than before, names of more than 16 characters;
///         close(): no sample was written
/// Ref:    ffcv.writer.DatasetWriter, ffcv.fields.RGBImageField
std::unique_ptr<Sink> beton_sink(const std::string& path, const BetonOptions& options = {});

}  // namespace bellows::data
