#pragma once

// Includes the component tap: hooks into libtorch that observe, check or replace operators.
#include "bellows/tap/allocator.h"
#include "bellows/tap/argument_tap.h"
#include "bellows/tap/batch_norm.h"
#include "bellows/tap/context.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/gradient_tap.h"
#include "bellows/tap/observer.h"
#include "bellows/tap/op_check.h"
#include "bellows/tap/op_ref.h"
#include "bellows/tap/op_tap.h"
#include "bellows/tap/pending_storage.h"
#include "bellows/tap/random_operators.h"
#include "bellows/tap/saved_tensor_tap.h"
#include "bellows/tap/weight_casts.h"
