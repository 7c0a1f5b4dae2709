// CUDA's half precision, for a C++ compiler: see blocks.h.
#pragma once

#include "blocks.h"

using __half = emulator::Half;
