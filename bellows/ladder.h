#pragma once

// Includes the component ladder, which measures the speedup of techniques.
#include "bellows/ladder/html_report.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/ladder.h"
