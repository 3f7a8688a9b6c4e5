#pragma once

#include <c10/util/StringUtil.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/ladder/chart.h"
#include "bellows/ladder/page_style_impl.h"
#include "bellows/system/machine.h"

/// What the ladder's pages are made of. Text is HTML, but for that of entries and keys.
namespace bellows::train::page {

/// Everything before the headline. Params: title – HTML
inline std::string begin(const std::string& title, const std::string& verb) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>bellows ladder: " +
         title + "</title>\n<style>" + ladder_style + "</style>\n</head>\n<body>\n<main>\n<p class=\"soft\">" + verb +
         "</p>\n";
}

inline std::string interval_text(const char* format, double low, double high) {
  if (!std::isfinite(low) || !std::isfinite(high)) return "";
  return chart_number(format, low) + " to " + chart_number(format, high);
}

inline double mebibytes(int64_t bytes) {
  return bytes > 0 ? static_cast<double>(bytes) / (1 << 20) : RungResult::unknown;
}

/// Nothing where there is no chart.
inline std::string figure(const std::string& caption, const std::string& explanation, const std::string& key,
                          const std::string& chart) {
  const std::string content = key + "</div>\n" + chart;
  return chart.empty() ? ""
                       : "<figure>\n<h2>" + caption + "</h2>\n<figcaption>" + explanation + "</figcaption>\n" +
                             content + "</figure>\n";
}

inline std::string key_entry(const std::string& css, const std::string& words) {
  return "<span><i class=\"" + css + "\"></i>" + escape_html(words) + "</span>";
}

inline std::string card(const std::string& figure_text, const std::string& words, const std::string& detail) {
  return "<div class=\"card\"><b>" + figure_text + "</b><span>" + words + "</span><span>" + detail + "</span></div>\n";
}

inline std::string cell(const std::string& value, const std::string& detail = "") {
  return "<td>" + value + (detail.empty() ? "" : "<small>" + detail + "</small>") + "</td>";
}

inline std::string range_cell(const char* format, double value, const Range& range) {
  return cell(chart_number(format, value), interval_text(format, range.low, range.high));
}

inline std::string header(std::initializer_list<const char*> names) {
  std::string cells;
  for (const char* name : names) cells += "<th scope=\"col\">" + std::string(name) + "</th>";
  return "<thead><tr>" + cells + "</tr></thead>\n";
}

/// A table that can be pushed sideways where the screen is narrow.
inline std::string panel(const std::string& title, const std::string& explanation, const std::string& rows,
                         const char* css = "") {
  return "<div class=\"panel " + std::string(css) + "\">\n<h2>" + title + "</h2>\n<p class=\"soft\">" + explanation +
         "</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + title + "\">\n<table>\n" + rows +
         "</tbody>\n</table>\n</div>\n</div>\n";
}

inline std::string entry(const std::string& name, const std::string& value) {
  return "<dt>" + name + "</dt><dd>" + escape_html(value) + "</dd>\n";
}

inline std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// The machine's rows of a list of conditions.
inline std::string machine_entries(const Machine& machine) {
  return entry("processor", machine.cpu) +
         entry("threads", c10::str(machine.torch_threads, " of ", machine.hardware_threads)) +
         entry("instruction sets", joined(machine.isa)) +
         entry("memory", format_bytes(static_cast<double>(machine.memory_bytes))) + entry("system", machine.os) +
         entry("libtorch", machine.libtorch);
}

}  // namespace bellows::train::page
