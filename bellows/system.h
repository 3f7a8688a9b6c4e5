#pragma once

// Includes the component system, the interface to the operating system and the process.
#include "bellows/system/call_site.h"
#include "bellows/system/file.h"
#include "bellows/system/machine.h"
#include "bellows/system/stop.h"
#include "bellows/system/thread.h"
#include "bellows/system/unlinked_temp_file.h"
