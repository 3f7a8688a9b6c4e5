#pragma once

#include "bellows/ladder/html_report.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/ladder.h"
