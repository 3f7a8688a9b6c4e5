#pragma once

#include <cstdint>
#include <string>

#include "bellows/serve/http_message.h"
#include "bellows/serve/repository.h"

namespace bellows::serve {

/// Returns the page at `/`. It contains no values of the server, and loads nothing except `/status` and the protocol's URLs.
/// Its content security policy forbids all scripts and styles except its own ones.
/// Throws: c10::Error if the system returns no random numbers
HttpResponse status_page();

/// The values of the whole server on the page.
struct ServerStatus {
  bool ready = false;
  double uptime_s = 0;
  uint64_t connections = 0;
};

/// Returns the JSON object at `/status`, from which the page is drawn.
std::string status_json(const Repository& repository, const ServerStatus& server);

}  // namespace bellows::serve
