#pragma once

#include "bellows/techniques/technique.h"
