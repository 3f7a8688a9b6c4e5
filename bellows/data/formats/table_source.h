#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct CsvOptions {
  std::vector<std::string> columns = {};  ///< names, if the files have no header line
  std::vector<std::string> text = {};     ///< columns that stay text, regardless of their values
  /// column with paths of images: the image is read as the field "image" instead of the path; "": none
  std::string image_column = "";
  std::string image_folder = "";  ///< base of these paths; "": the folder of the file
  char separator = ',';
};

/// The rows of CSV files with one header: RFC 4180 quotes, line ends within quotes, CR LF or LF.
///
/// The cells of all files determine the type of a column. It is int64 if all its cells are integers, or uint64 if some
/// need it. It is float64 if all its cells are numbers or empty (NaN). Otherwise it is text: raw fields. Numbers with
/// leading zeros, beyond 64 bits or beyond float64 (1e400) are text. "label" is int64, or text if the first row has a
/// class name; "cls", "txt" and "json" are always text; "__key__" is the samples' key.
/// Cost:   opening reads the files once, remote ones one after the other; 8 bytes per row. Reading copies only cells
///         with doubled quotes
/// Throws: c10::ValueError (the message names file, line and byte) if there are no rows; if a header is missing or
///         differs; if a row has another length; if a quote is not closed; if a label after numeric ones is not a number; if the options
///         name an unknown column. read() throws c10::ValueError if an image is missing or outside its folder
/// Ref:    Python's csv.DictReader
SourcePtr open_csv(const std::vector<std::string>& paths, const CsvOptions& options = {});

struct CsvSinkOptions {
  char separator = ',';
};

/// Writes a CSV file with a header; it appears under its name when close() is called.
/// Throws: c10::ValueError from write() if an array is not a single number, if bytes are not UTF-8 text, or if the
///         fields differ from the first sample's
/// Ref:    Python's csv.writer, byte for byte; floats as repr() writes them
std::unique_ptr<Sink> csv_sink(const std::string& path, const CsvSinkOptions& options = {});

struct JsonlOptions {
  std::string image_column = "";  ///< see CsvOptions
  std::string image_folder = "";
};

/// The lines of JSON Lines files, one object per line.
///
/// Numbers and (nested) lists of numbers are arrays: int64; uint64 if some values of that name need it; float64 if some
/// have a fraction or an exponent. true and false are bool. Texts are raw fields. All other values, including null, are
/// raw fields that hold the JSON, which jsonl_sink writes unchanged. "__key__" is the samples' key. Empty lines are
/// skipped.
/// Cost:   opening parses the files once, remote ones one after the other; 8 bytes per line
/// Throws: c10::ValueError (the message names file, line and byte) if there are no lines; if a line is not a JSON
///         object or is nested deeper than 256; if a name occurs twice in an object; if none of these types represents
///         the integers of a name exactly
SourcePtr open_jsonl(const std::vector<std::string>& paths, const JsonlOptions& options = {});

/// Writes a JSON Lines file; it appears under its name when close() is called. Arrays become (nested) lists, all other
/// fields texts.
/// Throws: c10::ValueError from write() for NaN and infinity, complex numbers, bytes that are not UTF-8 text, and names
///         that occur twice
/// Ref:    Python's json.dumps, byte for byte
std::unique_ptr<Sink> jsonl_sink(const std::string& path);

}  // namespace bellows::data
