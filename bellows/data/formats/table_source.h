#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct CsvOptions {
  std::vector<std::string> columns = {};  ///< names, where the files have none in their first line
  std::vector<std::string> text = {};     ///< columns that stay text, whatever is in them
  std::string image_column = "";  ///< holds paths of pictures: read as the field "image" instead of the path; "": none
  std::string image_folder = "";  ///< where these paths start; "": the folder of the file
  char separator = ',';
};

/// The rows of CSV files with one header: RFC 4180 quotes, line ends within quotes, CR LF or LF.
///
/// A column is int64 where all its cells are whole numbers, or uint64 where some need it; float64 where all are numbers or empty (NaN), else text: raw
/// fields. All cells of all files count. Numbers with leading zeros, beyond 64 bits or beyond float64 (1e400) are text. "label" must be int64;
/// "cls", "txt", "json" are always text; "__key__" is the samples' key.
/// Cost:     opening reads the files once, remote ones one after the other; 8 bytes a row. Reading copies only cells with
///           doubled quotes
/// Throws:   c10::ValueError – no rows, no or unequal headers, a row of another length, a quote that is never closed, a
///           label that is no number, an unknown column in the options: file, line and byte. read() – a picture that is
///           missing or outside its folder
/// Ref:      Python's csv.DictReader
SourcePtr open_csv(const std::vector<std::string>& paths, const CsvOptions& options = {});

struct CsvSinkOptions {
  char separator = ',';
};

/// Writes a CSV file with a header; it appears under its name only by close().
/// Throws:   c10::ValueError – write(): an array that is no single number, bytes that are no UTF-8 text, other fields
///           than the first sample's
/// Ref:      Python's csv.writer, byte for byte; floats as repr() writes them
std::unique_ptr<Sink> csv_sink(const std::string& path, const CsvSinkOptions& options = {});

struct JsonlOptions {
  std::string image_column = "";  ///< as CsvOptions
  std::string image_folder = "";
};

/// The lines of JSON Lines files: an object each.
///
/// Numbers and (nested) lists of numbers are arrays: int64, or uint64 where some under that name need it, or float64 where
/// some have a fraction or an exponent; true and false are bool; texts are raw fields, everything else, null too, its JSON
/// as a raw field, which jsonl_sink writes as it was. "__key__" is the samples' key. Empty lines are passed over.
/// Cost:     opening parses the files once, remote ones one after the other; 8 bytes a line
/// Throws:   c10::ValueError – no lines, a line that is no JSON object, nested deeper than 256, a name twice in an object, whole
///           numbers that none of these types holds exactly: file, line and byte
SourcePtr open_jsonl(const std::vector<std::string>& paths, const JsonlOptions& options = {});

/// Writes a JSON Lines file; it appears under its name only by close(). Arrays become (nested) lists, all else texts.
/// Throws:   c10::ValueError – write(): NaN and infinity, complex numbers, bytes that are no UTF-8 text, a name twice
/// Ref:      Python's json.dumps, byte for byte
std::unique_ptr<Sink> jsonl_sink(const std::string& path);

}  // namespace bellows::data
